"""Does a column of a matrix instruction's result depend on its place, or on how many there are?

python -m suite.columns [--emulated]        JSON rows; bench and tools/ptxrun on PYTHONPATH

Row invariance on hardware rests on this: tokens are columns of mma.sync and wgmma. Every case of
ptxrun's corpus that has them is run with the same numbers in each column of B and zeros in C. For
wgmma the columns of every n are compared with those of the first n too.
"""

import argparse
import json
import re
from collections.abc import Iterator

import numpy as np
from corpus.case import Case, Words
from corpus.cases import all_cases, runs_on
from corpus.values import generator, words_of

HOW = ("normal", "spread", "cancel")
MMA = re.compile(r"mma/m16n8k\d+\.(\w+)\.(\w+)\.(\w+)\.\w+/normal$")
# K-major operands in shared memory, swizzled in rows of 128 bytes.
WGMMA = re.compile(r"wgmma/(?:\w+\.\w+/normal/shared|layout/n\d+|layout/swizzle128/kk)$")
INSTRUCTION = re.compile(r"m64n(\d+)k\d+\.(\w+)\.(\w+)\.\w+")
ROW_WORDS = 32  # of 128 bytes


def mma_with_equal_columns(case: Case, kinds: tuple[str, str], how: str) -> Case:
    """Lane i holds a part of column i // 4 of B: that of lane i % 4."""
    a, b, c = case.inputs
    rng = generator(f"columns/{case.name}/{how}")
    a = words_of(rng, a.shape, kinds[0], how)
    b = words_of(rng, b.shape, kinds[1], how)[:, :, np.arange(32) % 4]
    return case._replace(inputs=[a, np.ascontiguousarray(b), np.zeros_like(c)])


def mma_columns(d: Words, sums: str) -> np.ndarray:
    """[tiles, 16, 8] of bits. Lane i holds rows i // 4 and i // 4 + 8, columns i % 4 * 2 and the
    next."""
    values = d.view(np.uint16) if sums == "f16" else d
    if sums == "f16":
        values = values.reshape(*d.shape, 2).transpose(0, 1, 3, 2)  # [tiles, 2, 2, 32]
    halves = values.reshape(len(d), 2, 2, 8, 4)  # row's half, column's parity, row, column // 2
    return halves.transpose(0, 1, 3, 4, 2).reshape(len(d), 16, 8)


def wgmma_with_equal_columns(case: Case, kind: str, how: str) -> Case:
    """B: each column is a row of 128 bytes, whose 16-byte chunks lie at chunk ^ column % 8."""
    a, b, c = case.inputs
    rng = generator(f"columns/wgmma/{kind}/{how}")  # the same for every n
    a, column = words_of(rng, a.shape, kind, how), words_of(rng, (8, 4), kind, how)
    places = np.arange(len(b) // ROW_WORDS)[:, None] % 8 ^ np.arange(8)
    return case._replace(inputs=[a, column[places].reshape(b.shape), np.zeros_like(c)])


def wgmma_columns(d: Words, sums: str) -> np.ndarray:
    """[64, n] of bits."""
    values = d[0] if sums != "f16" else d.view(np.uint16).reshape(*d.shape[1:], 2)
    if sums == "f16":
        values = values.transpose(0, 2, 1).reshape(-1, 128)
    # eights of columns, row's half, column's parity; warp, row, column // 2 of the eight
    parts = values.reshape(-1, 2, 2, 4, 8, 4)
    return parts.transpose(3, 1, 4, 0, 5, 2).reshape(64, -1)


def are_equal(columns: np.ndarray) -> bool:
    return bool((columns == columns[..., :1]).all())


def rows(machine) -> Iterator[dict]:
    cases = {n: c for n, c in all_cases().items() if runs_on(c, machine.capability)}
    for name, case in cases.items():
        if not (match := MMA.match(name)):
            continue
        sums, *kinds = match.groups()
        for how in HOW if sums != "s32" else HOW[:1]:
            d = machine.run(mma_with_equal_columns(case, tuple(kinds), how))
            equal = are_equal(mma_columns(d, sums))
            kind = name.split("/")[1]
            yield {"kind": kind, "n": 8, "operands": how, "columns_equal": equal}
    first: dict[tuple[str, str], np.ndarray] = {}
    found = {name: case for name, case in cases.items() if WGMMA.match(name)}
    for case in found.values():
        n, sums, kind = INSTRUCTION.search(case.ptx).groups()
        for how in HOW if sums != "s32" else HOW[:1]:
            d = machine.run(wgmma_with_equal_columns(case, kind, how))
            columns = wgmma_columns(d, sums)
            same = first.setdefault((f"{sums}.{kind}", how), columns[:, :1])
            yield {
                "kind": f"m64nNk*.{sums}.{kind}",
                "n": int(n),
                "operands": how,
                "columns_equal": are_equal(columns),
                "same_as_other_n": bool((columns[:, :1] == same).all()),
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--emulated", action="store_true", help="ptxrun in place of a GPU")
    if parser.parse_args().emulated:
        from corpus.emulated import Emulated as Machine
    else:
        from corpus.gpu import Gpu as Machine
    print(json.dumps(list(rows(Machine()))))


if __name__ == "__main__":
    main()
