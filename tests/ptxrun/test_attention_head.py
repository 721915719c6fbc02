"""An attention head as most are written: right in every schedule, and no instruction to spare."""

import attention_head
import ptxrun
import pytest
from dropped import drop, shift, survivors
from ptxrun.schedules import MATRIX


@pytest.fixture(scope="module")
def program():
    return attention_head.program()


def run(program, num_keys):
    operands = attention_head.operands(num_keys)
    out = attention_head.launch(program, *operands)
    want, weighted = attention_head.reference(*operands)
    # The weights are rounded to bf16; scores of size 4 are sums in float.
    assert ((out - want).abs() <= weighted * 2.0**-8).all()
    return out


@pytest.mark.parametrize("num_keys", [16, 77, 128, 512])
def test_equals_reference(program, num_keys):
    run(program, num_keys)


def test_in_every_schedule(program):
    for options in MATRIX:
        with ptxrun.using(**options):
            run(program, 130)


@pytest.mark.parametrize(
    ("pattern", "change", "unnoticed"),
    [
        (r"bar\.sync", drop, 0),
        (r"cp\.async\.wait_group", drop, 0),
        (r"cp\.async\.commit_group", drop, 0),
        (r"cp\.async\.cg", drop, 0),
        (r"ldmatrix", drop, 0),
        (r"mma\.sync", drop, 0),
        (r"shfl\.sync", drop, 0),
        (r"(?:atom|red)\.shared", drop, 0),
        (r"st\.(?:shared|global)", drop, 0),
        (r"cp\.async\.cg", shift(0), 0),
        (r"cp\.async\.cg", shift(1), 0),
        (r"ldmatrix", shift(0), 0),
        (r"(?:atom|red)\.shared", shift(0, 4), 0),
        (r"(?:st|ld)\.(?:shared|global)", shift(0), 0),
    ],
)
def test_needs_each(program, pattern, change, unnoticed):
    found = survivors(lambda: run(program, 145), "attention", rf"(?:{pattern})", change)
    assert len(found) == unnoticed, found
