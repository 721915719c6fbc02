import math

import pytest
import torch
from bounds import assert_within
from calls import spread
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sequences import make_call, same_bits

from dflash_ops import Attended, merge_states, reference, tree_attention

OP = torch.ops.dflash.merge_states
FLOATS = [torch.float32, torch.bfloat16, torch.float16]


def random_states(rows, heads, dim, dtype=torch.float32, seed=0, empty=0.3):
    """(out_a, lse_a, out_b, lse_b), some of them empty: then out is NaN."""
    g = torch.Generator().manual_seed(seed)
    states = []
    for _ in "ab":
        out = torch.randn(rows, heads, dim, generator=g).to(dtype)
        lse = torch.randn(rows, heads, generator=g) * 4
        is_empty = torch.rand(rows, heads, generator=g) < empty
        states += [
            out.masked_fill(is_empty[..., None], math.nan),
            lse.masked_fill(is_empty, -math.inf),
        ]
    return states


def merge(device, *states, sinks=None):
    want = reference.merge_states(*states, sinks=sinks)
    moved = None if sinks is None else sinks.to(device)
    got = Attended(*(x.cpu() for x in merge_states(*(x.to(device) for x in states), sinks=moved)))
    largest = torch.stack([states[0], states[2]]).double().nan_to_num(0).abs().amax(0)
    lse = want.lse.where(want.lse.isfinite(), 0).abs()
    terms = 1 + lse + torch.stack([states[1], states[3]]).double().nan_to_num(0, 0, 0).abs().amax(0)
    assert_within(got.out, want.out, largest * terms[..., None])
    assert_within(got.lse, want.lse, terms)
    return got


def test_equal_weights_give_the_mean(device):
    a, b = torch.tensor([2.0, 6.0]).expand(1, 1, 2), torch.tensor([4.0, -2.0]).expand(1, 1, 2)
    zero = torch.zeros(1, 1)
    got = merge(device, a, zero, b, zero)
    assert got.out.tolist() == [[[3.0, 2.0]]]
    got = merge(device, a, zero, b, zero, sinks=zero[0])
    assert_within(got.out, torch.tensor([[[2.0, 4 / 3]]], dtype=torch.float64), 1.0)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("dim", [1, 72, 300])
def test_instruction_sets_change_no_bit(each_isa, dtype, dim):
    states = [x.nan_to_num(0, neginf=-math.inf) for x in random_states(9, 5, dim, dtype)]
    first, *others = each_isa(lambda: merge_states(*states, sinks=torch.ones(5)))
    assert all(same_bits(other, first) for other in others)


@pytest.mark.parametrize("dtype", FLOATS)
def test_an_empty_side_passes_the_others_bits(device, dtype):
    out_a, lse_a, out_b, lse_b = random_states(9, 4, 24, dtype, empty=0)
    out_a[0, 0, 0] = lse_a[0, 0] = -0.0
    none = torch.full_like(lse_a, -math.inf)
    nan = torch.full_like(out_a, math.nan)
    got = merge(device, out_a, lse_a, nan, none)
    assert same_bits(got, (out_a, lse_a))
    assert got.out[0, 0, 0].signbit() and got.lse[0, 0].signbit()
    assert same_bits(merge(device, nan, none, out_b, lse_b), (out_b, lse_b))
    for sinks in (None, torch.zeros(4)):
        both = merge(device, nan, none, nan, none, sinks=sinks)
        assert same_bits(both, (torch.zeros_like(nan), none))


@settings(max_examples=60)
@example(rows=2, heads=3, dim=520, dtype=torch.float32, sinks=None, seed=0)
@given(
    rows=st.sampled_from([0, 1, 2, 65]),
    heads=st.sampled_from([1, 3, 32]),
    dim=st.sampled_from([1, 8, 72, 256, 520]),
    dtype=st.sampled_from(FLOATS),
    sinks=st.sampled_from([None, *FLOATS]),
    seed=st.integers(0, 2**31 - 1),
)
def test_equals_reference(device, rows, heads, dim, dtype, sinks, seed):
    if sinks is not None:
        sinks = torch.linspace(-3, 9, heads).to(sinks)
    merge(device, *random_states(rows, heads, dim, dtype, seed), sinks=sinks)


@pytest.mark.parametrize("split", [0, 1, 64, 100, 512, 700])
def test_merges_attention_over_split_keys(device, split):
    """The keys before and from `split` on, by kv_start and by the length of the context."""
    call = make_call([(700, 1, False)])
    sinks = torch.linspace(-1, 5, 4)
    states = [
        tree_attention(**call | {"kv_start": torch.tensor([split])}),
        tree_attention(**earlier(call, split)),
    ]
    got = merge(device, *states[0], *states[1], sinks=sinks)
    want = reference.tree_attention(**call, sinks=sinks)
    assert_within(got.out, want.out, 20.0)
    assert_within(got.lse, want.lse, 20.0)


def earlier(call, split):
    """A tree of one node that sees the committed keys before `split` only, and not itself."""
    return call | {
        "ctx_lens": torch.tensor([split]),
        "mask_bits": torch.zeros(1, 1, dtype=torch.int32),
        "depth": torch.zeros(1, dtype=torch.int64),
    }


