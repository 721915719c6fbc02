"""A target and a drafter over few tokens, and the law of the words that they write."""

from itertools import product

import torch

from dflash_ops.reference.rejection import target_probs

TOLERANCE = 2e-6
LAWS = [
    {},
    {"temperature": 0.6},
    {"top_k": 2},
    {"top_p": 0.7, "temperature": 1.4},
    {"min_p": 0.3},
    {"temperature": 0.0},
]


class Model:
    """Laws of a target and a drafter after every prefix of up to `depth` tokens.

    kind: "dense" and "sparse" laws have nothing in common; "close": the drafter's is the target's
    at temperature 1; "none": a greedy drafter's; "few": of the first two tokens alone; "zeros":
    either is zero where the other is not.
    """

    def __init__(self, vocab, depth, kind, seed, law):
        g = torch.Generator().manual_seed(seed)
        self.vocab, self.depth, self.kind, self.law = vocab, depth, kind, law
        self.logits, self.q, self.known = {}, {}, {}
        for length in range(depth + 1):
            for prefix in product(range(vocab), repeat=length):
                z = torch.randn(vocab, generator=g) * 2
                q = torch.rand(vocab, generator=g) ** 2 + 1e-3
                if kind == "zeros":
                    z[torch.rand(vocab, generator=g) < 0.3] = -torch.inf
                    z[int(torch.randint(vocab, (), generator=g))] = 0.5
                    q[torch.rand(vocab, generator=g) < 0.4] = 0.0
                    q[int(torch.randint(vocab, (), generator=g))] += 0.5
                if kind == "close":
                    q = z.softmax(dim=0)
                if kind == "few":
                    q[2:] = 0.0
                if kind == "none":
                    q = torch.eye(vocab)[int(torch.randint(vocab, (), generator=g))]
                self.logits[prefix] = z
                self.q[prefix] = q / q.sum() * (1 - 1e-6)  # the op renormalises

    def p(self, prefix):
        if prefix not in self.known:
            law = {"temperature": 1.0, **self.law}
            self.known[prefix] = target_probs(self.logits[prefix].double(), law).tolist()
        return self.known[prefix]

    def q_of(self, prefix):
        """The drafter's law as the op reads it: normalised."""
        q = self.q[prefix].double()
        return (q / q.sum()).tolist()

    def word_law(self, length):
        return self.extend({(): 1.0}, length)

    def extend(self, law, length):
        """The law of words of `length` tokens when the target goes on alone."""
        whole = {}
        for word, x in law.items():
            tails = {word: x}
            for _ in range(length - len(word)):
                tails = {
                    (*w, v): y * share
                    for w, y in tails.items()
                    for v, share in enumerate(self.p(w))
                }
            for w, y in tails.items():
                whole[w] = whole.get(w, 0.0) + y
        return whole

    def laws_of_call(self, prefixes, batch, kind):
        """What verify_chain and verify_tree take for rows that stand after these prefixes."""
        q = torch.stack([self.q[prefix] for prefix in prefixes])
        call = {
            "logits": torch.stack([self.logits[prefix] for prefix in prefixes]),
            "temperature": torch.full((batch,), self.law.get("temperature", 1.0)),
            "seeds": torch.arange(batch),
        }
        for name in ("top_k", "top_p", "min_p"):
            if name in self.law:
                dtype = torch.int64 if name == "top_k" else torch.float32
                call[name] = torch.full((batch,), self.law[name], dtype=dtype)
        if kind == "none":
            return call
        if kind == "few":
            pairs = torch.tensor([[1, 0, -1]]).expand(len(q), -1)
            return call | {"q_ids": pairs, "q": q[:, [1, 0, 1]]}
        if kind != "sparse":
            return call | {"q": q}
        g = torch.Generator().manual_seed(0)  # shuffled, one id twice, one absent
        order = torch.argsort(torch.rand(len(q), self.vocab, generator=g), dim=1)
        values, absent = q.gather(1, order), torch.full((len(q), 1), -1)
        half = values[:, :1] / 2
        return call | {
            "q_ids": torch.cat([order, order[:, :1], absent], dim=1),
            "q": torch.cat([half, values[:, 1:], half, torch.ones(len(q), 1)], dim=1),
        }


def two_cycles(model, first, second):
    """The law after two cycles; each is a function from a prefix to the law of what it emits."""
    law = {}
    for word, x in first(()).items():
        for tail, y in second(word).items():
            law[word + tail] = law.get(word + tail, 0.0) + x * y
    length = max(map(len, law))
    assert_law(model.extend(law, length), model.word_law(length))


def total_variation(law, want):
    return sum(abs(law.get(w, 0.0) - want.get(w, 0.0)) for w in {*law, *want}) / 2


def assert_law(law, want):
    assert abs(sum(law.values()) - 1) < TOLERANCE
    worst = max(abs(law.get(w, 0.0) - want.get(w, 0.0)) for w in {*law, *want})
    assert worst < TOLERANCE, worst
