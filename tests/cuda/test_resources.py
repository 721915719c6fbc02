"""What ptxas makes of the CUDA kernels: no spills, no local memory, registers within the budget."""

import re
import subprocess
import sys
import sysconfig
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

from dflash_ops import _C

ROOT = Path(__file__).resolve().parents[2]
NVCC = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "bin" / "nvcc"
CCACHE = Path(sys.executable).with_name("ccache")
BUDGETS = tomllib.loads((Path(__file__).parent / "registers.toml").read_text())
# The object and not the cubin, and the report asked for in one word: that is what ccache keeps.
FLAGS = "-std=c++20 -O3 -fmad=false --expt-relaxed-constexpr -Xptxas=-v -c".split()
ENTRY = re.compile(
    r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
    r"(\d+) bytes spill loads.*?Used (\d+) registers",
    re.DOTALL,
)


@pytest.mark.skipif(not NVCC.exists(), reason="no nvcc")
@pytest.mark.parametrize("source", sorted(ROOT.glob("csrc/*/cuda/*.cu")), ids=lambda p: p.stem)
def test_registers_and_spills(source, tmp_path):
    number = "90a" if source.stem.endswith("_sm90") else "80"
    arch = f"-gencode=arch=compute_{number},code=sm_{number}"  # ccache loses the a of -arch
    ccache = [CCACHE, "compiler_check=content"] if CCACHE.exists() else []
    command = [*ccache, NVCC, *FLAGS, arch, f"-I{ROOT / 'csrc'}", source, "-o", tmp_path / "o"]
    report = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    counts, registers = defaultdict(int), defaultdict(int)
    for name, *numbers in ENTRY.findall(report):
        kernel = next((k for k in _C.kernel_instances if k in name), name)
        stack, stores, loads, used = map(int, numbers)
        assert (stack, stores, loads) == (0, 0, 0), f"{name}: spills {stores} bytes"
        counts[kernel] += 1
        registers[kernel] = max(registers[kernel], used)
    assert counts, report
    for kernel in counts:
        assert counts[kernel] == _C.kernel_instances.get(kernel), f"{kernel}: csrc/instances.h"
        assert registers[kernel] <= BUDGETS[kernel], f"{kernel}: {registers[kernel]} registers"