def test_a_row_is_alone(device):
    states = random_states(70, 4, 40, torch.bfloat16)
    whole = merge(device, *states)
    for row in (0, 33, 69):
        assert same_bits(
            merge(device, *(x[row : row + 1] for x in states)), [x[row : row + 1] for x in whole]
        )


def test_nan_and_infinity(device):
    out = torch.ones(3, 1, 2)
    lse = torch.tensor([[math.nan], [math.inf], [0.0]])
    got = merge_states(out.to(device), lse.to(device), out.to(device), lse.flip(0).to(device))
    assert got.out.isnan().flatten().tolist() == [True] * 6
    assert got.lse.isnan().flatten().tolist() == [True] * 3


def test_any_stride_and_in_place(device):
    states = [x.to(device) for x in random_states(9, 3, 8, torch.float16)]
    want = merge_states(*states)
    spaced = [spread(x, math.nan) for x in states]
    out = Attended(spread(torch.zeros_like(want.out)), spread(torch.zeros_like(want.lse)))
    assert merge_states(*spaced, out=out) is out
    assert same_bits(out, want)
    merge_states(*spaced, out=Attended(spaced[0], spaced[1]))
    assert same_bits(spaced[:2], want)


def test_addresses_past_32_bits(device):
    buffer = torch.empty(2**32 + 2**12, dtype=torch.bfloat16, device=device)  # few pages touched
    states = [x.to(device) for x in random_states(3, 2, 8, torch.bfloat16)]
    far = [buffer.as_strided((3, 2, 8), (2**31, 8, 1), 2**10 * i) for i in range(3)]
    far[0].copy_(states[0])
    far[1].copy_(states[2])
    lse = torch.empty_like(states[1])
    merge_states(far[0], states[1], far[1], states[3], out=Attended(far[2], lse))
    assert same_bits((far[2], lse), merge_states(*states))


def valid_call():
    names = ("out_a", "lse_a", "out_b", "lse_b")
    call = dict(zip(names, random_states(5, 4, 8), strict=True)) | {"sinks": torch.zeros(4)}
    return call, {"out": torch.zeros(5, 4, 8), "lse": torch.zeros(5, 4)}


# fmt: off
WRONG = [
    ("out_a", torch.zeros(5, 4, 8).double(), TypeError, "out_a must be bfloat16 or float16 or float32, got float64"),
    ("out_a", torch.zeros(5, 4), ValueError, "out_a must have shape [T, Hq, Dv] = [*, *, *], got [5, 4]"),
    ("lse_a", torch.zeros(5, 4).half(), TypeError, "lse_a must be float32, got float16"),
    ("lse_a", torch.zeros(5, 3), ValueError, "lse_a must have shape [T, Hq] = [5, 4], got [5, 3]"),
    ("out_b", torch.zeros(5, 4, 8).half(), TypeError, "out_b must be float32, got float16"),
    ("out_b", torch.zeros(5, 4, 9), ValueError, "out_b must have shape [T, Hq, Dv] = [5, 4, 8], got [5, 4, 9]"),
    ("lse_b", torch.zeros(6, 4), ValueError, "lse_b must have shape [T, Hq] = [5, 4], got [6, 4]"),
    ("sinks", torch.zeros(5), ValueError, "sinks must have shape [Hq] = [4], got [5]"),
    ("out", torch.zeros(5, 4, 7), ValueError, "out must have shape [T, Hq, Dv] = [5, 4, 8], got [5, 4, 7]"),
    ("lse", torch.zeros(4, 4), ValueError, "lse must have shape [T, Hq] = [5, 4], got [4, 4]"),
]
# fmt: on


@pytest.mark.parametrize(("name", "value", "error", "text"), WRONG)
def test_names_what_is_wrong(name, value, error, text):
    call, out = valid_call()
    (out if name in out else call)[name] = value
    with pytest.raises(error) as from_python:
        merge_states(**call, out=Attended(**out))
    with pytest.raises(RuntimeError) as from_op:
        OP.out(**call, **out)
    assert str(from_python.value) == str(from_op.value) == f"merge_states: {text}"


def test_names_the_wrong_device():
    call = valid_call()[0] | {"lse_b": torch.zeros(5, 4, device="meta")}
    with pytest.raises(ValueError, match="merge_states: lse_b must be on cpu, got meta"):
        merge_states(**call)


def test_opcheck(device):
    states = [x.to(device) for x in random_states(5, 4, 8, empty=0)]
    sinks = torch.zeros(4, device=device)
    torch.library.opcheck(OP.default, states, {"sinks": sinks})
    outs = {"out": torch.empty_like(states[0]), "lse": torch.empty_like(states[1])}
    torch.library.opcheck(OP.out, states, outs)


def test_compiles_whole(device):
    compiled = torch.compile(merge_states, fullgraph=True)
    for rows in (5, 9):
        states = [x.to(device) for x in random_states(rows, 4, 8, empty=0)]
        assert same_bits(compiled(*states), merge_states(*states))
