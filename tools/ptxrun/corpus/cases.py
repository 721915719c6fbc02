"""All cases."""

import functools

from .case import Case
from .moves import matrix_cases, tensor_cases
from .patterns import pattern_cases
from .products import mma_cases, wgmma_cases
from .scalars import scalar_cases

FAMILIES = (mma_cases, wgmma_cases, matrix_cases, tensor_cases, scalar_cases, pattern_cases)


@functools.cache
def all_cases() -> dict[str, Case]:
    cases = [case for family in FAMILIES for case in family()]
    assert len({case.name for case in cases}) == len(cases)
    return {case.name: case for case in cases}


def runs_on(case: Case, capability: int) -> bool:
    """sm_90a runs on 90 alone, sm_80 on all that follow."""
    wanted = case.target.removeprefix("sm_")
    if wanted.endswith("a"):
        return capability == int(wanted[:-1])
    return capability >= int(wanted)
