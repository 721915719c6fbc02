"""Whether a record says what ptxrun says."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

import ptxrun
from ptxrun import MmaMode

from .case import Case, Compare, Words
from .emulated import Emulated
from .products import operands_as_magnitudes

MODES = (MmaMode.CHAINED, MmaMode.BLOCK_TRUNCATED, MmaMode.PERMUTED)
# Of the sum of magnitudes: what tests/ptxrun assumes of every mode, so what a GPU must keep.
SUM_ERROR = 2.0**-21
# Exact function; error in ulps of the result, relative, and absolute: as core/approx.h has them.
APPROX: dict[str, tuple[Callable[..., NDArray], float, float, float]] = {
    "ex2": (np.exp2, 2, 0, 0),
    "lg2": (np.log2, 0, 2.0**-22, 2.0**-22),
    "rcp": (lambda x: 1 / x, 1, 0, 0),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 2, 0, 0),
    "sqrt": (np.sqrt, 2, 0, 0),
    "sin": (np.sin, 0, 0, 2.0**-20.5),
    "cos": (np.cos, 0, 0, 2.0**-20.5),
    "tanh": (np.tanh, 0, 2.0**-11, 0),
    "div": (np.divide, 2, 0, 0),
}


def _floats(words: Words, kind: str) -> NDArray:
    values = words.view(np.float16 if kind == "f16" else np.float32)
    return values.astype(np.float64)


def _disagreement(got: NDArray, want: NDArray, allowed: NDArray) -> str:
    """Where floats are further apart than allowed, or NaN in different places."""
    both = np.isfinite(got) & np.isfinite(want)
    bad = np.isnan(got) != np.isnan(want)
    with np.errstate(invalid="ignore"):
        bad |= ~both & ~np.isnan(want) & (got != want) & ~np.isinf(allowed)
        bad |= both & ~(np.abs(got - want) <= allowed)
    if not bad.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(bad)[0])
    return f"{int(bad.sum())} of {bad.size} values, first at {at}: {got[at]!r}, not {want[at]!r}"


def _ulp(x: NDArray) -> NDArray:
    _, exponent = np.frexp(x)
    return 2.0 ** (np.maximum(exponent, -125) - 24.0)


def sums_disagree(case: Case, recorded: Words, machine: Emulated) -> str:
    kind = "f16" if "f16.f16" in case.name and "f32" not in case.name else "f32"
    terms = _floats(machine.run(operands_as_magnitudes(case)), kind)
    want = _floats(machine.run(case), kind)
    rounding = np.abs(want) * 2.0**-10 if kind == "f16" else 0
    return _disagreement(_floats(recorded, kind), want, 2 * SUM_ERROR * np.abs(terms) + rounding)


def approx_disagrees(case: Case, recorded: Words) -> str:
    name = case.name.split("/")[1]
    exact, ulps, relative, absolute = APPROX[name.split(".")[0]]
    x = [words.view(np.float32) for words in case.inputs]
    if ".ftz" in name:
        x = [np.where(np.abs(v) < 2.0**-126, np.copysign(0, v), v) for v in x]
    with np.errstate(all="ignore"):
        want = exact(*(v.astype(np.float64) for v in x))
        want32 = want.astype(np.float32).astype(np.float64)  # ulps count from the rounded result
        allowed = ulps * _ulp(want32) + relative * np.abs(want) + absolute
    got = _floats(recorded, "f32")
    with np.errstate(invalid="ignore"):  # denormals: results of .ftz and some others are 0
        small = np.abs(want) < 2.0**-126
        inside = ~(small & (np.abs(got) <= 2.0**-126))
        if name.startswith("div"):  # defined for denominators from 2^-126 to 2^126
            inside &= (np.abs(x[1]) >= 2.0**-126) & (np.abs(x[1]) <= 2.0**126)
            inside &= np.isfinite(x[1])
        if name.startswith(("rcp", "rsqrt", "sqrt")):  # denormal operands have rules of their own
            inside &= (np.abs(x[0]) >= 2.0**-126) | (x[0] == 0)
    return _disagreement(got[inside], want32[inside], allowed[inside])


def disagreement(case: Case, recorded: Words, machine: Emulated) -> str:
    """What a record has that ptxrun has not; empty: they agree."""
    if case.compare is Compare.TRAFFIC:
        counts = machine.traffic(case)
        same = tuple(int(n) for n in recorded) in {counts, (counts[0], 0), (0, counts[1])}
        return "" if same else f"{recorded.tolist()} sectors and wavefronts, not {counts}"
    if case.compare is Compare.SUMS:
        return sums_disagree(case, recorded, machine)
    if case.compare is Compare.APPROX:
        return approx_disagrees(case, recorded)
    different = recorded != machine.run(case)
    return f"{int(different.sum())} of {different.size} words differ" if different.any() else ""


def equal_modes(case: Case, recorded: Words, machine: Emulated) -> list[str]:
    """The modes of matrix sums that give a record's very bits."""
    same = []
    for mode in MODES:
        with ptxrun.using(mma=mode):
            if np.array_equal(machine.run(case), recorded):
                same.append(str(mode).rpartition(".")[2])
    return same
