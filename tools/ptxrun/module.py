"""PTX files and single kernels."""

import functools
import hashlib
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from . import _ptxrun
from .device import raise_reports
from .memory import DeviceMemory

CACHE = Path(__file__).parents[2] / "build" / "ptx"


@functools.cache
def nvcc() -> str:
    """From its PyPI package, from CUDACXX, or from PATH."""
    package = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "bin" / "nvcc"
    found = str(package) if package.exists() else os.environ.get("CUDACXX") or shutil.which("nvcc")
    if found is None:
        raise FileNotFoundError("no nvcc")
    return found


def compiled(source: Path, arch: str, flags: Sequence[str] = ()) -> str:
    """The PTX of a .cu file, kept by a hash of what goes into it."""
    command = [nvcc(), "-std=c++20", "-lineinfo", f"-arch={arch}", *flags]
    whole = subprocess.run([*command, "-E", source], check=True, capture_output=True).stdout
    key = hashlib.sha256(whole + repr(command).encode()).hexdigest()[:32]
    path = CACHE / f"{key}.ptx"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        partial = CACHE / f"{key}.{os.getpid()}.ptx"
        subprocess.run([*command, "-ptx", source, "-o", partial], check=True)
        partial.rename(path)
    return path.read_text()


class Module:
    """PTX text, a .ptx file, or a .cu file."""

    def __init__(self, source: str | Path, arch: str = "sm_80", flags: Sequence[str] = ()) -> None:
        if isinstance(source, Path):
            is_cuda = source.suffix == ".cu"
            source = compiled(source, arch, flags) if is_cuda else source.read_text()
        self._module = _ptxrun.Module(source)
        self.names: list[str] = self._module.names

    def _name(self, name: str) -> str:
        matches = [n for n in self.names if n == name] or [n for n in self.names if name in n]
        if len(matches) != 1:
            raise KeyError(f"{name}: {matches or self.names}")
        return matches[0]

    def census(self, name: str) -> dict[str, int]:
        return self._module.census(self._name(name))

    def launch(
        self,
        name: str,
        arguments: Sequence[Any],
        grid: Sequence[int],
        block: Sequence[int],
        smem: int = 0,
        cluster: Sequence[int] = (1, 1, 1),
    ) -> None:
        """Runs a kernel named by its mangled name or a part of it.

        An argument is a tensor (its address is passed), bytes (a struct), or a number that
        torch.tensor turns into the parameter's size. Tensors inside a struct are not seen: pass
        them through :class:`ptxrun.memory.DeviceMemory` and put the addresses in yourself.
        """
        name = self._name(name)
        tensors = [(f"argument {i}", x) for i, x in enumerate(arguments) if torch.is_tensor(x)]
        memory = DeviceMemory(tensors)
        try:
            layout = self._module.parameters(name)
            packed = bytearray(max((offset + size for offset, size in layout), default=0))
            for (offset, size), value in zip(layout, arguments, strict=True):
                if torch.is_tensor(value):
                    value = memory.to_device(value).data_ptr().to_bytes(8, "little")
                elif isinstance(value, int):
                    value = (value % (1 << (8 * size))).to_bytes(size, "little")
                if len(value) != size:
                    raise ValueError(f"a parameter has {size} bytes, got {len(value)}")
                packed[offset : offset + size] = value
            self._module.launch(name, bytes(packed), list(grid), list(block), smem, list(cluster))
            raise_reports()
        finally:
            memory.release()


class Row(NamedTuple):
    """What one instruction did in all launches so far; sectors and wavefronts are a model."""

    kernel: str
    line: int
    opcode: str
    runs: int
    lanes: int
    bytes: int
    sectors: int
    ideal_sectors: int
    waves: int
    ideal_waves: int


def counters(reset: bool = False) -> list[Row]:
    rows = [Row(*row) for row in _ptxrun.counters()]
    if reset:
        _ptxrun.reset_counters()
    return rows


class Total(NamedTuple):
    launches: int
    instructions: int
    matrix: int


def totals() -> dict[str, Total]:
    return {name: Total(*total) for name, total in _ptxrun.totals().items()}
