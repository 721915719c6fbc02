import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_rows import one_request_each

from dflash_ops import _C, SampledCandidates, Status, reference, sample_candidates, sample_logits

OP = torch.ops.dflash.sample_candidates
INF = float("inf")


def candidates_of(logits, count):
    """The best `count` of each row in the one order, as lm_head_topk gives them."""
    order = logits.sort(dim=1, descending=True, stable=True)
    values = torch.nn.functional.pad(order.values, (0, max(count - logits.shape[1], 0)), value=-INF)
    ids = torch.nn.functional.pad(order.indices, (0, max(count - logits.shape[1], 0)), value=-1)
    values, ids = values[:, :count].contiguous(), ids[:, :count].clone()
    ids[:, 1:][values[:, 1:] == -INF] = -1
    rows = logits.contiguous()
    lse = [_C.hooks.lse(row.data_ptr(), row.numel(), 0) for row in rows]
    return values, ids, torch.tensor(lse)


def draw(device, candidates, **call):
    status = torch.zeros(len(call["positions"]), dtype=torch.int32, device=device)
    call = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in call.items()}
    got = sample_candidates(*(x.to(device) for x in candidates), status=status, **call)
    return SampledCandidates(*(x.cpu() for x in got)), status.cpu()


@pytest.mark.parametrize(
    ("law", "covered"),
    [
        ({}, True),
        ({"temperature": 1.0}, False),
        ({"temperature": 1.0, "top_k": 16}, True),
        ({"temperature": 1.0, "top_k": 17}, False),
        ({"temperature": 0.5, "top_k": 16, "top_p": 0.9}, True),
        ({"temperature": 1.0, "top_p": 0.1}, True),
        ({"temperature": 1.0, "top_p": 0.5}, True),  # exactly the first 16 of 32 equal logits
        ({"temperature": 1.0, "top_p": 0.51}, False),
        ({"temperature": 0.5, "top_p": 0.1}, False),  # lse is that of temperature 1
        ({"temperature": 1.0, "top_k": 17, "top_p": 0.1}, False),
        ({"temperature": 1.0, "top_k": 17, "top_p": 0.1, "order": "joint"}, True),
        ({"temperature": 1.0, "min_p": 1.0}, False),
    ],
)
def test_covered_iff_the_candidates_prove_the_set(device, law, covered):
    logits = torch.zeros(200, 32)
    call = one_request_each(200, **law)
    got, status = draw(device, candidates_of(logits, 16), **call)
    assert (got.covered == covered).all() and not status.any()
    if covered:
        want = sample_logits(logits, **call)
        assert torch.equal(got.ids, want.ids) and torch.equal(got.logprobs, want.logprobs)
    else:
        assert (got.ids == -1).all() and (got.logprobs == 0).all()


def test_a_complete_list_covers_everything(device):
    logits = torch.tensor([[0.0, -INF, 1.0, 2.0, -INF]]).expand(50, -1)
    for law in (
        {},
        {"temperature": 2.0},
        {"temperature": 2.0, "min_p": 0.5},
        {"temperature": 1.0, "top_p": 0.9},
    ):
        call = one_request_each(50, **law)
        got, _ = draw(device, candidates_of(logits, 4), **call)
        want = sample_logits(logits, **call)
        assert got.covered.all() and torch.equal(got.ids, want.ids)


@settings(max_examples=60)
@given(
    vocab=st.sampled_from([1, 2, 15, 16, 17, 64, 65, 700]),
    count=st.sampled_from([1, 2, 16, 64, 100]),
    temperature=st.sampled_from([0.0, 0.5, 1.0]),
    top_k=st.sampled_from([0, 1, 15, 16, 17, 64]),
    top_p=st.sampled_from([0.0, 0.4, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.0, 0.1]),
    order=st.sampled_from(["k_then_p", "joint"]),
    seed=st.integers(0, 2**31 - 1),
)
def test_equals_sample_logits_where_covered(
    device, vocab, count, temperature, top_k, top_p, min_p, order, seed
):
    g = torch.Generator().manual_seed(seed)
    rows = 4
    logits = (torch.randn(rows, vocab, generator=g) * 4).round() / 2
    law = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    call = one_request_each(rows, seeds=seed, **law, order=order)
    candidates = candidates_of(logits, count)
    got, status = draw(device, candidates, vocab_size=vocab, **call)
    want = sample_logits(logits, **call)
    ok = got.covered
    assert not status.any() and (got.ids[~ok] == -1).all()
    assert torch.equal(got.ids[ok], want.ids[ok])
    assert torch.equal(got.logprobs[ok], want.logprobs[ok])
    claimed = reference.sample_candidates(*candidates, vocab_size=vocab, **call).covered
    if top_k < vocab and not 0 < top_p < 1:  # else limits that rounding may move, and top_k is off
        assert torch.equal(ok, claimed)


