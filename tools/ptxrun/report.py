"""Counters as a table, by kernel and source line; sectors and wavefronts are a model."""

from collections import Counter
from collections.abc import Iterable

from .module import Row

SUMS = ("runs", "lanes", "bytes", "sectors", "ideal_sectors", "waves", "ideal_waves")


def table(rows: Iterable[Row]) -> str:
    lines: dict[tuple[str, int], Counter[str]] = {}
    for row in rows:
        lines.setdefault((row.kernel, row.line), Counter()).update(
            {name: getattr(row, name) for name in SUMS}
        )
    head = ("line", "warp instr", "SIMD", "bytes", "sectors", "ideal", "wavefronts", "ideal")
    text = ["model, not a measurement; " + "".join(f"{name:>12}" for name in head)]
    last = None
    for (kernel, line), c in sorted(lines.items()):
        if kernel != last:
            text.append(kernel)
            last = kernel
        simd = f"{c['lanes'] / (32 * c['runs']):.2f}"
        numbers = (line, c["runs"], simd, *(c[name] for name in SUMS[2:]))
        text.append(" " * 26 + "".join(f"{number:>12}" for number in numbers))
    return "\n".join(text)
