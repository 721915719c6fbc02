"""PTX files and single kernels."""

import ctypes
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


def _ccache() -> list[str]:
    """From its PyPI package. What it keeps outlives this tree, and another installation of nvcc."""
    ccache = Path(sys.executable).with_name("ccache")
    return [str(ccache), "compiler_check=content"] if ccache.exists() else []


def _run(*command: Any) -> None:
    subprocess.run(command, check=True)


def _kept(source: Path, command: Sequence[str], suffix: str, make: Callable[[Path], None]) -> Path:
    """What nvcc makes of a file, by a hash of what goes into it. One process makes it, all wait."""
    whole = subprocess.run([*command, "-E", source], check=True, capture_output=True).stdout
    key = hashlib.sha256(whole + repr(command).encode()).hexdigest()[:32]
    path = CACHE / f"{key}{suffix}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            partial = CACHE / f"{key}.partial{suffix}"
            make(partial)
            partial.rename(path)
    return path


def compiled(source: Path, arch: str, flags: Sequence[str] = ()) -> str:
    """The PTX of a .cu file."""
    command = [nvcc(), "-std=c++20", "-lineinfo", f"-arch={arch}", *flags]
    path = _kept(source, command, ".ptx", lambda to: _run(*command, "-ptx", source, "-o", to))
    return path.read_text()


class Program:
    """A .cu file with host code: its launches go to the emulated device."""

    def __init__(self, source: Path, arch: str, flags: Sequence[str] = ()) -> None:
        virtual = arch.replace("sm_", "compute_")
        command = [nvcc(), "-std=c++17", "-O1", "-lineinfo", "--expt-relaxed-constexpr", "-w"]
        command += ["--no-compress", "-gencode", f"arch={virtual},code={virtual}", *flags]
        command += ["-Xcompiler", "-fPIC"]
        link = [nvcc(), "-shared", "-cudart", "none", f"-L{HERE}", "-lptxrun_cudart"]

        def make(library: Path) -> None:
            with tempfile.TemporaryDirectory(dir=CACHE) as folder:
                host = Path(folder) / "host.o"
                _run(*_ccache(), *command, "-c", source, "-o", host)
                _run(*link, host, "-o", library)

        ctypes.CDLL(str(HERE / "libptxrun_cudart.so"))
        self._library = ctypes.CDLL(str(_kept(source, command, ".so", make)))
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
        params: Sequence[Any] | bytes | ctypes.Structure,
        grid: Sequence[int],
        block: Sequence[int],
        smem: int = 0,
        cluster: Sequence[int] = (1, 1, 1),
        restored: Sequence[torch.Tensor] = (),
        tensors: Mapping[str | int, torch.Tensor] | None = None,
        checks: bool | None = None,
    ) -> None:
        """Runs a kernel named by its mangled name or a part of it.

        Args:
            params: one value per parameter: a tensor (its address is passed), bytes or a
                ctypes.Structure (a struct), or a number that is cut to the parameter's size. Or the
                one struct itself that the kernel takes.
            smem: bytes of dynamic shared memory.
            tensors: the tensors that `params`, a struct, points to: by field ("x", "k.data") or by
                the byte offset of the pointer. A kernel may touch these tensors and nothing else.
            checks: on or off, for this launch.
            restored: tensors that must be at exit what they were: a workspace.
        Raises:
            KernelError: a check failed.
        """
        name = self._name(name)
        layout = self._module.parameters(name)
        is_struct = isinstance(params, (bytes, ctypes.Structure))
        values = [params] if is_struct else list(params)
        named = [(f"argument {i}", x) for i, x in _tensors(values)]
        named += [(str(field), x) for field, x in (tensors or {}).items()]
        memory = DeviceMemory(named)
        try:
            packed = bytearray(max((offset + size for offset, size in layout), default=0))
            before = [x.clone() for x in restored]
            for (offset, size), value in zip(layout, values, strict=True):
                data = _bytes_of(value, size, memory)
                if len(data) != size:
                    raise ValueError(f"a parameter has {size} bytes, got {len(data)}")
                packed[offset : offset + size] = data
            for field, tensor in (tensors or {}).items():
                at = field if isinstance(field, int) else _field_offset(params, field)
                packed[at : at + 8] = _bytes_of(tensor, 8, memory)
            arguments = (bytes(packed), list(grid), list(block), smem, list(cluster))
            with using(**({} if checks is None else {"checks": checks})):
                self._module.launch(name, *arguments)
            raise_reports()
            _check_restored(named, restored, before)
        finally:
            memory.release()


def _check_restored(
    named: Sequence[tuple[str, torch.Tensor]],
    restored: Sequence[torch.Tensor],
    before: Sequence[torch.Tensor],
) -> None:
    for x, old in zip(restored, before, strict=True):
        if not torch.equal(x.view(torch.uint8), old.view(torch.uint8)):
            name = next(name for name, tensor in named if tensor is x)
            raise KernelError(f"{name} is not as it was before the launch")


def _bytes_of(value: Any, size: int, memory: DeviceMemory) -> bytes:
    if torch.is_tensor(value):
        return memory.to_device(value).data_ptr().to_bytes(8, "little")
    if isinstance(value, int):
        return (value % (1 << (8 * size))).to_bytes(size, "little")
    return bytes(value)


def _field_offset(params: Any, path: str) -> int:
    if not isinstance(params, ctypes.Structure):
        raise TypeError(f"tensors: {path!r} names a field, but params is no ctypes.Structure")
    offset, kind = 0, type(params)
    for name in path.split("."):
        offset += getattr(kind, name).offset
        kind = dict(kind._fields_)[name]
    return offset
