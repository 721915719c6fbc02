"""What launches did since the last reset. Sectors, wavefronts and classes are a model of the GPU.

A row is one PTX instruction of a kernel; :func:`by_kernel` adds the rows of each kernel up.
"""

import re
from collections import Counter
from typing import NamedTuple

from . import _ptxrun


class Row(NamedTuple):
    """What one instruction did in all launches so far."""

    kernel: str
    line: int
    ptx_line: int
    opcode: str
    runs: int  # warp instructions
    lanes: int  # active in them
    bytes: int  # asked of memory
    sectors: int  # of 32 bytes, asked of global memory
    ideal_sectors: int  # that could hold the distinct bytes of each warp instruction
    waves: int  # of shared memory: 128 bytes a cycle, if no two lanes need the same bank
    ideal_waves: int


class Total(NamedTuple):
    """A kernel's launches together; shapes are those of the last one."""

    launches: int
    instructions: int
    matrix: int  # 16 x 8 products
    ctas: int
    threads: int  # of a CTA
    static_shared: int
    dynamic_shared: int
    in_flight: int  # bytes of asynchronous loads that a CTA had under way at most
    footprint: dict[str, tuple[int, int]]  # sectors read and written by tensor: option footprint


_CLASSES = {
    "matrix": "mma wgmma",
    "matrix load": "ldmatrix stmatrix movmatrix",
    "copy": "cp",
    "atomic": "atom red",
    "exchange": "shfl vote match redux activemask elect",
    "barrier": "bar barrier",
    "mbarrier": "mbarrier",
    "fence": "fence membar griddepcontrol",
    "branch": "bra brx ret exit call",
    "convert": "cvt",
    "compare": "setp set selp slct testp",
    "move": "mov cvta mapa prefetch",
    "approx": "ex2 lg2 rcp rsqrt sqrt sin cos tanh div",
}
_CLASS_OF = {name: kind for kind, names in _CLASSES.items() for name in names.split()}
_FLOAT = re.compile(r"\.(f16|bf16|f32|f64)(x2)?\b")
_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")
_SPACES = ("global", "shared", "local", "param", "const")


def class_of(opcode: str) -> str:
    """What kind of work an opcode is: "matrix", "ld.shared", "float", "integer", ..."""
    first, *rest = opcode.split(".")
    if first in ("ld", "ldu", "st"):
        space = next((s for part in rest for s in _SPACES if part.startswith(s)), "generic")
        return f"{first[:2]}.{space}"
    if first in ("div", "sqrt", "rcp") and not _FLOAT.search(opcode):
        return "integer"
    if first == "wgmma" and "mma_async" not in rest:
        return "fence"
    return _CLASS_OF.get(first) or ("float" if _FLOAT.search(opcode) else "integer")


def matrix_kind(opcode: str) -> str:
    """Of an mma or wgmma, such as m16n8k16.f32.bf16.bf16.f32; of any other opcode ""."""
    if class_of(opcode) != "matrix":
        return ""
    drop = {"mma", "wgmma", "mma_async", "sync", "aligned", "row", "col"}
    return ".".join(part for part in opcode.split(".") if part not in drop)


def multiply_adds(kind: str) -> int:
    """Of one instruction; a wgmma is issued by four warps, each for a quarter of the rows."""
    m, n, k = (int(x) for x in _SHAPE.search(kind).groups())
    return min(m, 16) * n * k


class KernelSum(NamedTuple):
    """All that a kernel's instructions did."""

    kernel: str
    total: Total
    bytes: int
    sectors: int
    ideal_sectors: int
    waves: int
    ideal_waves: int
    simd: float  # active lanes of 32
    barriers: int  # warps that came to one
    classes: Counter[str]  # warp instructions by class
    matrix: Counter[str]  # by kind


def by_kernel(rows: list[Row] | None = None) -> list[KernelSum]:
    rows = counters() if rows is None else rows
    known = totals()
    result = []
    for kernel in dict.fromkeys(row.kernel for row in rows):
        own = [row for row in rows if row.kernel == kernel]
        classes: Counter[str] = Counter()
        matrix: Counter[str] = Counter()
        for row in own:
            classes[class_of(row.opcode)] += row.runs
            if kind := matrix_kind(row.opcode):
                matrix[kind] += row.runs
        sums = (sum(getattr(r, name) for r in own) for name in Row._fields[6:])
        simd = sum(r.lanes for r in own) / (32 * sum(r.runs for r in own))
        barriers = classes["barrier"]
        result.append(KernelSum(kernel, known[kernel], *sums, simd, barriers, classes, matrix))
    return result


def counters(reset: bool = False) -> list[Row]:
    rows = [Row(*row) for row in _ptxrun.counters()]
    if reset:
        _ptxrun.reset_counters()
    return rows


def totals() -> dict[str, Total]:
    return {name: Total(*total) for name, total in _ptxrun.totals().items()}
