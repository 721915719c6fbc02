import math
from itertools import product

import pytest
import torch
from bounds import assert_within
from calls import assert_raises_alike, spread
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_ops import Selected, Status, reference, select_path
from dflash_ops.reference import noise
from dflash_ops.reference.drafter import edge_scores

OP = torch.ops.dflash.select_path
ARGS = ("values", "cand_ids", "hidden", "anchors", "predecessor", "successor")


def make_call(
    seed=0, batch=3, slots=4, candidates=5, rank=16, vocab=40, dtype=torch.float32, exact=False
):
    """exact: entries whose sums are exact in fp32, with ties everywhere."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        if exact:
            return torch.randint(-1, 2, shape, generator=g).float()
        return torch.randn(shape, generator=g)

    scale = 1.0 if exact else rank**-0.5
    ids = torch.rand(batch, slots, vocab, generator=g).argsort(-1)[..., :candidates]
    return {
        "values": normal(batch, slots, candidates),
        "cand_ids": ids.contiguous(),
        "hidden": normal(batch, slots, rank).to(dtype),
        "anchors": torch.randint(0, vocab, (batch,), generator=g),
        "predecessor": normal(vocab, rank).to(dtype),
        "successor": (normal(vocab, rank) * scale).to(dtype),
        "status": torch.zeros(batch, dtype=torch.int32),
    }


def sampled(call, temperature=1.0, seed=0):
    g = torch.Generator().manual_seed(seed)
    batch = len(call["anchors"])
    return call | {
        "temperature": torch.full((batch,), float(temperature)),
        "seeds": torch.randint(-(2**62), 2**62, (batch,), generator=g),
        "ctx_lens": torch.randint(0, 1000, (batch,), generator=g),
    }


def run(device, call):
    call = {k: x.to(device) if isinstance(x, torch.Tensor) else x for k, x in call.items()}
    got = select_path(**call)
    return Selected(*(x.cpu() for x in got)), call["status"].cpu()


def check(device, call):
    got, got_status = run(device, call | {"status": call["status"].clone()})
    status = call["status"].clone()
    want = reference.select_path(**call | {"status": status})
    assert torch.equal(got.tokens, want.tokens), (got.tokens, want.tokens)
    assert torch.equal(got_status, status), (got_status, status)
    return got, want, status


def test_a_walk_of_two_slots(device):
    """The second choice depends on the first: codebooks say that 1 goes to 2, and 0 to 3."""
    call = {
        "values": torch.tensor([[[0.0, 1.0], [0.5, 0.0]]]),
        "cand_ids": torch.tensor([[[0, 1], [3, 2]]]),
        "hidden": torch.ones(1, 2, 2),
        "anchors": torch.tensor([3]),
        "predecessor": torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]),
        "successor": torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 1.0], [1.0, 0.0]]),
        "status": torch.zeros(1, dtype=torch.int32),
    }
    got, _, _ = check(device, call)
    assert got.tokens.tolist() == [[1, 2]]
    assert got.q.tolist() == [[[0, 1], [0, 1]]]
    call["values"][0, 0, 0] = 2
    assert check(device, call)[0].tokens.tolist() == [[0, 3]]


@settings(max_examples=60)
@given(
    shape=st.sampled_from([(0, 4, 3), (1, 1, 1), (5, 7, 16), (3, 0, 4), (2, 3, 0), (2, 2, 64)]),
    rank=st.sampled_from([0, 1, 31, 32, 33, 256]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    has=st.tuples(st.booleans(), st.booleans()),
    seed=st.integers(0, 2**31 - 1),
)
def test_greedy_equals_reference_on_exact_inputs(device, shape, rank, dtype, has, seed):
    """Ties abound, and go to the lower id."""
    batch, slots, _ = shape
    call = make_call(seed, *shape, rank, vocab=80, dtype=dtype, exact=True)
    g = torch.Generator().manual_seed(seed)
    if has[0]:
        call["num_drafts"] = torch.randint(-1, slots + 2, (batch,), generator=g)
    if has[1]:
        call["req_rows"] = torch.randint(-1, 3, (batch,), generator=g)
    got, want, _ = check(device, call)
    assert torch.equal(got.q.double(), want.q)


@settings(max_examples=40)
@given(
    temperature=st.sampled_from([0.3, 1.0, 5.0]),
    coupled=st.booleans(),
    candidates=st.sampled_from([16, 64]),
    rank=st.sampled_from([1, 33, 256]),
    seed=st.integers(0, 2**31 - 1),
)
def test_sampled_equals_reference(device, temperature, coupled, candidates, rank, seed):
    call = make_call(seed, 4, 3, candidates, rank, vocab=80)
    call = sampled(call, temperature, seed) | {"coupled": coupled}
    got, want, _ = check(device, call)  # noise from floats: a tie within rounding is unlikely
    terms = 2 * (call["values"].abs().max() + rank**0.5 * 30) / temperature
    assert_within(got.q, want.q, terms=terms * want.q + 64 * want.q, rounding=1e-37)


def test_draws_follow_q(device, device_class):
    """50 000 seeds: total variation from q's law of two tokens within four deviations."""
    batch = 2000 if device_class == "ptx" else 50_000  # an emulated draw takes long
    one = make_call(7, 1, 2, 3, 8, vocab=6)
    call = {k: x.expand(batch, *x.shape[1:]) if k not in ARGS[4:] else x for k, x in one.items()}
    call["status"] = torch.zeros(batch, dtype=torch.int32)
    for coupled in (False, True):
        got, _ = run(device, sampled(call, 0.7, 1) | {"coupled": coupled})
        ids = one["cand_ids"][0].tolist()
        law, book = {}, (one["predecessor"], one["successor"])
        slots = [
            edge_scores(one["values"][0, j], one["cand_ids"][0, j], one["hidden"][0, j], *book)
            for j in range(2)
        ]
        first = (slots[0][int(one["anchors"])] / 0.7).softmax(0)
        for (a, p), b in product(zip(ids[0], first.tolist(), strict=True), range(3)):
            law[a, ids[1][b]] = p * float((slots[1][a] / 0.7).softmax(0)[b])
        for (a, b), p in law.items():
            count = int(((got.tokens[:, 0] == a) & (got.tokens[:, 1] == b)).sum())
            assert abs(count - batch * p) <= 4 * math.sqrt(batch * p * (1 - p)) + 1


