"""Verification of trees emits the target's law, exactly: enumeration by `probe`."""

from itertools import product

import pytest
import torch
from test_chain_laws import LAWS, TOLERANCE, Model, assert_law, extend

from dflash_ops import verify_tree

RULES = [("rrs", False), ("rrs", True), ("traversal", False), ("traversal", True)]
KINDS = ["dense", "sparse", "close", "zeros"]


def shapes(num_nodes):
    """Every parent vector."""
    return [(-1, *rest) for rest in product(*(range(i) for i in range(1, num_nodes)))]


def prefix_of(parents, tokens, i):
    return () if i == 0 else (*prefix_of(parents, tokens, parents[i]), tokens[i])


def drawn_trees(model, start, parents, replacement):
    """Every tree of tokens that the drafter may draw, with its probability. A sibling for which no
    token is left stands for a padded row: -1."""
    trees = [((0,), 1.0)]
    for i, parent in enumerate(parents[1:], start=1):
        grown = []
        for tokens, x in trees:
            if -1 in tokens:  # whatever is below such a row
                grown.append(((*tokens, -1), x))
                continue
            q = model.q[start + prefix_of(parents, tokens, parent)].double().clone()
            if not replacement:
                for j in range(1, i):
                    if parents[j] == parent:
                        q[tokens[j]] = 0
            if q.sum() == 0:
                grown.append(((*tokens, -1), x))
            else:
                law = (q / q.sum()).tolist()
                grown += [((*tokens, v), x * y) for v, y in enumerate(law) if y > 0]
        trees = grown
    return trees


def call_of(model, start, parents, trees, kind, **options):
    n, batch = len(parents), len(trees)
    rows, depths = [], [len(prefix_of(parents, range(n), i)) for i in range(n)]
    for tokens in trees:
        prefixes = [prefix_of(parents, tokens, i) for i in range(n)]
        rows += [start + (() if -1 in prefix else prefix) for prefix in prefixes]
    q = torch.stack([model.q[prefix] for prefix in rows])
    call = {
        "tokens": torch.tensor(trees).flatten(),
        "logits": torch.stack([model.logits[prefix] for prefix in rows]),
        "parents": torch.tensor(parents).repeat(batch),
        "positions": torch.tensor(depths).repeat(batch) + 5,
        "cu_verify": torch.arange(0, len(rows) + 1, n),
        "temperature": torch.full((batch,), model.law.get("temperature", 1.0)),
        "seeds": torch.arange(batch),
        "max_path": n - 1,
        "probe": True,
        "q": q,
    }
    for name in ("top_k", "top_p", "min_p"):
        if name in model.law:
            dtype = torch.int64 if name == "top_k" else torch.float32
            call[name] = torch.full((batch,), model.law[name], dtype=dtype)
    if kind == "sparse":  # one id twice, one absent
        order = torch.arange(model.vocab).flip(0).expand(len(q), -1)
        values = q.gather(1, order)
        call["q_ids"] = torch.cat([order, order[:, :1], torch.full((len(q), 1), -1)], dim=1)
        call["q"] = torch.cat(
            [values[:, :1] / 2, values[:, 1:], values[:, :1] / 2, torch.ones(len(q), 1)], dim=1
        )
    return call | options


def ends(rule, parents, tokens, accept):
    """The probability that the path ends at each node, from the probe of one request."""
    n = len(parents)
    children = [[j for j in range(1, n) if parents[j] == i and tokens[j] >= 0] for i in range(n)]
    law = [0.0] * n
    if rule == "rrs":

        def walk(i, x):
            for j in children[i]:
                walk(j, x * accept[j])
                x *= 1 - accept[j]
            law[i] = x

        walk(0, 1.0)
    else:

        def climb(i, x):
            for j in children[i]:
                x = climb(j, x)
            here = 1.0 if i == 0 else accept[i]
            law[i] = x * here
            return x * (1 - here)

        climb(0, 1.0)
    return law


