import pytest
import torch
from bounds import assert_within
from calls import assert_any_strides, assert_compiles_whole, assert_raises_alike
from heads import EDGES, both_layouts, fp32_logits, random_head
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_rows import score_error

from dflash_ops import (
    HeadRecord,
    Status,
    lm_head_gather,
    lm_head_topk,
    lm_head_verify,
    reference,
    workspace_bytes,
)
from dflash_ops.reference import noise

pytestmark = pytest.mark.sm90
OP = torch.ops.dflash.lm_head_verify
INF = float("inf")


def call_for(rows, seed=0, **laws):
    """Chains of three rows, each with a law of its own."""
    cu = torch.tensor([*range(0, rows, 3), rows])
    batch = len(cu) - 1
    call = {"positions": torch.arange(rows) + 7, "cu_verify": cu}
    for name, values in laws.items():
        dtype = torch.int64 if name == "top_k" else torch.float32
        call[name] = torch.tensor([values[b % len(values)] for b in range(batch)]).to(dtype)
    return call | {"seeds": torch.arange(batch) + seed}


LAWS = {
    "temperature": [1.0, 0.0, 0.7, 1.0, 1.5],
    "top_k": [0, 0, 5, 0, 0],
    "top_p": [1, 1, 1, 0.9, 1],
}


