"""Rejection verification of chains emits the target's law, exactly: enumeration by `probe`."""

from itertools import product

import pytest
import torch
from words import LAWS, TOLERANCE, Model, assert_law, total_variation, two_cycles

from dflash_ops import verify_chain

RULES = ["token", "block"]
KINDS = ["dense", "sparse", "none", "close", "zeros"]


def call_of(model, start, chains, rule, kind):
    """Every chain as a request of its own, all of one length."""
    n = len(chains[0])
    prefixes = [start + chain[:i] for chain in chains for i in range(n + 1)]
    return {
        "tokens": torch.tensor([(0, *chain) for chain in chains]).flatten(),
        "positions": torch.arange(n + 1).repeat(len(chains)) + 5,
        "cu_verify": torch.arange(0, len(prefixes) + 1, n + 1),
        "rule": rule,
        "max_path": n,
        "probe": True,
        **model.laws_of_call(prefixes, len(chains), kind),
    }


def stops(rule, accept):
    """Probability of each accepted length, from the accept probabilities of the drafts."""
    if rule == "token":
        law, x = [], 1.0
        for a in accept:
            law.append(x * (1 - a))
            x *= a
        return [*law, x]
    law, x = [], 1.0
    for a in reversed(accept):
        law.insert(0, x * a)
        x *= 1 - a
    return [x, *law]


def one_cycle(model, start, num_drafts, rule, kind, cut=None, verify=verify_chain):
    """The law of what one cycle emits after `start`, and the expected number of accepted drafts.
    `cut` shortens the chains after they were drawn."""
    drawn = {(): 1.0}
    for _ in range(num_drafts):
        drawn = {
            (*c, v): x * y
            for c, x in drawn.items()
            for v, y in enumerate(model.q_of(start + c))
            if y > 0
        }
    submitted = {}
    for chain, x in drawn.items():
        chain = chain if cut is None else cut(chain)
        submitted[chain] = submitted.get(chain, 0.0) + x
    law, accepted = {}, 0.0
    for n in {len(chain) for chain in submitted}:
        chains = [chain for chain in submitted if len(chain) == n]
        got = verify(**call_of(model, start, chains, rule, kind))
        weights = got.weights.double()
        weights = (weights / weights.sum(dim=1, keepdim=True)).view(-1, n + 1, model.vocab).tolist()
        accept = got.accept_probs.view(-1, n + 1)[:, 1:].tolist()
        for b, chain in enumerate(chains):
            for i, stop in enumerate(stops(rule, accept[b])):
                x = submitted[chain] * stop
                accepted += i * x
                for v, y in enumerate(weights[b][i]):
                    word = (*chain[:i], v)
                    law[word] = law.get(word, 0.0) + x * y
    return law, accepted


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocab", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("num_drafts", [0, 1, 2, 3, 4])
def test_one_cycle(kind, vocab, num_drafts):
    some = LAWS if vocab**num_drafts <= 32 else LAWS[vocab % 3 :: 3]
    for seed, law in enumerate(some):
        model = Model(vocab, num_drafts, kind, seed, law)
        want = model.word_law(num_drafts + 1)
        for rule in RULES:
            cycle, _ = one_cycle(model, (), num_drafts, rule, kind)
            assert_law(model.extend(cycle, num_drafts + 1), want)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("vocab", "first", "second"), [(2, 2, 2), (2, 3, 4), (2, 4, 1), (3, 2, 2)])
def test_two_cycles(rule, kind, vocab, first, second):
    """The second cycle starts where the first one stopped, with drafts of its own."""
    for law in LAWS[:4]:
        model = Model(vocab, first + second + 2, kind, 7, law)
        two_cycles(
            model,
            lambda start, m=model: one_cycle(m, start, first, rule, kind)[0],
            lambda start, m=model: one_cycle(m, start, second, rule, kind)[0],
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("vocab", "num_drafts"), [(2, 4), (3, 3), (5, 2)])
def test_accepted_length_is_the_closed_form(kind, vocab, num_drafts):
    """token: sum over prefixes of prod min(p, q); block: of q times the scale; block >= token."""
    for seed, law in enumerate(LAWS):
        model = Model(vocab, num_drafts, kind, seed, law)
        want = {"token": 0.0, "block": 0.0}
        for n in range(1, num_drafts + 1):
            for chain in product(range(vocab), repeat=n):
                both, drawn, scale = 1.0, 1.0, 1.0
                for i, token in enumerate(chain):
                    p, q = model.p(chain[:i])[token], model.q_of(chain[:i])[token]
                    both, drawn = both * min(p, q), drawn * q
                    scale = min(scale * p / q, 1.0) if q > 0 else 0.0
                want["token"] += both
                want["block"] += drawn * scale
        for rule in RULES:
            assert abs(one_cycle(model, (), num_drafts, rule, kind)[1] - want[rule]) < TOLERANCE
        assert want["block"] >= want["token"] - TOLERANCE