def one_cycle(model, start, parents, rule, replacement, kind, redraw=None):
    """The law of what one cycle emits after `start`, and the expected number of accepted drafts.
    `redraw` changes the trees after they were drawn."""
    trees = drawn_trees(model, start, parents, replacement)
    if redraw is not None:
        trees = [(redraw(tokens), x) for tokens, x in trees]
    call = call_of(model, start, parents, [tokens for tokens, _ in trees], kind)
    got = verify_tree(**call, rule=rule, replacement=replacement)
    weights = got.weights.double()
    weights = (weights / weights.sum(dim=1, keepdim=True)).tolist()
    accept, n = got.accept_probs.tolist(), len(parents)
    law, accepted = {}, 0.0
    for b, (tokens, x) in enumerate(trees):
        law_of_end = ends(rule, parents, tokens, accept[b * n : (b + 1) * n])
        for i, y in enumerate(law_of_end):
            if x * y == 0:
                continue
            path = prefix_of(parents, tokens, i)
            accepted += x * y * len(path)
            for v in range(model.vocab):
                word = (*path, v)
                law[word] = law.get(word, 0.0) + x * y * weights[b * n + i][v]
    return law, accepted


@pytest.mark.parametrize(("rule", "replacement"), RULES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("vocab", "num_nodes"), [(2, 2), (2, 5), (3, 4), (5, 4), (3, 5)])
def test_every_tree(rule, replacement, kind, vocab, num_nodes):
    for seed, parents in enumerate(shapes(num_nodes)):
        depth = max(len(prefix_of(parents, range(num_nodes), i)) for i in range(num_nodes))
        model = Model(vocab, depth, kind, seed, LAWS[seed % len(LAWS)])
        cycle, _ = one_cycle(model, (), parents, rule, replacement, kind)
        assert_law(extend(model, cycle, depth + 1), model.word_law(depth + 1))


@pytest.mark.parametrize(("rule", "replacement"), RULES)
@pytest.mark.parametrize("kind", KINDS)
def test_many_siblings(rule, replacement, kind):
    """A star of five, and two of two on one level."""
    for seed, parents in enumerate([(-1, 0, 0, 0, 0, 0), (-1, 0, 0, 1, 1, 2, 2)]):
        model = Model(2 + (seed == 0), 1 + seed, kind, seed, {})
        cycle, _ = one_cycle(model, (), parents, rule, replacement, kind)
        assert_law(extend(model, cycle, 2 + seed), model.word_law(2 + seed))


@pytest.mark.parametrize(("rule", "replacement"), RULES)
@pytest.mark.parametrize("kind", KINDS)
def test_two_cycles(rule, replacement, kind):
    vocab, length = 2, 6
    model = Model(vocab, length, kind, 7, {})
    for first, second in product([(-1, 0, 0), (-1, 0, 1)], [(-1, 0, 0, 1), (-1, 0, 0, 2)]):
        law = {}
        for word, x in one_cycle(model, (), first, rule, replacement, kind)[0].items():
            for tail, y in one_cycle(model, word, second, rule, replacement, kind)[0].items():
                law[word + tail] = law.get(word + tail, 0.0) + x * y
        assert_law(extend(model, law, length), model.word_law(length))


def test_target_only_draws_from_the_target():
    """Every row's law is p itself, so whatever the drafts, so is the law of the words."""
    for parents in shapes(4):
        model = Model(3, 3, "dense", 1, {"top_k": 2})
        trees = list(product([0], range(3), range(3), range(3)))
        call = call_of(model, (), parents, trees, "dense")
        got = verify_tree(**call, rule="target_only")
        want = [
            model.p(prefix_of(parents, tokens, i)).tolist() for tokens in trees for i in range(4)
        ]
        assert (got.weights.double() - torch.tensor(want)).abs().max() < TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("replacement", [False, True])
def test_accepted_length(kind, replacement):
    """A chain accepts the sum of prod min(p, q) under rrs; traversal is not below it on any tree."""
    for seed, parents in enumerate(shapes(4)):
        model = Model(3, 3, kind, seed, {})
        rrs = one_cycle(model, (), parents, "rrs", replacement, kind)[1]
        traversal = one_cycle(model, (), parents, "traversal", replacement, kind)[1]
        assert traversal >= rrs - TOLERANCE
        if parents == (-1, 0, 1, 2):
            want = 0.0
            for word in (w for n in (1, 2, 3) for w in product(range(3), repeat=n)):
                both = 1.0
                for i, token in enumerate(word):
                    q = model.q[word[:i]].double()
                    both *= float(min(model.p(word[:i])[token], q[token] / q.sum()))
                want += both
            assert abs(rrs - want) < TOLERANCE


def total_variation(law, want):
    return sum(abs(law.get(w, 0.0) - x) for w, x in want.items()) / 2


