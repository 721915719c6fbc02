"""PTX files and single kernels."""

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from . import _ptxrun
from .device import raise_reports
from .memory import DeviceMemory, KernelError

CACHE = Path(__file__).parents[2] / "build" / "ptx"


HERE = Path(__file__).parent


@functools.cache
def nvcc() -> str:
    """From its PyPI package, from CUDACXX, or from PATH."""
    package = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "bin" / "nvcc"
    found = str(package) if package.exists() else os.environ.get("CUDACXX") or shutil.which("nvcc")
    if found is None:
        raise FileNotFoundError("no nvcc")
    return found


def _built(source: Path, command: Sequence[str], suffix: str, more: Sequence[str]) -> Path:
    """What nvcc makes of a file, kept by a hash of what goes into it."""
    whole = subprocess.run([*command, "-E", source], check=True, capture_output=True).stdout
    key = hashlib.sha256(whole + repr((command, more)).encode()).hexdigest()[:32]
    path = CACHE / f"{key}{suffix}"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        partial = CACHE / f"{key}.{os.getpid()}{suffix}"
        subprocess.run([*command, *more, source, "-o", partial], check=True)
        partial.rename(path)
    return path


def compiled(source: Path, arch: str, flags: Sequence[str] = ()) -> str:
    """The PTX of a .cu file."""
    command = [nvcc(), "-std=c++20", "-lineinfo", f"-arch={arch}", *flags]
    return _built(source, command, ".ptx", ["-ptx"]).read_text()


class Program:
    """A .cu file with host code: its launches go to the emulated device."""

    def __init__(self, source: Path, arch: str, flags: Sequence[str] = ()) -> None:
        virtual = arch.replace("sm_", "compute_")
        command = [nvcc(), "-std=c++17", "-O1", "-lineinfo", "--expt-relaxed-constexpr", "-w"]
        command += ["--no-compress", "-gencode", f"arch={virtual},code={virtual}", *flags]
        link = ["-shared", "-cudart", "none", "-Xcompiler", "-fPIC", f"-L{HERE}", "-lptxrun_cudart"]
        path = _built(source, command, ".so", link)
        ctypes.CDLL(str(HERE / "libptxrun_cudart.so"))
        self._library = ctypes.CDLL(str(path))
        self._arch = int(arch.removeprefix("sm_").rstrip("a"))

    def __call__(self, name: str, *arguments: Any) -> int:
        """Calls an extern "C" function; tensors become device pointers, floats are float."""
        memory = DeviceMemory([(f"argument {i}", x) for i, x in _tensors(arguments)])
        try:
            _ptxrun.set_arch(self._arch)
            result = getattr(self._library, name)(*(_native(x, memory) for x in arguments))
            raise_reports()
            return result
        finally:
            memory.release()


def _tensors(arguments: Sequence[Any]) -> list[tuple[int, torch.Tensor]]:
    return [(i, x) for i, x in enumerate(arguments) if torch.is_tensor(x)]


def _native(value: Any, memory: DeviceMemory) -> Any:
    if torch.is_tensor(value):
        return ctypes.c_void_p(memory.to_device(value).data_ptr())
    return ctypes.c_float(value) if isinstance(value, float) else value


@contextmanager
def edited(edit: Callable[[str], str]) -> Iterator[None]:
    """Programs and ops run the edited PTX."""
    _ptxrun.set_edit(edit)
    try:
        yield
    finally:
        _ptxrun.set_edit(lambda text: text)


@contextmanager
def using(**options: Any) -> Iterator[None]:
    """Options of the device for a while: using(order=Order.REVERSE, checks=False)."""
    device = _ptxrun.options()
    before = {name: getattr(device, name) for name in options}
    try:
        for name, value in options.items():
            setattr(device, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(device, name, value)


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
        restored: Sequence[torch.Tensor] = (),
    ) -> None:
        """Runs a kernel named by its mangled name or a part of it.

        An argument is a tensor (its address is passed), bytes (a struct), or a number that
        torch.tensor turns into the parameter's size. Tensors inside a struct are not seen: pass
        them through :class:`ptxrun.memory.DeviceMemory` and put the addresses in yourself.
        `restored` are those of the arguments that must be at exit what they were: a workspace.
        """
        name = self._name(name)
        memory = DeviceMemory([(f"argument {i}", x) for i, x in _tensors(arguments)])
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
            before = [x.clone() for x in restored]
            self._module.launch(name, bytes(packed), list(grid), list(block), smem, list(cluster))
            raise_reports()
            _check_restored(arguments, restored, before)
        finally:
            memory.release()


def _check_restored(
    arguments: Sequence[Any], restored: Sequence[torch.Tensor], before: Sequence[torch.Tensor]
) -> None:
    for x, old in zip(restored, before, strict=True):
        if not torch.equal(x.view(torch.uint8), old.view(torch.uint8)):
            i = next(i for i, argument in _tensors(arguments) if argument is x)
            raise KernelError(f"argument {i} is not as it was before the launch")


class Row(NamedTuple):
    """What one instruction did in all launches so far; sectors and wavefronts are a model."""

    kernel: str
    line: int
    ptx_line: int
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
