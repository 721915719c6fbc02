"""What ptxas makes of PTX: registers, spills, and the machine instructions. No GPU is needed."""

import hashlib
import json
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from . import _ptxrun
from .device import load_library
from .module import CACHE, nvcc

ENTRY = re.compile(
    r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
    r"(\d+) bytes spill loads.*?Used (\d+) registers([^\n]*)",
    re.DOTALL,
)
SECTION = re.compile(r"^\.text\.(\w+):\n(.*?)(?=^\t\.section|\Z)", re.DOTALL | re.MULTILINE)
INSTRUCTION = re.compile(
    r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([A-Z][\w.]*)(.*);|^(\.L\w+):", re.MULTILINE
)
WIDTHS = {"128": 16, "64": 8, "U8": 1, "S8": 1, "U16": 2, "S16": 2}


class Resources(NamedTuple):
    """Of one kernel."""

    registers: int
    stack: int  # bytes of local memory a thread
    spill_stores: int
    spill_loads: int
    static_shared: int
    load_bytes: int  # of plain global loads that a thread has under way at most
    opcodes: dict[str, int]  # machine instructions

    def count(self, prefix: str) -> int:
        """Instructions whose name is `prefix`, or goes on with a dot: "HMMA.16816"."""
        return sum(n for name, n in self.opcodes.items() if (name + ".").startswith(prefix + "."))

    @property
    def instructions(self) -> int:
        return sum(self.opcodes.values()) - self.count("NOP")


def assembled(ptx: str, arch: str, fmad: bool = False) -> dict[str, Resources]:
    """By kernel; kept by a hash of what goes into it. `fmad` as the build has it: not fused."""
    ptxas = Path(nvcc()).with_name("ptxas")
    nvdisasm = shutil.which("nvdisasm", path=str(ptxas.parent)) or shutil.which("nvdisasm")
    if nvdisasm is None:
        raise FileNotFoundError("no nvdisasm: pip install nvidia-cuda-nvdisasm")
    rules = Path(__file__).read_bytes()
    key = hashlib.sha256(repr((ptx, arch, fmad)).encode() + rules).hexdigest()[:32]
    path = CACHE / f"{key}.sass.json"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:  # others may be at the same
            source, cubin, kept = (Path(folder) / name for name in ("ptx", "cubin", "json"))
            source.write_text(ptx)
            command = [ptxas, "-v", "-arch", arch, "--fmad", str(fmad).lower()]
            run = {"check": True, "capture_output": True, "text": True}
            report = subprocess.run([*command, source, "-o", cubin], **run).stderr
            listing = subprocess.run([nvdisasm, "-c", cubin], **run).stdout
            kept.write_text(json.dumps(_resources(report, listing)))
            kept.rename(path)
    return {name: Resources(*values) for name, values in json.loads(path.read_text()).items()}


def _resources(report: str, listing: str) -> dict[str, Resources]:
    code = {name: INSTRUCTION.findall(text) for name, text in SECTION.findall(listing)}
    found = {}
    for name, *numbers, rest in ENTRY.findall(report):
        stack, stores, loads, registers = map(int, numbers)
        shared = re.search(r"(\d+) bytes smem", rest)
        opcodes = Counter(opcode for opcode, _, _ in code[name] if opcode)
        found[name] = Resources(
            registers,
            stack,
            stores,
            loads,
            int(shared.group(1)) if shared else 0,
            _load_bytes(code[name]),
            dict(opcodes),
        )
    return found


def _load_bytes(code: list[tuple[str, str, str]]) -> int:
    """Loads return in order: the first use of one ends those before it too. A label ends all."""
    pending: list[tuple[range, int]] = []
    most = 0
    for opcode, operands, label in code:
        used = {int(r) for r in re.findall(r"\bR(\d+)\b", operands)}
        is_load = opcode.startswith(("LDG", "LD."))
        if label:
            pending = []
        last = [i for i, (registers, _) in enumerate(pending) if used & set(registers)]
        pending = pending[last[-1] + 1 :] if last else pending
        if is_load and (target := re.search(r"R(\d+)", operands)):
            width = next((WIDTHS[p] for p in opcode.split(".") if p in WIDTHS), 4)
            first = int(target.group(1))
            pending.append((range(first, first + max(width // 4, 1)), width))
            most = max(most, sum(width for _, width in pending))
    return most


def images(arch: int) -> list[str]:
    """The PTX of dflash's CUDA kernels for an architecture, a text for each file."""
    load_library()
    return [ptx for image_arch, ptx in _ptxrun.images() if image_arch == arch]


def image_of(kernel: str, arch: int) -> str:
    return next(ptx for ptx in images(arch) if f"{kernel}(" in ptx)


def resources(arch: int, sass_arch: str) -> dict[str, Resources]:
    """Of all of dflash's CUDA kernels, as the build compiles them."""
    return {
        name: found for ptx in images(arch) for name, found in assembled(ptx, sass_arch).items()
    }
