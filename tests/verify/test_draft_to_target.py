"""Drafters with a smaller vocabulary: q over draft ids and the map give what q over tokens gives."""

import pytest
import torch
from calls import assert_raises_alike
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_ops import Status, reference, verify_chain, verify_tree

VOCAB, DRAFT_VOCAB = 97, 24


def random_call(seed, sparse, batch=6, size=4):
    """Chains, which are trees too; the map has an unused entry that is bad, and a token twice."""
    g = torch.Generator().manual_seed(seed)
    rows = batch * size
    tokens_of = torch.randperm(VOCAB, generator=g)[:DRAFT_VOCAB]
    tokens_of[3] = tokens_of[17]
    tokens_of[5] = VOCAB
    q = torch.rand(rows, DRAFT_VOCAB, generator=g) ** 3
    q[:, 5] = 0
    call = {
        "logits": torch.randn(rows, VOCAB, generator=g),
        "positions": torch.arange(size).repeat(batch),
        "cu_verify": torch.arange(0, rows + 1, size),
        "temperature": torch.ones(batch),
        "seeds": torch.randint(2**62, (batch,), generator=g),
        "max_path": size - 1,
        "probe": True,
    }
    over_tokens = torch.zeros(rows, VOCAB)
    if sparse:
        ids = torch.stack([torch.randperm(DRAFT_VOCAB, generator=g)[:7] for _ in range(rows)])
        ids = ids.where(ids != 5, -1)
        values = q.gather(1, ids.clamp(min=0))
        mapped = tokens_of[ids.clamp(min=0)].where(ids >= 0, -1)
        over = {"q": values, "q_ids": mapped}
        draft = {"q": values, "q_ids": ids}
        pick = torch.multinomial(values.where(ids >= 0, 0), 1, generator=g)
        drafts = mapped.gather(1, pick)[:, 0]
    else:
        valid = torch.arange(DRAFT_VOCAB) != 5
        over_tokens.index_add_(1, tokens_of[valid], q[:, valid])
        over, draft = {"q": over_tokens}, {"q": q}
        drafts = tokens_of[torch.multinomial(q, 1, generator=g)[:, 0]]
    call["tokens"] = drafts.roll(1)
    return call, over, draft | {"draft_to_target": tokens_of}


def parents_of(call):
    return call["positions"] - 1


@settings(max_examples=30)
@given(
    sparse=st.booleans(),
    rule=st.sampled_from(["token", "block", "rrs", "traversal"]),
    dtype=st.sampled_from([torch.int32, torch.int64]),
    seed=st.integers(0, 2**31 - 1),
)
def test_is_q_over_tokens(sparse, rule, dtype, seed):
    call, over, draft = random_call(seed, sparse)
    draft["draft_to_target"] = draft["draft_to_target"].to(dtype)
    verify, right = verify_chain, reference.verify_chain
    if rule in ("rrs", "traversal"):
        verify, right = verify_tree, reference.verify_tree
        call["parents"] = parents_of(call)
    status = torch.zeros(6, dtype=torch.int32)
    got = verify(**call, **draft, rule=rule, status=status)
    want = verify(**call, **over, rule=rule)
    assert not status.any()
    exact = got[:5] + got[6:8] if sparse else got[:4]
    same = want[:5] + want[6:8] if sparse else want[:4]
    # A dense q over tokens sums in another order: its normalisation may differ in the last bits.
    assert all(torch.equal(a, b) for a, b in zip(exact, same, strict=True))
    assert (got.weights - want.weights).abs().max() <= 4 * 2.0**-24
    call.pop("probe")
    ref = right(**call, **draft, rule=rule)
    assert torch.equal(got.emitted, ref.emitted)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("bad", [-1, VOCAB, 2**40, -(2**40)])
def test_a_bad_entry_is_bad_q(sparse, bad):
    """As a q of an id that is no token: only rows that use it are affected."""
    call, _, draft = random_call(1, sparse)
    tokens_of = draft["draft_to_target"]
    used = 9
    tokens_of[used] = bad
    q = draft["q"].clone()
    if sparse:
        draft["q_ids"] = draft["q_ids"].where(draft["q_ids"] != used, 8)
        draft["q_ids"][::4, 0] = torch.tensor([used, 8, 8, 8, 8, 8])
    else:
        q[:, used] = 0
        q[0, used] = 0.5
    draft["q"] = q
    for verify, more in ((verify_chain, {}), (verify_tree, {"parents": parents_of(call)})):
        status = torch.zeros(6, dtype=torch.int32)
        got = verify(**call, **draft, **more, status=status)
        assert status.tolist() == [Status.BAD_Q, 0, 0, 0, 0, 0]
        assert got.num_emitted[0] == 1
        p = call["logits"][0].double().softmax(dim=0)
        assert (got.weights[0].double() - p).abs().max() < 60 * 2.0**-24


@pytest.mark.parametrize("draft_id", [DRAFT_VOCAB, VOCAB, 2**40, -2])
def test_a_draft_id_outside_the_map_is_bad_q(draft_id):
    call, _, draft = random_call(2, True)
    draft["q_ids"][0, 0] = draft_id
    status = torch.zeros(6, dtype=torch.int32)
    verify_chain(**call, **draft, status=status)
    assert status.tolist() == [Status.BAD_Q, 0, 0, 0, 0, 0]


WRONG = [
    ({"q": None}, ValueError, "q must be given with draft_to_target, got None"),
    (
        {"q": torch.zeros(24, DRAFT_VOCAB - 1)},
        ValueError,
        f"q must have shape [Tv, Vd] = [24, {DRAFT_VOCAB}], got [24, {DRAFT_VOCAB - 1}]",
    ),
    (
        {"draft_to_target": torch.zeros(DRAFT_VOCAB)},
        TypeError,
        "draft_to_target must be int32 or int64, got float32",
    ),
]


@pytest.mark.parametrize(("change", "error", "text"), WRONG)
def test_names_what_is_wrong(change, error, text):
    call, _, draft = random_call(0, False)
    call |= draft | change
    for verify, more in ((verify_chain, {}), (verify_tree, {"parents": parents_of(call)})):
        op = getattr(torch.ops.dflash, verify.__name__)
        assert_raises_alike(verify, op, call | more, {}, error, text)
