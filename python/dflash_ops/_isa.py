"""The instruction set of the CPU kernels. It is state of the op library, not of the extension."""

import ctypes
from pathlib import Path

from . import _C

_LIBRARY = ctypes.CDLL(str(Path(_C.__file__).parent / "libdflash_ops_cpu.so"))
_LIBRARY.dflash_cpu_isa.restype = ctypes.c_char_p
_LIBRARY.dflash_cpu_isas.restype = ctypes.c_char_p
_LIBRARY.dflash_pin_cpu_isa.restype = ctypes.c_bool


def cpu_isa() -> str:
    """Name the instruction set that the CPU kernels use.

    The newest of :func:`cpu_isas`, unless the environment variable DFLASH_CPU_ISA names another or
    :func:`pin_cpu_isa` was called. For the same op all of them give the same bits, but for amx:
    its products of bf16 are a device class of their own.
    """
    name: str = _LIBRARY.dflash_cpu_isa().decode()
    if not name:
        raise ValueError(f"cpu_isa: DFLASH_CPU_ISA must be one of {', '.join(cpu_isas())}")
    return name


def cpu_isas() -> list[str]:
    """Those of portable, avx2, avx512, avx512bf16 and amx that this machine has, oldest first."""
    names: str = _LIBRARY.dflash_cpu_isas().decode()
    return names.split(", ")


def pin_cpu_isa(name: str) -> None:
    """Make the CPU kernels use an instruction set of :func:`cpu_isas` from now on."""
    if not _LIBRARY.dflash_pin_cpu_isa(name.encode()):
        raise ValueError(f"pin_cpu_isa: name must be one of {', '.join(cpu_isas())}, got {name}")
