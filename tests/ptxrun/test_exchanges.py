"""shfl, vote, match and redux among the lanes that a mask names."""

from functools import reduce
from operator import and_, or_, xor

import pytest
import torch
from ptxrun_opcode import run
from test_opcodes import signed

LANES = 32
VALUES = [lane * 7 % 5 - 2 for lane in range(LANES)]
MASKS = [0xFFFFFFFF, 0x0F0F00F1]


def among(mask, body, kind="b32", values=VALUES):
    """d of the lanes of the mask; the others do not come."""
    dtype = torch.int64 if kind == "b64" else torch.int32
    text = (
        f"{{ .reg .pred in; .reg .b32 m; shl.b32 m, 1, tid; and.b32 m, m, {signed(mask, 32)}; "
        f"setp.ne.s32 in, m, 0; mov.b32 d, 99; @!in bra OUT; {body} OUT: }}"
    ).replace("MASK", str(signed(mask, 32)))
    got = run(text, "b32", [kind], [torch.tensor(values, dtype=dtype)]).tolist()
    members = [lane for lane in range(LANES) if mask >> lane & 1]
    assert all(got[lane] == 99 for lane in set(range(LANES)) - set(members))
    return members, [got[lane] for lane in members]


REDUCTIONS = {
    "add.s32": sum,
    "min.s32": min,
    "max.s32": max,
    "min.u32": lambda x: min(v & 0xFFFFFFFF for v in x),
    "max.u32": lambda x: max(v & 0xFFFFFFFF for v in x),
    "and.b32": lambda x: reduce(and_, x),
    "or.b32": lambda x: reduce(or_, x),
    "xor.b32": lambda x: reduce(xor, x),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name, mask):
    members, got = among(mask, f"redux.sync.{name} d, a0, MASK;")
    want = REDUCTIONS[name]([VALUES[lane] for lane in members])
    assert got == [signed(want, 32)] * len(members)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("positive", [0, 1, 2, 3])
def test_votes(mask, positive):
    """Nobody, all, some; the same in all."""
    values = [[-1] * LANES, [1] * LANES, VALUES, [3 - v for v in VALUES]][positive]
    members = [lane for lane in range(LANES) if mask >> lane & 1]
    says = [values[lane] > 0 for lane in members]
    ballot = sum(1 << lane for lane, yes in zip(members, says, strict=True) if yes)
    p = ".reg .pred p, r; setp.gt.s32 p, a0, 0; "
    for mode, want in (
        ("all", all(says)),
        ("any", any(says)),
        ("uni", len(set(says)) == 1),
    ):
        body = f"{{ {p} vote.sync.{mode}.pred r, p, MASK; selp.b32 d, 1, 0, r; }}"
        assert among(mask, body, values=values)[1] == [int(want)] * len(members), mode
    body = f"{{ {p} vote.sync.ballot.b32 d, p, MASK; }}"
    assert among(mask, body, values=values)[1] == [signed(ballot, 32)] * len(members)


@pytest.mark.parametrize("kind", ["b32", "b64"])
@pytest.mark.parametrize("mask", MASKS)
def test_matches(mask, kind):
    def equals(values):
        members = [lane for lane in range(LANES) if mask >> lane & 1]
        return [signed(sum(1 << j for j in members if values[j] == values[i]), 32) for i in members]

    values = [v << (35 if kind == "b64" else 0) for v in VALUES]
    members, got = among(mask, f"match.any.sync.{kind} d, a0, MASK;", kind, values)
    assert got == equals(values)
    body = f"{{ .reg .pred p; .reg .b32 x; match.all.sync.{kind} d|p, a0, MASK; selp.b32 x, 7, 0, p; xor.b32 d, d, x; }}"
    assert among(mask, body, kind, values)[1] == [0] * len(members)
    same = [values[0]] * LANES
    assert among(mask, body, kind, same)[1] == [x ^ 7 for x in equals(same)]