@pytest.mark.parametrize("rule", RULES)
def test_a_chain_may_be_cut_by_what_was_drawn_before_but_not_by_its_own_draft(rule):
    """Predictability: stopping at an unlikely draft biases the law; stopping after one does not."""
    model = Model(3, 3, "dense", 2, {})
    model.logits[()], model.q[()] = (
        torch.tensor([0.2, 0.3, 0.5]).log(),
        torch.tensor([0.6, 0.3, 0.1]),
    )
    want = model.word_law(4)

    def before_unlikely(chain):
        return next((chain[:i] for i, v in enumerate(chain) if model.q[chain[:i]][v] < 0.2), chain)

    def after_unlikely(chain):
        kept = before_unlikely(chain)
        return chain[: len(kept) + 1]

    bias = {}
    for cut in (before_unlikely, after_unlikely):
        law, _ = one_cycle(model, (), 3, rule, "dense", cut)
        bias[cut] = total_variation(model.extend(law, 4), want)
    print(rule, f"{bias[before_unlikely]:.3f} {bias[after_unlikely]:.1e}")
    assert bias[before_unlikely] > 0.05 and bias[after_unlikely] < TOLERANCE


@pytest.mark.parametrize("rule", RULES)
def test_without_q_the_law_stays_and_less_is_accepted(rule):
    """Sampled drafts taken for deterministic ones: each is a given draft, so nothing is biased."""
    lost = 0.0
    for seed, law in enumerate(LAWS[:5]):
        model = Model(3, 3, "dense", seed, law)

        def without_q(**call):
            return verify_chain(**{k: x for k, x in call.items() if k != "q"})

        whole = one_cycle(model, (), 3, rule, "dense")
        cycle = one_cycle(model, (), 3, rule, "dense", verify=without_q)
        assert_law(model.extend(cycle[0], 4), model.word_law(4))
        assert cycle[1] < whole[1] + TOLERANCE
        lost += whole[1] - cycle[1]
    assert lost > 0.5


@pytest.mark.parametrize("rule", RULES)
def test_an_argmax_drafter_must_not_hand_over_its_softmax(rule):
    """Its draft was not drawn from that q: the law is off. As deterministic, it is not."""
    model = Model(3, 1, "dense", 2, {})
    model.logits[()], model.q[()] = (
        torch.tensor([0.2, 0.3, 0.5]).log(),
        torch.tensor([0.6, 0.3, 0.1]),
    )
    want = model.word_law(2)

    def deterministic(**call):
        return verify_chain(**call, draft_kind=torch.zeros(len(call["seeds"])).int())

    bias = [
        total_variation(model.extend(law, 2), want)
        for law, _ in (
            one_cycle(model, (), 1, rule, "dense", lambda chain: (0,), verify)
            for verify in (verify_chain, deterministic)
        )
    ]
    assert bias[0] > 0.1 and bias[1] < TOLERANCE


@pytest.mark.parametrize("rule", RULES)
def test_no_counter_serves_twice(rule):
    """Over cycles that overlap in every way: a position is drafted again after a rejection."""
    seen = set()
    for anchor in range(4):
        positions = torch.arange(5) + anchor
        got = verify_chain(
            torch.zeros(5).int(),
            torch.zeros(5, 2),
            positions=positions,
            cu_verify=torch.tensor([0, 5]),
            q=torch.ones(5, 2),
            temperature=torch.ones(1),
            seeds=torch.zeros(1).long(),
            rule=rule,
            max_path=4,
            probe=True,
        )
        counters = got.counters.flatten(0, 1)
        used = [tuple(x) for x in counters[counters[:, 1] >= 0].tolist()]
        assert len(used) == 4 + 5 and len(set(used)) == len(used)
        assert {c2 & 3 for _, _, c2, _ in used} == {2, 3} and {c3 for *_, c3 in used} == {anchor}
        assert not seen & set(used)
        seen |= set(used)