def test_padded_rows_and_bad_data(device):
    nan = float("nan")
    values = torch.tensor(
        [[2.0, 1.0], [2.0, 1.0], [-INF, -INF], [1.0, 2.0], [nan, 0.0], [2.0, 1.0], [INF, 0.0]]
    )
    ids = torch.tensor([[7, 8], [-1, -1], [5, -1], [7, 8], [3, 4], [2**40, 8], [7, -1]])
    call = one_request_each(7, temperature=1.0, top_k=2)
    call["req_rows"] = torch.tensor([0, 1, 2, 3, 4, 5, 6])
    got, status = draw(device, (values, ids, torch.zeros(7)), **call)
    assert got.covered.tolist() == [True, False, True, False, True, False, True]
    assert got.ids[1:].tolist() == [-1, 5, -1, 3, -1, 7] and got.ids[0] in (7, 8)
    none, far = Status.NO_FINITE_LOGIT, Status.OUT_OF_RANGE
    assert status.tolist() == [0, 0, none, 0, none, far, 0]
    call["req_rows"] = torch.tensor([-1, 9, -2, 0, 0, 0, 0])
    got, status = draw(device, (values, ids, torch.zeros(7)), **call)
    assert got.ids[:3].tolist() == [-1] * 3 and status[:3].tolist() == [0, far, far]


def test_strided_in_place(device):
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(9, 50, generator=g)
    call = one_request_each(9, temperature=1.0, top_k=3)
    candidates = candidates_of(logits, 8)
    want, _ = draw(device, candidates, **call)

    def spread(x):
        buffer = torch.zeros((*x.shape, 3), dtype=x.dtype, device=device)
        buffer[..., 1] = x
        return buffer[..., 1]

    out = SampledCandidates(*(spread(torch.zeros_like(x)) for x in want))
    assert sample_candidates(*map(spread, candidates), **call, out=out) is out
    assert all(torch.equal(a.cpu(), b) for a, b in zip(out, want, strict=True))


def valid_call():
    values, ids, lse = candidates_of(torch.zeros(3, 9), 4)
    call = one_request_each(3, temperature=1.0) | {
        "vocab_size": 9,
        "status": torch.zeros(3, dtype=torch.int32),
    }
    out = SampledCandidates(torch.zeros(3).long(), torch.zeros(3), torch.zeros(3).bool())
    return {"values": values, "cand_ids": ids, "lse": lse, **call}, out._asdict()


WRONG = [
    ("values", torch.zeros(3, 4).half(), TypeError, "values must be float32, got float16"),
    ("values", torch.zeros(3, 1025), ValueError, "K must be at most 1024, got 1025"),
    (
        "cand_ids",
        torch.zeros(3, 5).int(),
        ValueError,
        "cand_ids must have shape [Tv, K] = [3, 4], got [3, 5]",
    ),
    ("lse", torch.zeros(4), ValueError, "lse must have shape [Tv] = [3], got [4]"),
    (
        "positions",
        torch.zeros(4).int(),
        ValueError,
        "positions must have shape [Tv] = [3], got [4]",
    ),
    ("seeds", None, ValueError, "seeds must be given with temperature, got None"),
    ("vocab_size", -1, ValueError, "vocab_size must be at least 0, got -1"),
    ("covered", torch.zeros(3), TypeError, "covered must be bool, got float32"),
    ("ids", torch.zeros(2).int(), ValueError, "ids must have shape [Tv] = [3], got [2]"),
]


@pytest.mark.parametrize(("name", "value", "error", "text"), WRONG)
def test_names_what_is_wrong(name, value, error, text):
    call, out = valid_call()
    (out if name in out else call)[name] = value
    with pytest.raises(error) as from_python:
        sample_candidates(**call, out=SampledCandidates(**out))
    with pytest.raises(RuntimeError) as from_op:
        OP.out(**call, **out)
    assert str(from_python.value) == str(from_op.value) == f"sample_candidates: {text}"


def test_opcheck(device):
    call, out = valid_call()
    call, out = (
        {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in x.items()}
        for x in (call, out)
    )
    args = tuple(call.pop(name) for name in ("values", "cand_ids", "lse"))
    torch.library.opcheck(OP.default, args, call)
    torch.library.opcheck(OP.out, args, call | out)


def test_compiles_whole(device):
    call, _ = valid_call()
    call = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in call.items()}
    got = torch.compile(sample_candidates, fullgraph=True)(**call)
    assert all(torch.equal(a, b) for a, b in zip(got, sample_candidates(**call), strict=True))
