"""Rejection verification of chains emits the target's law, exactly: enumeration by `probe`."""

from itertools import product

import pytest
import torch

from dflash_ops import Verified, verify_chain
from dflash_ops.reference.rejection import target_probs

TOLERANCE = 2e-6
KINDS = ["dense", "sparse", "none", "close", "zeros"]


class Model:
    """Laws of a target and a drafter after every prefix of up to `depth` tokens."""

    def __init__(self, vocab, depth, kind, seed, law):
        g = torch.Generator().manual_seed(seed)
        self.vocab, self.depth, self.kind, self.law = vocab, depth, kind, law
        self.logits, self.q = {}, {}
        for length in range(depth + 1):
            for prefix in product(range(vocab), repeat=length):
                z = torch.randn(vocab, generator=g) * 2
                q = torch.rand(vocab, generator=g) ** 2 + 1e-3
                if kind == "zeros":  # either law is zero where the other is not
                    z[torch.rand(vocab, generator=g) < 0.3] = -40.0
                    q[torch.rand(vocab, generator=g) < 0.4] = 0.0
                    q[int(torch.randint(vocab, (), generator=g))] += 0.5
                if kind == "close":
                    q = z.softmax(dim=0)
                if kind == "none":  # a greedy drafter
                    q = torch.eye(vocab)[int(torch.randint(vocab, (), generator=g))]
                self.logits[prefix] = z
                self.q[prefix] = q / q.sum() * (1 - 1e-6)  # the op renormalises

    def p(self, prefix):
        law = {"temperature": 1.0, **self.law}
        return target_probs(self.logits[prefix].double(), law)

    def word_law(self, length):
        law = {(): 1.0}
        for _ in range(length):
            law = {
                (*w, v): x * float(self.p(w)[v]) for w, x in law.items() for v in range(self.vocab)
            }
        return law


def call_of(model, start, num_drafts, rule, kind):
    """Every chain that the drafter may draw after `start`, as a request of its own."""
    vocab = model.vocab
    chains = list(product(range(vocab), repeat=num_drafts))
    rows = [
        (start + chain[:i], (chain[i - 1] if i else 0))
        for chain in chains
        for i in range(num_drafts + 1)
    ]
    q = torch.stack([model.q[prefix] for prefix, _ in rows])
    call = {
        "tokens": torch.tensor([token for _, token in rows]),
        "logits": torch.stack([model.logits[prefix] for prefix, _ in rows]),
        "positions": torch.arange(num_drafts + 1).repeat(len(chains)) + 5,
        "cu_verify": torch.arange(0, len(rows) + 1, num_drafts + 1),
        "temperature": torch.full((len(chains),), model.law.get("temperature", 1.0)),
        "seeds": torch.arange(len(chains)),
        "rule": rule,
        "max_path": num_drafts,
        "probe": True,
    }
    for name in ("top_k", "top_p", "min_p"):
        if name in model.law:
            dtype = torch.int64 if name == "top_k" else torch.float32
            call[name] = torch.full((len(chains),), model.law[name], dtype=dtype)
    if kind in ("dense", "close", "zeros"):
        call["q"] = q
    elif kind == "sparse":  # shuffled, one id twice, one absent
        g = torch.Generator().manual_seed(0)
        order = torch.argsort(torch.rand(len(q), vocab, generator=g), dim=1)
        values = q.gather(1, order)
        call["q_ids"] = torch.cat([order, order[:, :1], torch.full((len(q), 1), -1)], dim=1)
        call["q"] = torch.cat(
            [values[:, :1] / 2, values[:, 1:], values[:, :1] / 2, torch.ones(len(q), 1)], dim=1
        )
    return chains, call


def stops(rule, accept):
    """Probability of each accepted length, from the accept probabilities of the drafts."""
    n = len(accept)
    if rule == "token":
        kept = [1.0]
        for a in accept:
            kept.append(kept[-1] * a)
        return [kept[i] - (kept[i + 1] if i < n else 0.0) for i in range(n + 1)]
    law = []
    for i in range(n + 1):
        x = accept[i - 1] if i else 1.0
        for a in accept[i:]:
            x *= 1 - a
        law.append(x)
    return law


def one_cycle(model, start, num_drafts, rule, kind):
    """The law of what one cycle emits after `start`."""
    chains, call = call_of(model, start, num_drafts, rule, kind)
    got = Verified(*verify_chain(**call))
    weights = got.weights.double()
    weights = weights / weights.sum(dim=1, keepdim=True)
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
            for v in range(model.vocab):
                word = (*chain[:i], v)
                law[word] = law.get(word, 0.0) + drawn * stop * float(weights[first + i, v])
    return law


def extend(model, law, length):
    """The law of words of `length` tokens when the target goes on alone."""
    whole = {}
    for word, x in law.items():
        tails = {word: x}
        while len(next(iter(tails))) < length:
            tails = {
                (*w, v): y * float(model.p(w)[v])
                for w, y in tails.items()
                for v in range(model.vocab)
            }
        for w, y in tails.items():
            whole[w] = whole.get(w, 0.0) + y
    return whole


def assert_law(law, want):
    assert abs(sum(law.values()) - 1) < TOLERANCE
    worst = max(abs(law.get(w, 0.0) - x) for w, x in want.items())
    assert worst < TOLERANCE, worst
    assert set(law) <= set(want) or max(law[w] for w in set(law) - set(want)) < TOLERANCE