@settings(max_examples=40)
@given(
    vocab=st.sampled_from(EDGES) | st.integers(1, 700),
    count=st.sampled_from([0, 1, 3, 17]),
    rows=st.sampled_from([1, 9, 65]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    packed=st.booleans(),
    seed=st.integers(0, 2**31 - 1),
)
def test_equals_reference(device, vocab, count, rows, dtype, packed, seed):
    h, weight, bias = random_head(seed, rows, vocab, 24, dtype, exact=True)
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(-1, vocab, (rows, count), generator=g)
    call = call_for(rows, seed, **LAWS) | {"vocab_size": vocab}
    status = torch.zeros(rows, dtype=torch.int32)
    marked = {"max_fallback_rows": rows, "status": status}
    got = lm_head_verify(h, both_layouts(weight)[packed], ids, bias, **call, **marked)
    want = reference.lm_head_verify(h, weight, ids, bias, **call)
    assert not status.any()
    assert torch.equal(got.values.double(), want.values)
    assert torch.equal(got.top_ids, want.top_ids)
    assert torch.equal(got.top_values.double(), want.top_values)
    gathered = lm_head_gather(h, weight, ids, bias)
    assert torch.equal(got.lse, gathered.lse)
    assert ((got.tempered_lse - want.tempered_lse).abs() < 1e-4).all()
    logits = fp32_logits(h, weight, bias).double()
    for i in range(rows):
        if got.rest_ids[i] == want.rest_ids[i]:
            continue
        at, best = int(got.rest_ids[i]), int(want.rest_ids[i])  # a near tie
        state = i // 3
        key = noise.gumbel(
            int(call["seeds"][state]),
            torch.tensor([at, best]),
            8 + i,
            noise.purpose(3, 0, i % 3),
            7 + 3 * state,
        )
        z, t = logits[i, [at, best]], float(call["temperature"][state])
        assert (z / t + key).diff().abs() <= score_error(z, t, key).sum()
    finite = want.rest_ids >= 0
    assert ((got.rest_keys.double() - want.rest_keys)[finite].abs() < 1e-3).all()
    assert (got.rest_keys[~finite] == -INF).all() and (got.rest_values[~finite] == -INF).all()
    picked = logits.float().gather(1, got.rest_ids.clamp(min=0)[:, None])[:, 0]
    assert torch.equal(got.rest_values[finite], picked[finite])


def test_covered(device):
    """The best 64 hold what top-k 64 keeps, and not what a flat law keeps of 200 ids."""
    h, weight = torch.zeros(15, 4), torch.zeros(200, 4)
    call = call_for(
        15, temperature=[1.0], top_k=[64, 65, 0, 0, 0], top_p=[1.0, 1.0, 0.3, 0.33, 1.0]
    )
    got = lm_head_verify(h, weight, torch.zeros(15, 1).int(), **call)
    assert got.covered[::3].tolist() == [True, False, True, False, False]
    top = lm_head_topk(h, weight, k=64)
    assert torch.equal(got.top_ids[:12], top.ids[:12]) and (got.top_ids[12:] == -1).all()
    drawn = got.covered.logical_not()
    assert (got.rest_ids >= 0).equal(drawn) and (got.rest_ids[12:] > 0).all()


def test_infinite_temperature_counts_what_the_mask_allows(device):
    h, weight, _ = random_head(0, 3, 600, 8)
    mask = torch.full((3, 19), 0b1010, dtype=torch.int32)
    ids = torch.zeros(3, 0).int()
    got = lm_head_verify(h, weight, ids, **call_for(3, temperature=[INF]), token_mask=mask)
    count = torch.full((3,), 38.0, dtype=torch.float64)
    assert_within(got.tempered_lse, count.log(), terms=count.log())
    gathered = lm_head_gather(
        h,
        weight,
        torch.tensor([[1], [1], [2]]),
        cu_verify=torch.tensor([0, 3]),
        temperature=torch.tensor([INF]),
        token_mask=mask,
    )
    want = torch.stack([-count.log()[0], -count.log()[0], torch.tensor(-INF).double()])
    assert_within(gathered.tempered[:, 0], want, terms=count.log())


def test_uncovered_rows_hold_the_draw_of_their_law(device):
    """With and without room in the workspace; on a shard nobody knows the filter's set."""
    h, weight, _ = random_head(1, 9, 300, 8)
    ids = torch.randint(300, (9, 2))
    call = call_for(9, temperature=[1.0, 5.0], top_p=[0.99], top_k=[0, 0, 200])
    status = torch.zeros(9, dtype=torch.int32)
    got = lm_head_verify(h, weight, ids, **call, status=status)
    want = reference.lm_head_verify(h, weight, ids, **call)
    open_rows = ~got.covered
    assert open_rows.sum() > 2 and torch.equal(got.covered, want.covered)
    assert torch.equal(got.rest_ids[open_rows], want.rest_ids[open_rows])
    logits = fp32_logits(h, weight)
    picked = logits.gather(1, got.rest_ids.clamp(min=0)[:, None])[:, 0]
    assert torch.equal(got.rest_values[open_rows], picked[open_rows])
    assert ((got.rest_keys.double() - want.rest_keys)[open_rows].abs() < 1e-3).all()
    beyond = status == Status.BOUND_TOO_SMALL
    assert int(beyond.sum()) == int(open_rows.sum()) - 1
    size = workspace_bytes("lm_head_verify", "cpu", vocab_size=300, max_fallback_rows=9)
    workspace = torch.zeros(size, dtype=torch.uint8)
    status = torch.zeros(9, dtype=torch.int32)
    again = lm_head_verify(
        h, weight, ids, **call, max_fallback_rows=9, workspace=workspace, status=status
    )
    assert not status.any() and all(torch.equal(a, b) for a, b in zip(got, again, strict=True))
    shard = lm_head_verify(h, weight[:200], ids, **call, vocab_size=300)
    assert not shard.covered.any() and (shard.rest_ids == -1).all()


def test_padded_rows_and_bad_ids(device):
    h, weight, _ = random_head(0, 4, 50, 8)
    h[2] = float("nan")
    status = torch.zeros(5, dtype=torch.int32)
    call = call_for(5, temperature=[1.0]) | {"verify_rows": torch.tensor([0, -1, 2, 9, 3])}
    ids = torch.tensor([[3, 50], [1, 2], [1, 2], [1, 2], [-1, -2]])
    got = lm_head_verify(h, weight, ids, status=status, **call)
    bad, none = Status.BAD_DRAFT_ID, Status.NO_FINITE_LOGIT
    assert status.tolist() == [bad, 0, none, Status.OUT_OF_RANGE, bad]
    assert (got.values > -INF).tolist() == [[True, False]] + [[False, False]] * 4
    assert (got.rest_ids >= 0).tolist() == [True, False, False, False, True]
    assert got.covered.tolist() == [False, False, True, False, False] and got.top_ids[2, 0] == 0


def valid_call():
    h, weight, bias = random_head(0, 6, 40, 8)
    call = {
        "h": h,
        "weight": weight,
        "ids": torch.zeros(6, 2).int(),
        "bias": bias,
        **call_for(6, temperature=[1.0]),
    }
    call["status"] = torch.zeros(6).int()
    out = HeadRecord(*(torch.zeros_like(x) for x in lm_head_verify(**call)))
    return call, out._asdict()


def test_strided_in_place(device):
    call, _ = valid_call()
    assert_any_strides(lm_head_verify, call, ("h", "weight", "bias"))


WRONG = [
    (
        "ids",
        torch.zeros(5, 2).int(),
        ValueError,
        "ids must have shape [Tv, K] = [6, *], got [5, 2]",
    ),
    ("ids", torch.zeros(6, 65).int(), ValueError, "K must be at most 64, got 65"),
    ("seeds", None, ValueError, "seeds must be given with temperature, got None"),
    ("bias", torch.zeros(39), ValueError, "bias must have shape [V] = [40], got [39]"),
    (
        "top_values",
        torch.zeros(6, 63),
        ValueError,
        "top_values must have shape [Tv, 64] = [6, 64], got [6, 63]",
    ),
    ("covered", torch.zeros(6), TypeError, "covered must be bool, got float32"),
]


@pytest.mark.parametrize(("name", "value", "error", "text"), WRONG)
def test_names_what_is_wrong(name, value, error, text):
    call, out = valid_call()
    (out if name in out else call)[name] = value
    assert_raises_alike(lm_head_verify, OP.out, call, out, error, text, HeadRecord)


def test_opcheck(device):
    call, out = valid_call()
    args = tuple(call.pop(name) for name in ("h", "weight", "ids", "bias"))
    torch.library.opcheck(OP.default, args, call)
    torch.library.opcheck(OP.out, args, call | out)


def test_compiles_whole(device):
    call, _ = valid_call()
    assert_compiles_whole(lm_head_verify, call)
