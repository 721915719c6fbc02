"""Chains verified from the record of lm_head_verify emit the target's law: enumeration by `probe`."""

import pytest
import torch
from test_chain_laws import LAWS, Model, assert_law, call_of, extend, stops

from dflash_ops import lm_head_verify, verify_chain

KINDS = ["sparse", "none", "few"]


def record_call(model, start, num_drafts, rule, kind):
    """The call of `call_of`, its logits made by a head: row i of h picks column i of the weight.

    few: a drafter that has only two tokens, so that ids are left that the record does not list.
    """
    if kind == "few":
        for q in model.q.values():
            q[2:] = 0
            q /= q.sum()
    chains, call = call_of(model, start, num_drafts, rule, "sparse" if kind == "few" else kind)
    logits = call.pop("logits")
    rows = len(logits)
    ids = call["tokens"].roll(-1)[:, None]
    if kind == "few":
        pairs = torch.tensor([[1, 0, -1]]).repeat(rows, 1)
        call["q"] = torch.stack(
            [
                model.q[start + chain[:i]][[1, 0, 1]]
                for chain in chains
                for i in range(num_drafts + 1)
            ]
        )
        call["q_ids"] = pairs
    if "q_ids" in call:
        ids = torch.cat([call["q_ids"], ids], dim=1)
    ours = {
        name: call[name]
        for name in ("positions", "cu_verify", "temperature", "top_k", "top_p", "min_p", "seeds")
        if name in call
    }
    head = {"h": torch.eye(rows), "weight": logits.T.contiguous()}
    record = lm_head_verify(**head, ids=ids, **ours)
    return chains, call | {"record_ids": ids, "record": record, "vocab_size": model.vocab}


def one_cycle(model, start, num_drafts, rule, kind):
    """The law of what one cycle emits after `start`. Of the ids that a row does not list one was
    drawn with noise of its own; their weight belongs to all of them, in p's shares."""
    chains, call = record_call(model, start, num_drafts, rule, kind)
    got = verify_chain(**call)
    law = {}
    for b, chain in enumerate(chains):
        drawn = 1.0
        for i, token in enumerate(chain):
            q = model.q[start + chain[:i]].double()
            drawn *= float(q[token] / q.sum())
        if drawn == 0:
            continue
        first = b * (num_drafts + 1)
        accept = got.accept_probs[first + 1 : first + num_drafts + 1].tolist()
        for i, stop in enumerate(stops(rule, accept)):
            weights = got.weights[first + i].double()
            rest = int(call["record"].rest_ids[first + i])
            if rest >= 0:
                listed = call["record_ids"][first + i]
                p = model.p(start + chain[:i]).index_fill(0, listed[listed >= 0], 0.0)
                mass = weights[rest].clone()
                weights[rest] = 0
                weights += mass * p / p.sum()
            for v, x in enumerate((weights / weights.sum()).tolist()):
                word = (*chain[:i], v)
                law[word] = law.get(word, 0.0) + drawn * stop * x
    return law


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("vocab", "num_drafts"), [(2, 0), (3, 1), (3, 2), (5, 2), (2, 4), (3, 3)])
def test_one_cycle(rule, kind, vocab, num_drafts):
    for seed, law in enumerate(LAWS if vocab * num_drafts <= 6 else LAWS[:3]):
        model = Model(vocab, num_drafts, "sparse" if kind == "few" else kind, seed, law)
        cycle = one_cycle(model, (), num_drafts, rule, kind)
        assert_law(extend(model, cycle, num_drafts + 1), model.word_law(num_drafts + 1))


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("kind", KINDS)
def test_two_cycles(rule, kind):
    vocab, num_drafts, length = 3, 1, 4
    model = Model(vocab, length, "sparse" if kind == "few" else kind, 7, {})
    law = {}
    for word, x in one_cycle(model, (), num_drafts, rule, kind).items():
        for tail, y in one_cycle(model, word, num_drafts, rule, kind).items():
            law[word + tail] = law.get(word + tail, 0.0) + x * y
    assert_law(extend(model, law, length), model.word_law(length))
