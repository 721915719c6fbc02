import pytest
import torch
from bounds import assert_within
from calls import assert_compiles_whole, assert_raises_alike
from heads import EDGES, both_layouts, fp32_logits, gemm_terms, random_head
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_ops import _C, Status, TopK, lm_head_topk, reference

pytestmark = pytest.mark.sm90
OP = torch.ops.dflash.lm_head_topk
INF = float("inf")


@settings(max_examples=40)
@given(
    vocab=st.sampled_from(EDGES) | st.integers(1, 700),
    start=st.sampled_from([0, 0, 5, 512]),
    k=st.sampled_from([1, 2, 16, 63, 64]),
    rows=st.sampled_from([1, 2, 65]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    packed=st.booleans(),
    seed=st.integers(0, 2**31 - 1),
)
def test_exact_inputs_and_ties(device, vocab, start, k, rows, dtype, packed, seed):
    """Exact sums: values and ids equal the reference's, ties to the lower id across all blocks."""
    h, weight, bias = random_head(seed, rows, vocab, 24, dtype, exact=True)
    options = {"vocab_start": start, "vocab_size": start + vocab}
    got = lm_head_topk(h, both_layouts(weight)[packed], bias, k=k, **options)
    want = reference.lm_head_topk(h, weight, bias, k=k, **options)
    assert torch.equal(got.ids, want.ids) and torch.equal(got.values.double(), want.values)
    logits = fp32_logits(h, weight, bias)
    lse = [_C.hooks.lse(row.data_ptr(), vocab, start) for row in logits]
    assert torch.equal(got.lse, torch.tensor(lse))


@pytest.mark.parametrize("start", [0, 5, 512, 1536])
def test_sums_merge_by_absolute_id(device, start):
    """Many rows: the logarithm hides most roundings of the sum."""
    g = torch.Generator().manual_seed(0)
    h, weight = torch.rand(600, 1, generator=g) + 0.5, torch.randn(1500, 1, generator=g)
    bias = torch.zeros(1500)
    got = lm_head_topk(h, weight, bias, k=1, vocab_start=start, vocab_size=start + 1500)
    lse = [_C.hooks.lse(row.data_ptr(), 1500, start) for row in fp32_logits(h, weight, bias)]
    assert torch.equal(got.lse, torch.tensor(lse))


def test_close_to_reference(device):
    h, weight, bias = random_head(1, 9, 1500, 300, torch.bfloat16)
    got = lm_head_topk(h, weight, bias, k=20, logit_scale=0.5)
    want = reference.lm_head_topk(h, weight, bias, k=20, logit_scale=0.5)
    terms = gemm_terms(h, weight).amax(dim=1) + 5
    assert_within(got.values, want.values, terms=terms[:, None])
    assert_within(got.lse, want.lse, terms=terms)


def test_absent_entries_and_rows_without_a_finite_logit(device):
    h = torch.tensor([[1.0], [float("nan")], [2.0]], device=device)
    weight = torch.tensor([[1.0], [2.0], [INF]], device=device)
    status = torch.zeros(4, dtype=torch.int32)
    mask = torch.tensor([[0b011]], dtype=torch.int32)
    got = lm_head_topk(
        h,
        weight,
        k=4,
        status=status,
        verify_rows=torch.tensor([0, 1, -1, 9]),
        token_mask=mask,
        mask_rows=torch.zeros(4).long(),
    )
    assert got.ids.tolist() == [[1, 0, -1, -1], [0, -1, -1, -1], [-1] * 4, [-1] * 4]
    assert got.values.tolist() == [[2, 1, -INF, -INF]] + [[-INF] * 4] * 3
    assert got.lse[1:].tolist() == [-INF] * 3
    assert status.tolist() == [0, Status.NO_FINITE_LOGIT, 0, Status.OUT_OF_RANGE]


def test_strided_in_place(device):
    h, weight, bias = random_head(4, 5, 333, 64, torch.float16)
    want = lm_head_topk(h, weight, bias, k=7)
    out = TopK(
        torch.zeros(5, 7, 2)[..., 1],
        torch.zeros(7, 5, dtype=torch.int32).T,
        torch.zeros(5, 3)[:, 0],
    )
    assert lm_head_topk(h, weight, bias, k=7, out=out) is out
    assert all(torch.equal(a.to(b.dtype), b) for a, b in zip(out, want, strict=True))


def valid_call():
    h, weight, bias = random_head(0, 3, 40, 8)
    out = TopK(torch.zeros(3, 4), torch.zeros(3, 4).long(), torch.zeros(3))
    return {
        "h": h,
        "weight": weight,
        "bias": bias,
        "k": 4,
        "status": torch.zeros(3).int(),
    }, out._asdict()


WRONG = [
    ("h", torch.zeros(3), ValueError, "h must have shape [num_rows, H] = [*, *], got [3]"),
    ("k", 0, ValueError, "k must be at least 1, got 0"),
    ("k", 65, ValueError, "k must be at most 64, got 65"),
    ("bias", torch.zeros(39), ValueError, "bias must have shape [V] = [40], got [39]"),
    (
        "values",
        torch.zeros(3, 5),
        ValueError,
        "values must have shape [Tv, k] = [3, 4], got [3, 5]",
    ),
    ("lse", torch.zeros(3).half(), TypeError, "lse must be float32, got float16"),
]


@pytest.mark.parametrize(("name", "value", "error", "text"), WRONG)
def test_names_what_is_wrong(name, value, error, text):
    call, out = valid_call()
    (out if name in out else call)[name] = value
    assert_raises_alike(lm_head_topk, OP.out, call, out, error, text, TopK)


def test_opcheck(device):
    call, out = valid_call()
    args = tuple(call.pop(name) for name in ("h", "weight", "bias"))
    torch.library.opcheck(OP.default, args, call)
    torch.library.opcheck(OP.out, args, call | out)


def test_compiles_whole(device):
    call, _ = valid_call()
    assert_compiles_whole(lm_head_topk, call)
