"""Counters as a table, by kernel and source line; sectors and wavefronts are a model."""

from collections import Counter
from collections.abc import Iterable

from .counters import KernelSum, Row, by_kernel

SUMS = ("runs", "lanes", "bytes", "sectors", "ideal_sectors", "waves", "ideal_waves")
HEAD = ("line", "warp instr", "SIMD", "bytes", "sectors", "ideal", "wavefronts", "ideal")


def _summary(kernel: KernelSum) -> list[str]:
    t = kernel.total
    shared = t.static_shared + t.dynamic_shared
    counts = [f"{name} {count}" for name, count in kernel.classes.most_common()]
    lines = [
        kernel.kernel,
        f"  {t.launches} launches, {t.ctas} CTAs of {t.threads} threads, {shared} bytes shared",
        f"  by class: {', '.join(counts)}",
    ]
    if kernel.matrix:
        kinds = (f"{count} x {kind}" for kind, count in sorted(kernel.matrix.items()))
        lines.append(f"  matrix: {', '.join(kinds)}")
    if t.in_flight:
        lines.append(f"  at most {t.in_flight} bytes of asynchronous loads under way in a CTA")
    return lines


def _row(label: object, c: Counter[str]) -> str:
    simd = f"{c['lanes'] / (32 * max(c['runs'], 1)):.2f}"
    numbers = (label, c["runs"], simd, *(c[name] for name in SUMS[2:]))
    return " " * 26 + "".join(f"{number:>12}" for number in numbers)


def table(rows: Iterable[Row]) -> str:
    rows = list(rows)
    text = ["model, not a measurement; " + "".join(f"{name:>12}" for name in HEAD)]
    for kernel in sorted(by_kernel(rows), key=lambda k: k.kernel):
        text += _summary(kernel)
        lines: dict[int, Counter[str]] = {}
        for row in rows:
            if row.kernel == kernel.kernel:
                values = {name: getattr(row, name) for name in SUMS}
                lines.setdefault(row.line, Counter()).update(values)
        text += [_row(line, c) for line, c in sorted(lines.items())]
        text.append(_row("all", sum(lines.values(), Counter())))
    return "\n".join(text)
