"""Runs the PTX of CUDA kernels on a CPU, with checks and counters. See README.md.

``Module(path).launch(...)`` runs one kernel. ``emulated()`` sends every dflash op on CPU tensors
through its CUDA launcher.
"""

from ._ptxrun import Error, Landing, MmaMode, Order, options
from .counters import by_kernel, counters, matrix_kind, totals
from .device import emulated
from .machine import MACHINES
from .memory import KernelError
from .model import model_of, model_table
from .module import Module, Program, compiled, edited, using
from .report import table
from .sass import images, resources

__all__ = [
    "MACHINES",
    "Error",
    "KernelError",
    "Landing",
    "MmaMode",
    "Module",
    "Order",
    "Program",
    "by_kernel",
    "compiled",
    "counters",
    "edited",
    "emulated",
    "images",
    "matrix_kind",
    "model_of",
    "model_table",
    "options",
    "resources",
    "table",
    "totals",
    "using",
]