def test_a_coupled_draft_is_the_target_s_own_draw_where_the_laws_agree(device):
    """Candidates are the whole vocabulary, edges 0: argmax of values / T + stream 0's noise."""
    call = sampled(make_call(3, 64, 1, 8, 4, vocab=8), 0.8) | {"coupled": True}
    call["hidden"] = torch.zeros_like(call["hidden"])
    got, _ = run(device, call)
    for b in range(64):
        ids = call["cand_ids"][b, 0]
        g = noise.gumbel(int(call["seeds"][b]), ids, int(call["ctx_lens"][b]) + 1)
        assert got.tokens[b, 0] == ids[(call["values"][b, 0].double() / 0.8 + g).argmax()]


def test_a_mixed_batch_has_one_hot_rows_where_it_is_greedy(device):
    call = sampled(make_call(4, 6), 1.0)
    call["temperature"] = torch.tensor([0.0, 1.0, 1e-6, math.nan, -1.0, 0.5])
    got, _, _ = check(device, call)
    is_one_hot = (got.q.amax(-1) == 1).all(1)
    assert is_one_hot.tolist() == [True, False, True, True, True, False]
    torch.testing.assert_close(got.q.sum(-1), torch.ones(6, 4), rtol=0, atol=16 * 2**-24)


def test_q_divides_by_the_temperature(device):
    """FAULTS 8: T = 0.5 squares the odds."""
    cold, _ = run(device, sampled(make_call(5, slots=1), 0.5))
    warm, _ = run(device, sampled(make_call(5, slots=1), 1.0))
    torch.testing.assert_close(cold.q, warm.q**2 / (warm.q**2).sum(-1, keepdim=True))


