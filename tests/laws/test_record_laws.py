"""Chains verified from the record of lm_head_verify emit the target's law: enumeration by `probe`."""

import pytest
import torch
from test_chain_laws import RULES, one_cycle
from words import LAWS, Model, assert_law, two_cycles

from dflash_ops import lm_head_verify, verify_chain
from dflash_ops.reference.rejection import target_probs
from dflash_ops.reference.sample import state_law

KINDS = ["sparse", "none", "few"]


def by_record(**call):
    """verify_chain, its logits made by a head: row i of h picks column i of the weight.

    Of the ids that a row does not list one was drawn with noise of its own; their weight, which
    stands in one sum, belongs to all of them in p's shares.
    """
    logits, ids = call.pop("logits"), call["tokens"].roll(-1)[:, None]
    if "q_ids" in call:
        ids = torch.cat([call["q_ids"], ids], dim=1)
    names = ("positions", "cu_verify", "temperature", "top_k", "top_p", "min_p", "seeds")
    laws = {name: call[name] for name in names if name in call}
    record = lm_head_verify(torch.eye(len(logits)), logits.T.contiguous(), ids, **laws)
    got = verify_chain(**call, record_ids=ids, record=record, vocab_size=logits.shape[1])
    for i in (record.rest_ids >= 0).nonzero()[:, 0].tolist():
        p = target_probs(logits[i].double(), state_law(laws, 0))
        p[ids[i][ids[i] >= 0]] = 0.0
        mass = got.weights[i, record.rest_ids[i]].clone()
        got.weights[i, record.rest_ids[i]] = 0.0
        got.weights[i] += (mass * p / p.sum()).float()
    return got


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("vocab", "num_drafts"), [(2, 0), (3, 1), (3, 2), (5, 2), (2, 4), (3, 3)])
def test_one_cycle(kind, vocab, num_drafts):
    for seed, law in enumerate(LAWS if vocab * num_drafts <= 6 else LAWS[:3]):
        model = Model(vocab, num_drafts, kind, seed, law)
        for rule in RULES:
            cycle, _ = one_cycle(model, (), num_drafts, rule, kind, verify=by_record)
            law_of_words = model.extend(cycle, num_drafts + 1)
            assert_law(law_of_words, model.word_law(num_drafts + 1))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", KINDS)
def test_two_cycles(rule, kind):
    model = Model(3, 4, kind, 7, {})

    def cycle(start):
        return one_cycle(model, start, 1, rule, kind, verify=by_record)[0]

    two_cycles(model, cycle, cycle)