def test_trees_pruned_or_sorted_by_value_are_biased():
    """What the docs warn of: a draft must not be submitted, or moved, for its own q."""
    model = Model(3, 1, "dense", 2, {})
    model.logits[()] = torch.tensor([0.2, 0.3, 0.5]).log()
    model.q[()] = torch.tensor([0.6, 0.3, 0.1])
    q, parents, want = model.q[()], (-1, 0, 0), model.word_law(1)

    def first_token(law):
        first = {}
        for word, x in law.items():
            first[word[:1]] = first.get(word[:1], 0.0) + x
        return first

    def by_q(tokens):
        return (0, *sorted(tokens[1:], key=lambda d: -float(q[d])))

    def unlikely_dropped(tokens):
        return (0, *(d if q[d] > 0.2 else -1 for d in tokens[1:]))

    for rule, replacement in RULES:
        for redraw, low in ((None, 0.0), (by_q, 0.05), (unlikely_dropped, 0.04)):
            law, _ = one_cycle(model, (), parents, rule, replacement, "dense", redraw)
            bias = total_variation(first_token(law), want)
            print(rule, replacement, getattr(redraw, "__name__", "as drawn"), f"{bias:.3f}")
            assert bias > low if redraw else bias < TOLERANCE


@pytest.mark.parametrize("rule", ["rrs", "traversal", "target_only", "typical"])
def test_no_counter_serves_twice(rule):
    """Over cycles that overlap, and between siblings and cousins at one position."""
    seen = set()
    for anchor in range(4):
        got = verify_tree(
            torch.zeros(7).int(),
            torch.zeros(7, 2),
            torch.tensor([-1, 0, 0, 1, 1, 2, 3]),
            positions=torch.tensor([0, 1, 1, 2, 2, 2, 3]) + anchor,
            cu_verify=torch.tensor([0, 7]),
            q=torch.ones(7, 2),
            temperature=torch.ones(1),
            seeds=torch.zeros(1).long(),
            rule=rule,
            replacement=True,
            max_path=4,
            probe=True,
        )
        counters = got.counters.flatten(0, 1)
        used = [tuple(x) for x in counters[counters[:, 1] >= 0].tolist()]
        num_coins = 6 if rule in ("rrs", "traversal") else 0
        assert len(set(used)) == len(used) == num_coins + 7
        assert {c2 & 3 for _, _, c2, _ in used} <= {2, 3} and {c3 for *_, c3 in used} == {anchor}
        assert not seen & set(used)
        seen |= set(used)


@pytest.mark.parametrize(("rule", "replacement"), [*RULES, ("target_only", False)])
def test_words_of_real_seeds(rule, replacement):
    """The real loop: two siblings, each with a child; p = (.5, .5), q = (.85, .15)."""
    n, length, parents = 40_000, 4, torch.tensor([-1, 0, 0, 1, 2])
    q = torch.tensor([0.85, 0.15])
    g = torch.Generator().manual_seed(1)
    words, lengths = torch.full((n, length + 3), -1), torch.zeros(n, dtype=torch.int64)
    while (lengths < length).any():
        pairs = torch.multinomial(q.expand(n, -1), 2, replacement=replacement, generator=g)
        tails = torch.multinomial(q, 2 * n, replacement=True, generator=g).view(n, 2)
        tokens = torch.cat([torch.zeros(n, 1).long(), pairs, tails], dim=1).flatten()
        got = verify_tree(
            tokens,
            torch.zeros(5 * n, 2),
            parents.repeat(n),
            positions=(lengths[:, None] + torch.tensor([0, 1, 1, 2, 2])).flatten(),
            cu_verify=torch.arange(0, 5 * n + 1, 5),
            q=q.expand(5 * n, -1),
            rule=rule,
            replacement=replacement,
            max_path=2,
            temperature=torch.ones(n),
            seeds=torch.arange(n),
        )
        for j in range(3):
            take = (j < got.num_emitted) & (lengths + j < words.shape[1])
            at = (lengths + j).clamp(max=words.shape[1] - 1)
            words[take, at[take]] = got.emitted[take, j]
        lengths = (lengths + got.num_emitted).clamp(max=words.shape[1])
    code = (words[:, :length] * 2 ** torch.arange(length)).sum(dim=1)
    frequency = torch.bincount(code, minlength=2**length).double() / n
    assert (frequency - 1 / 2**length).abs().sum() / 2 < 0.013
