import pytest
import torch
from bounds import assert_within
from calls import assert_any_strides, assert_compiles_whole, assert_raises_alike
from heads import EDGES, both_layouts, random_head
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_ops import Gathered, Status, lm_head_gather, lm_head_sample, reference

pytestmark = pytest.mark.sm90
OP = torch.ops.dflash.lm_head_gather
INF = float("inf")


@settings(max_examples=40)
@given(
    vocab=st.sampled_from(EDGES) | st.integers(1, 700),
    count=st.sampled_from([1, 3, 16]),
    rows=st.sampled_from([1, 2, 65]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    packed=st.booleans(),
    seed=st.integers(0, 2**31 - 1),
)
def test_exact_inputs_and_ties(device, vocab, count, rows, dtype, packed, seed):
    h, weight, bias = random_head(seed, rows, vocab, 24, dtype, exact=True)
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(-1, vocab, (rows, count), generator=g)
    call = {
        "cu_verify": torch.tensor([0, rows]),
        "temperature": torch.tensor([[0.0, 0.5, 1.0, 2.0][seed % 4]]),
        "vocab_size": vocab,
    }
    got = lm_head_gather(h, both_layouts(weight)[packed], ids, bias, **call)
    want = reference.lm_head_gather(h, weight, ids, bias, **call)
    assert torch.equal(got.ranks, want.ranks)
    for a, b in zip(
        (got.logprobs, got.tempered, got.lse), (want.logprobs, want.tempered, want.lse), strict=True
    ):
        assert_within(a, b, terms=200.0)


def test_agrees_with_the_sampler(device):
    h, weight, bias = random_head(1, 8, 1000, 64, torch.bfloat16, scale=2.0)
    drawn = lm_head_sample(
        h,
        weight,
        bias,
        positions=torch.arange(8),
        cu_verify=torch.arange(9),
        temperature=torch.tensor([0.0, 1.0] * 4),
        seeds=torch.arange(8),
    )
    got = lm_head_gather(h, weight, drawn.ids[:, None], bias)
    assert torch.equal(got.logprobs[:, 0], drawn.logprobs)
    assert (got.ranks[::2] == 0).all() and torch.equal(got.tempered, got.logprobs)


def test_absent_ids_and_padded_rows(device):
    h, weight, _ = random_head(0, 3, 50, 8)
    status = torch.zeros(4, dtype=torch.int32)
    ids = torch.tensor([[-1, 7], [50, 3], [2, 2**40], [1, 1]])
    got = lm_head_gather(
        h,
        weight,
        ids,
        status=status,
        verify_rows=torch.tensor([0, 1, 2, 3]),
        cu_verify=torch.tensor([0, 2, 3, 4]),
        req_rows=torch.tensor([0, -1, 0]),
    )
    assert (got.ranks >= 0).tolist() == [
        [False, True],
        [False, True],
        [False, False],
        [False, False],
    ]
    assert (got.logprobs > -INF).tolist() == (got.ranks >= 0).tolist()
    assert status.tolist() == [0, Status.BAD_DRAFT_ID, 0, Status.OUT_OF_RANGE]


def valid_call():
    h, weight, bias = random_head(0, 3, 40, 8)
    call = {"h": h, "weight": weight, "ids": torch.zeros(3, 2).int(), "bias": bias}
    call |= {
        "cu_verify": torch.arange(4),
        "temperature": torch.ones(3),
        "status": torch.zeros(3).int(),
    }
    out = Gathered(torch.zeros(3, 2), torch.zeros(3, 2), torch.zeros(3, 2).long(), torch.zeros(3))
    return call, out._asdict()


def test_strided_in_place(device):
    call, _ = valid_call()
    assert_any_strides(lm_head_gather, call, ("h", "weight", "bias"))


WRONG = [
    (
        "ids",
        torch.zeros(2, 2).int(),
        ValueError,
        "ids must have shape [Tv, K] = [3, *], got [2, 2]",
    ),
    ("ids", torch.zeros(3, 65).int(), ValueError, "K must be at most 64, got 65"),
    ("cu_verify", None, ValueError, "cu_verify must be given with temperature, got None"),
    ("temperature", torch.ones(3).half(), TypeError, "temperature must be float32, got float16"),
    ("ranks", torch.zeros(3, 2), TypeError, "ranks must be int32 or int64, got float32"),
    (
        "tempered",
        torch.zeros(3, 1),
        ValueError,
        "tempered must have shape [Tv, K] = [3, 2], got [3, 1]",
    ),
]


@pytest.mark.parametrize(("name", "value", "error", "text"), WRONG)
def test_names_what_is_wrong(name, value, error, text):
    call, out = valid_call()
    (out if name in out else call)[name] = value
    assert_raises_alike(lm_head_gather, OP.out, call, out, error, text, Gathered)


def test_opcheck(device):
    call, out = valid_call()
    args = tuple(call.pop(name) for name in ("h", "weight", "ids", "bias"))
    torch.library.opcheck(OP.default, args, call)
    torch.library.opcheck(OP.out, args, call | out)


def test_compiles_whole(device):
    call, _ = valid_call()
    assert_compiles_whole(lm_head_gather, call)
