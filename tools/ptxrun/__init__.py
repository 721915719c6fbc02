"""Runs the PTX of CUDA kernels on a CPU, with checks and counters. See README.md.

``Module(path).launch(...)`` runs one kernel. ``emulated()`` sends every dflash op on CPU tensors
through its CUDA launcher.
"""

from ._ptxrun import Error, Landing, MmaMode, Order, options
from .device import emulated
from .memory import KernelError
from .module import Module, Program, counters, edited, totals, using
from .report import table

__all__ = [
    "Error",
    "KernelError",
    "Landing",
    "MmaMode",
    "Module",
    "Order",
    "Program",
    "counters",
    "edited",
    "emulated",
    "options",
    "table",
    "totals",
    "using",
]