def test_extreme_temperatures_stay_finite(device):
    """FAULTS 15"""
    for temperature in (1e-5, 2e-5, 1e30):
        call = sampled(make_call(6), temperature)
        call["values"] *= 1e4
        got, _ = run(device, call)
        assert got.q.isfinite().all() and (got.tokens >= 0).all()


@pytest.mark.parametrize("is_sampled", [False, True])
def test_nan_infinite_and_absent_candidates(device, is_sampled):
    call = make_call(8, 5, 2, 4)
    call["cand_ids"][:] = torch.tensor([3, 2, 9, 7])
    call["values"][0, 0] = math.nan
    call["values"][1, 0, 1] = math.inf
    call["values"][2, 1] = -math.inf
    call["cand_ids"][3, 1] = -1
    call["cand_ids"][4, 0, :3] = -1
    call = sampled(call) if is_sampled else call
    got, _, status = check(device, call)
    none = Status.NO_FINITE_LOGIT
    assert status.tolist() == [none, 0, none, 0, 0]
    assert got.tokens[0, 0] == 2 and got.tokens[1, 0] == 2 and got.tokens[2, 1] == 2
    assert got.tokens[3, 1] == -1 and (got.q[3, 1] == 0).all() and got.tokens[4, 0] == 7
    assert got.q.isfinite().all()


@pytest.mark.parametrize("bad", [-1, 40, 2**40])
def test_ids_outside_the_codebook_are_not_read(device, bad):
    """FAULTS 20, 22: an anchor of -1 or far above the vocabulary; a candidate likewise."""
    call = make_call(9)
    call["anchors"][1] = bad
    if bad > 0:
        call["cand_ids"][2, 1, 0] = bad
        call["values"][2, 1, 0] = 1e6  # it would be chosen
    got, _, status = check(device, call)
    assert status.tolist() == [0, Status.BAD_DRAFT_ID, Status.BAD_DRAFT_ID if bad > 0 else 0]
    assert ((got.tokens >= 0) & (got.tokens < 40)).all()


def test_a_request_does_not_depend_on_its_neighbours(device):
    call = sampled(make_call(10, 60, 7, 16, 256, vocab=100))
    torch.set_num_threads(3)
    together, _ = run(device, call)
    torch.set_num_threads(1)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    rows = {k: call[k][order] for k in (*ARGS[:4], "status")}
    other, _ = run(device, call | rows | {"req_rows": order})
    for a, b in zip(other, together, strict=True):
        assert torch.equal(a, b[order])


def test_padded_requests_and_bad_state_rows(device):
    call = sampled(make_call(11, 4)) | {"req_rows": torch.tensor([-1, 3, 4, -2])}
    got, _, status = check(device, call)
    bad = Status.OUT_OF_RANGE
    assert status.tolist() == [0, 0, bad, bad]
    assert (got.tokens[[0, 2, 3]] == -1).all() and (got.q[[0, 2, 3]] == 0).all()


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_any_strides_in_place(device, index):
    call = sampled(make_call(12)) | {
        "req_rows": torch.tensor([2, 0, 1]),
        "num_drafts": torch.tensor([4, 3, 9]),
    }
    want, _ = run(device, call)
    for name in ("cand_ids", "anchors", "ctx_lens", "req_rows", "num_drafts"):
        call[name] = spread(call[name].to(index))
    for name in ("values", "temperature", "seeds", "status"):
        call[name] = spread(call[name])
    for name in ("hidden", "predecessor", "successor"):
        call[name] = spread(call[name], last=False)
    out = Selected(spread(want.tokens.to(index) * 0), spread(want.q * 0))
    moved = {k: x.to(device) for k, x in call.items()} if device.type != "cpu" else call
    assert select_path(**moved, out=out) is out
    assert torch.equal(out.tokens.long(), want.tokens) and torch.equal(out.q, want.q)