LAWS = [
    {},
    {"temperature": 0.6},
    {"top_k": 2},
    {"top_p": 0.7, "temperature": 1.4},
    {"min_p": 0.3},
    {"temperature": 0.0},
]


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("vocab", "num_drafts"), [(2, 0), (2, 1), (3, 2), (2, 3), (5, 2), (2, 4), (3, 3)]
)
def test_one_cycle(rule, kind, vocab, num_drafts):
    for seed, law in enumerate(LAWS if vocab * num_drafts <= 6 else LAWS[:3]):
        model = Model(vocab, num_drafts, kind, seed, law)
        cycle = one_cycle(model, (), num_drafts, rule, kind)
        assert_law(extend(model, cycle, num_drafts + 1), model.word_law(num_drafts + 1))


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("kind", KINDS)
def test_two_cycles(rule, kind):
    """The second cycle starts where the first one stopped, with drafts of its own."""
    vocab, num_drafts, length = 2, 2, 6
    model = Model(vocab, length, kind, 7, {})
    law = {}
    for word, x in one_cycle(model, (), num_drafts, rule, kind).items():
        for tail, y in one_cycle(model, word, num_drafts, rule, kind).items():
            law[word + tail] = law.get(word + tail, 0.0) + x * y
    assert_law(extend(model, law, length), model.word_law(length))


@pytest.mark.parametrize("kind", ["dense", "sparse", "none", "zeros"])
def test_accepted_length_is_the_closed_form(kind):
    """token: sum over prefixes of prod min(p, q); block: of q times the scale; block >= token."""
    vocab, num_drafts = 3, 3
    model = Model(vocab, num_drafts, kind, 3, {})
    want = {"token": 0.0, "block": 0.0}
    for n in range(1, num_drafts + 1):
        for chain in product(range(vocab), repeat=n):
            both, drawn, scale = 1.0, 1.0, 1.0
            for i, token in enumerate(chain):
                p, q = model.p(chain[:i])[token], model.q[chain[:i]].double()
                q = q[token] / q.sum()
                both, drawn = both * float(min(p, q)), drawn * float(q)
                scale = min(scale * float(p) / float(q), 1.0) if q > 0 else 0.0
            want["token"] += both
            want["block"] += drawn * scale
    got = {}
    for rule in want:
        law = {}
        chains, call = call_of(model, (), num_drafts, rule, kind)
        probed = verify_chain(**call)
        got[rule] = 0.0
        for b, chain in enumerate(chains):
            drawn = 1.0
            for i, token in enumerate(chain):
                q = model.q[chain[:i]].double()
                drawn *= float(q[token] / q.sum())
            first = b * (num_drafts + 1)
            accept = probed.accept_probs[first + 1 : first + num_drafts + 1].tolist()
            got[rule] += drawn * sum(i * x for i, x in enumerate(stops(rule, accept)))
        assert not law
        assert abs(got[rule] - want[rule]) < TOLERANCE
    assert got["block"] >= got["token"] - TOLERANCE


@pytest.mark.parametrize("rule", ["token", "block"])
def test_no_counter_serves_twice(rule):
    """Over two cycles that overlap in every way: a position is drafted again after a rejection."""
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


def play(rule, num_seeds, length, gamma, p, q, seed):
    """Words of the real loop with real seeds: draft, verify, repeat."""
    words = torch.full((num_seeds, length + gamma), -1)
    lengths = torch.zeros(num_seeds, dtype=torch.int64)
    g = torch.Generator().manual_seed(seed)
    logits = p.log().float().expand(num_seeds * (gamma + 1), -1)
    laws = q.float().expand(num_seeds * (gamma + 1), -1)
    cu = torch.arange(0, num_seeds * (gamma + 1) + 1, gamma + 1)
    while (lengths < length).any():
        drafts = torch.multinomial(q.expand(num_seeds * gamma, -1), 1, generator=g).view(
            num_seeds, gamma
        )
        tokens = torch.cat([torch.zeros(num_seeds, 1).long(), drafts], dim=1).flatten()
        positions = (lengths[:, None] + torch.arange(gamma + 1)).flatten()
        got = verify_chain(
            tokens,
            logits,
            positions=positions,
            cu_verify=cu,
            q=laws,
            rule=rule,
            max_path=gamma,
            temperature=torch.ones(num_seeds),
            seeds=torch.arange(num_seeds) + 1000 * seed,
        )
        for j in range(gamma + 1):
            take = (j < got.num_emitted) & (lengths + j < words.shape[1])
            at = (lengths + j).clamp(max=words.shape[1] - 1)
            words[take, at[take]] = got.emitted[take, j]
        lengths = (lengths + got.num_emitted).clamp(max=words.shape[1])
    return words[:, :length]


@pytest.mark.parametrize("rule", ["token", "block"])
def test_words_of_real_seeds(rule):
    """Coins that were seen must not be met again: with c3 = 0 block is off by 0.08 here."""
    n, length = 60_000, 4
    p, q = (
        torch.tensor([0.5, 0.5], dtype=torch.float64),
        torch.tensor([0.85, 0.15], dtype=torch.float64),
    )
    words = play(rule, n, length, 3, p, q, 1)
    code = (words * 2 ** torch.arange(length)).sum(dim=1)
    frequency = torch.bincount(code, minlength=2**length).double() / n
    assert (frequency - 1 / 2**length).abs().sum() / 2 < 0.01
