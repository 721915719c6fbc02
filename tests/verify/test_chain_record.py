"""verify_chain from the record of lm_head_verify: the bits of the same logits in memory."""

import pytest
import torch
from calls import assert_compiles_whole, assert_raises_alike
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_ops import (
    HeadRecord,
    Status,
    Verified,
    lm_head_verify,
    verify_chain,
    verify_gemm,
)

INF = float("inf")
LAWS = [
    {"temperature": 1.0},
    {"temperature": 0.7},
    {"temperature": 0.0},
    {"temperature": 1.3, "top_k": 5},
    {"temperature": 1.0, "top_p": 0.6},
    {"temperature": 0.8, "min_p": 0.2},
    {"temperature": 1.0, "top_k": 20, "top_p": 0.9},
    {"temperature": INF},
]
OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def state(laws):
    return {
        name: torch.tensor([law.get(name, off) for law in laws]).to(
            torch.int64 if name == "top_k" else torch.float32
        )
        for name, off in OFF.items()
    }


def head_call(seed, sizes, vocab, num_q, laws, hidden=16):
    """A head and ragged chains over it: h, weight, what both ops take, and the drafts with q."""
    g = torch.Generator().manual_seed(seed)
    rows, batch = sum(sizes), len(sizes)
    h = torch.randint(-1, 2, (rows, hidden), generator=g).float()  # exact, and ties abound
    weight = torch.randint(-1, 2, (vocab, hidden), generator=g).float()
    logits = verify_gemm(h, weight, out_dtype=torch.float32)
    ours = {
        "positions": torch.cat([torch.arange(n) + 10 * b for b, n in enumerate(sizes)]),
        "cu_verify": torch.tensor([0, *sizes]).cumsum(0),
        "seeds": torch.randint(-(2**63), 2**63 - 1, (batch,), generator=g),
        "vocab_size": vocab,
        **state([laws[b % len(laws)] for b in range(batch)]),
    }
    q = (logits + torch.randn(rows, vocab, generator=g)).softmax(dim=1)
    drafts = torch.multinomial(q, 1, generator=g)
    chain = {}
    if num_q:
        top = q.topk(min(vocab, num_q), dim=1)
        drafts = top.indices.gather(1, torch.multinomial(top.values, 1, generator=g))
        chain = {"q": top.values.contiguous(), "q_ids": top.indices}
    chain["tokens"] = drafts[:, 0].roll(1)
    chain["max_path"] = max([*sizes, 1]) - 1
    ids = torch.cat([chain["q_ids"], drafts], dim=1) if num_q else drafts
    return h, weight, logits, ours, chain, ids


def from_record(h, weight, ids, ours, chain, head=None, **more):
    record = lm_head_verify(h, weight, ids, **ours, **(head or {}))
    status = torch.zeros(len(ours["cu_verify"]) - 1, dtype=torch.int32)
    got = verify_chain(record_ids=ids, record=record, **ours, **chain, **more, status=status)
    return got, record, status


def assert_same_weights(got, want, record, ids):
    """What is listed has the same weight; the rest of the row stands where its draw is."""
    there = torch.zeros_like(want.weights, dtype=torch.bool).scatter(1, ids, True)
    open_rows = record.rest_ids >= 0
    there |= ~open_rows[:, None]
    assert torch.equal(got.weights[there], want.weights[there])
    rest = want.weights.double().where(~there, 0).sum(dim=1)
    at = got.weights.gather(1, record.rest_ids.clamp(min=0)[:, None])[:, 0].double()
    # 1 - the sum of K + 1 listed probabilities, against the sum of the others.
    assert ((at - rest)[open_rows].abs() <= 80 * 2.0**-24).all()
    assert int((got.weights != 0).where(~there, False).sum()) <= int(open_rows.sum())


@settings(max_examples=60)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 2, 3, 5]), min_size=1, max_size=9),
    vocab=st.sampled_from([2, 8, 63, 64]) | st.integers(1, 64),
    num_q=st.sampled_from([0, 1, 6, 16]),
    rule=st.sampled_from(["token", "block"]),
    first=st.integers(0, len(LAWS) - 1),
    seed=st.integers(0, 2**31 - 1),
)
def test_bits_of_logits_in_memory(sizes, vocab, num_q, rule, first, seed):
    """Up to 64 ids every row is covered."""
    laws = LAWS[first:] + LAWS[:first]
    h, weight, logits, ours, chain, ids = head_call(seed, sizes, vocab, num_q, laws)
    got, record, status = from_record(h, weight, ids, ours, chain, rule=rule, probe=True)
    want_status = torch.zeros_like(status)
    want = verify_chain(logits=logits, **ours, **chain, rule=rule, probe=True, status=want_status)
    assert torch.equal(status, want_status) and not status.any()
    for name in Verified._fields[:-1]:
        assert torch.equal(getattr(got, name), getattr(want, name)), name
    assert_same_weights(got, want, record, ids)