def test_addresses_past_32_bits(device):
    buffer = torch.empty(2**32 + 64, dtype=torch.bfloat16, device=device)
    book = buffer.as_strided((3, 1), (2**31, 1))
    book.copy_(torch.tensor([[1.0], [2.0], [3.0]]))
    call = make_call(13, 1, 1, 3, 1, vocab=3) | {"predecessor": book, "successor": book}
    call |= {"hidden": torch.ones(1, 1, 1), "anchors": torch.tensor([2])}
    call["values"] = torch.zeros(1, 1, 3)
    assert run(device, call)[0].tokens.tolist() == [[2]]


INTS = "must be int32 or int64, got"
# fmt: off
WRONG = [
    ({"values": torch.zeros(3, 4, 5).half()}, TypeError, "values must be float32, got float16"),
    ({"values": torch.zeros(3, 4)}, ValueError, "values must have shape [B, D, K] = [*, *, *], got [3, 4]"),
    ({"cand_ids": torch.zeros(3, 4, 4).int()}, ValueError, "cand_ids must have shape [B, D, K] = [3, 4, 5], got [3, 4, 4]"),
    ({"hidden": torch.zeros(3, 5, 16)}, ValueError, "hidden must have shape [B, D, r] = [3, 4, *], got [3, 5, 16]"),
    ({"anchors": torch.zeros(3)}, TypeError, f"anchors {INTS} float32"),
    ({"predecessor": torch.zeros(40, 8)}, ValueError, "predecessor must have shape [V, r] = [*, 16], got [40, 8]"),
    ({"predecessor": torch.zeros(16, 40).T}, ValueError, "predecessor must have a contiguous last dimension, got strides [1, 40]"),
    ({"successor": torch.zeros(40, 16).half()}, TypeError, "successor must be float32, got float16"),
    ({"temperature": torch.ones(3)}, ValueError, "ctx_lens and seeds must be given with temperature, got no ctx_lens"),
    ({"temperature": torch.ones(3), "ctx_lens": torch.ones(3).int()}, ValueError, "ctx_lens and seeds must be given with temperature, got no seeds"),
    ({"temperature": torch.ones(3), "ctx_lens": torch.ones(2).int(), "seeds": torch.ones(3).long()}, ValueError, "ctx_lens must have shape [R] = [3], got [2]"),
    ({"temperature": torch.ones(3), "ctx_lens": torch.ones(3).int(), "seeds": torch.ones(3).int()}, TypeError, "seeds must be int64, got int32"),
    ({"temperature": torch.ones(3).half(), "ctx_lens": torch.ones(3).int(), "seeds": torch.ones(3).long()}, TypeError, "temperature must be float32, got float16"),
    ({"req_rows": torch.zeros(2).int()}, ValueError, "req_rows must have shape [B] = [3], got [2]"),
    ({"num_drafts": torch.zeros(3)}, TypeError, f"num_drafts {INTS} float32"),
    ({"status": torch.zeros(3)}, TypeError, "status must be int32, got float32"),
    ({"tokens": torch.zeros(3, 5).int()}, ValueError, "tokens must have shape [B, D] = [3, 4], got [3, 5]"),
    ({"q": torch.zeros(3, 4, 5).half()}, TypeError, "q must be float32, got float16"),
]
# fmt: on


@pytest.mark.parametrize(("wrong", "error", "text"), WRONG)
def test_names_what_is_wrong(wrong, error, text):
    call, out = make_call(), {"tokens": torch.zeros(3, 4).int(), "q": torch.zeros(3, 4, 5)}
    for name, value in wrong.items():
        (out if name in out else call)[name] = value
    assert_raises_alike(select_path, OP.out, call, out, error, text, Selected)
    if not wrong.keys() & out.keys():
        assert_raises_alike(select_path, OP, call, {}, error, text)


def test_opcheck_and_compile(device):
    call = sampled(make_call())
    call = {k: x.to(device) for k, x in call.items()}
    args = [call.pop(name) for name in ARGS]
    torch.library.opcheck(OP.default, args, call)
    out = Selected(*(torch.empty_like(x) for x in OP(*args, **call)))
    torch.library.opcheck(OP.out, args, call | out._asdict())
    compiled = torch.compile(select_path, fullgraph=True)
    for a, b in zip(compiled(*args, **call), select_path(*args, **call), strict=True):
        assert torch.equal(a, b)