@settings(max_examples=30)
@given(
    vocab=st.sampled_from([65, 511, 512, 513, 1500]),
    num_q=st.sampled_from([0, 16]),
    rule=st.sampled_from(["token", "block"]),
    round_logits=st.booleans(),
    seed=st.integers(0, 2**31 - 1),
)
def test_options_are_the_heads(vocab, num_q, rule, round_logits, seed):
    """Norm, scale, softcap, added terms, mask, verify rows: told to the head alone."""
    laws = [*LAWS[:4], {"temperature": 0.5, "top_k": 64}]
    h, weight, _, ours, chain, ids = head_call(seed, [3, 1, 4, 2, 3], vocab, num_q, laws)
    g = torch.Generator().manual_seed(seed)
    rows = len(h)
    order = torch.randperm(rows, generator=g)
    logit_options = {
        "logit_scale": 0.5,
        "softcap": 7.0,
        "adj_cu": torch.arange(rows + 1) * 2,
        "adj_ids": torch.randint(vocab, (2 * rows,), generator=g),
        "adj_values": torch.randn(2 * rows, generator=g) * 4,
        "token_mask": torch.randint(
            -(2**31), 2**31 - 1, (rows, (vocab + 31) // 32), dtype=torch.int32, generator=g
        ),
        "verify_rows": order.argsort(),
    }
    h, weight = h[order].bfloat16(), weight.bfloat16()
    norm = torch.rand(h.shape[1], generator=g).bfloat16()
    head = {"norm_weight": norm, "round_logits": round_logits, **logit_options}
    logits = verify_gemm(h, weight, norm_weight=norm, out_dtype=torch.float32)
    logits = logits.bfloat16() if round_logits else logits
    rows_only = {"verify_rows": logit_options["verify_rows"]}
    got, _, status = from_record(
        h,
        weight,
        ids,
        ours,
        chain | rows_only,
        {k: v for k, v in head.items() if k != "verify_rows"} | rows_only,
        rule=rule,
    )
    want = verify_chain(logits=logits, **ours, **chain, **logit_options, rule=rule)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert not status.any()


def flat_call(first_law, drafts=2):
    """Three requests whose second row is flat over 200 ids; rows 0 and 2 are almost one id."""
    h = torch.tensor([[1.0], [0.0], [1.0]]).repeat(3, 1)
    weight = torch.zeros(200, 1)
    weight[7] = 20.0
    laws = [first_law] * 3
    ours = {
        "positions": torch.arange(3).repeat(3) + 4,
        "cu_verify": torch.tensor([0, 3, 6, 9]),
        "seeds": torch.arange(3) + 40,
        "vocab_size": 200,
        **state(laws),
    }
    chain = {"tokens": torch.tensor([0, 7, 7]).repeat(3), "max_path": drafts}
    return h, weight, verify_gemm(h, weight), ours, chain, torch.full((9, 1), 7)


@pytest.mark.parametrize("rule", ["token", "block"])
def test_an_uncovered_row_ends_the_chain_with_its_own_draw(rule):
    h, weight, logits, ours, chain, ids = flat_call({"top_p": 0.9})
    got, record, status = from_record(h, weight, ids, ours, chain, rule=rule)
    assert record.covered.tolist() == [True, False, True] * 3
    assert (status == Status.BOUND_TOO_SMALL).all()
    # As if the draft after the flat row were not there.
    keep = torch.tensor([0, 1, 3, 4, 6, 7])
    want = verify_chain(
        chain["tokens"][keep],
        logits[keep],
        **ours | {"positions": ours["positions"][keep], "cu_verify": torch.arange(0, 7, 2)},
        rule=rule,
        max_path=2,
    )
    assert torch.equal(got.emitted, want.emitted) and torch.equal(got.logprobs, want.logprobs)
    assert (got.num_emitted == 2).all() and (got.emitted[:, 0] == 7).all()
    few = torch.zeros(9, dtype=torch.int32)
    again, _, _ = from_record(
        h, weight, ids, ours, chain, {"max_fallback_rows": 2, "status": few}, rule=rule
    )
    assert torch.equal(again.emitted, got.emitted)
    assert few.tolist() == [0] * 7 + [Status.BOUND_TOO_SMALL, 0]


@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_row_without_a_draw_ends_the_path_before_it(rule):
    """Uncovered rows of merged shards: nobody has drawn from them."""
    h, weight, _, ours, chain, ids = flat_call({"top_p": 0.9})
    record = lm_head_verify(h, weight, ids, **ours)
    record.rest_ids[:] = -1
    status = torch.zeros(3, dtype=torch.int32)
    call = {**ours, **chain, "rule": rule, "record_ids": ids, "status": status}
    got = verify_chain(record=record, **call)
    assert got.emitted.tolist() == [[7, -1, -1]] * 3 and got.num_accepted.tolist() == [0] * 3
    assert (status == Status.BOUND_TOO_SMALL).all()
    record.covered[3] = False  # an anchor
    got = verify_chain(record=record, **call)
    assert got.num_emitted.tolist() == [1, 0, 1] and got.emitted[1].tolist() == [-1, -1, -1]


def test_ids_that_the_record_does_not_list_end_the_chain():
    h, weight, logits, ours, chain, ids = head_call(3, [3, 3], 300, 4, [{}])
    short = ids.clone()
    other = (ids[:, 0] == ids[:, 4]).long()[:, None]  # an id of q, but not the draft
    short.scatter_(1, other, -1)
    got, _, status = from_record(h, weight, short, ours, chain)
    assert (status == Status.BAD_Q).all() and (got.num_emitted == 1).all()
    first = torch.tensor([0, 3])
    alone = {"positions": ours["positions"][first], "cu_verify": torch.arange(3)}
    want = verify_chain(chain["tokens"][first], logits[first], **ours | alone, max_path=2)
    assert torch.equal(got.emitted, want.emitted)  # drawn from p
    none = {"tokens": chain["tokens"], "max_path": 2}
    _, _, status = from_record(h, weight, torch.full_like(ids, 5), ours, none)
    assert (status == Status.BAD_Q).all()


def test_a_bad_record_gives_no_bad_token():
    h, weight, _, ours, chain, ids = head_call(5, [3] * 16, 50, 4, LAWS)
    good = lm_head_verify(h, weight, ids, **ours)
    g = torch.Generator().manual_seed(0)
    nan = torch.tensor([float("nan"), INF, -INF, 3e38, -1.0])
    for part, x in enumerate(good):
        bad = [y.clone() for y in good]
        if x.dtype == torch.bool:
            bad[part] = ~x
        elif x.dtype == torch.int64:
            wrong = torch.tensor([-1, -2, 50, 2**40, -(2**40), 3])
            bad[part] = wrong[torch.randint(6, x.shape, generator=g)]
        else:
            bad[part] = nan[torch.randint(5, x.shape, generator=g)]
        for rule in ("token", "block"):
            got = verify_chain(record_ids=ids, record=HeadRecord(*bad), **ours, **chain, rule=rule)
            there = torch.arange(3) < got.num_emitted[:, None]
            assert (got.emitted[there] >= 0).all() and (got.emitted[there] < 50).all()
            assert (got.emitted[~there] == -1).all()


def test_padded_rows_and_requests():
    h, weight, _, ours, chain, ids = head_call(1, [3, 3, 3], 40, 4, [{}])
    rows = {"verify_rows": torch.tensor([0, 1, -1, 3, 4, 5, 6, 7, 8])}
    ours = ours | {"req_rows": torch.tensor([0, -1, 2])}
    h[8], h[3:6] = float("nan"), float("nan")
    got, _, status = from_record(h, weight, ids, ours, chain | rows, rows)
    assert got.num_emitted[1] == 0 and got.num_emitted[0] <= 2
    assert status.tolist()[:2] == [0, 0]
    assert (got.emitted < 40).all()


def valid_call():
    h, weight, _, ours, chain, ids = head_call(0, [3, 2], 40, 4, [{}])
    record = lm_head_verify(h, weight, ids, **ours)
    return {**ours, **chain, "record_ids": ids, "record": record}


WRONG = [
    ("record", None, ValueError, "logits or record must be given with tokens, got None"),
    ("record_ids", None, ValueError, "record_ids must be given with record, got None"),
    ("vocab_size", None, ValueError, "vocab_size must be given with record, got None"),
    ("logits", torch.zeros(5, 40), ValueError, "record must be None with logits, got a record"),
    ("softcap", 3.0, ValueError, "logits must be given with softcap, got None"),
    (
        "token_mask",
        torch.zeros(5, 2).int(),
        ValueError,
        "logits must be given with token_mask, got None",
    ),
    ("q_ids", None, ValueError, "q_ids must be given with q and a record, got None"),
    (
        "record_ids",
        torch.zeros(5, 4).int(),
        ValueError,
        "record.values must have shape [Tv, K] = [5, 4], got [5, 5]",
    ),
    (
        "record_ids",
        torch.zeros(4, 5).int(),
        ValueError,
        "record_ids must have shape [Tv, K] = [5, *], got [4, 5]",
    ),
]


@pytest.mark.parametrize(("name", "value", "error", "text"), WRONG)
def test_names_what_is_wrong(name, value, error, text):
    call = valid_call() | {name: value}
    assert_raises_alike(verify_chain, torch.ops.dflash.verify_chain, call, {}, error, text)


def test_opcheck_and_compile():
    call = valid_call()
    args = call.pop("tokens"), None
    record = list(call.pop("record"))
    op = torch.ops.dflash.verify_chain
    torch.library.opcheck(op.default, args, call | {"record": record, "probe": True})
    assert_compiles_whole(verify_chain, valid_call())
