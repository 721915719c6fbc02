"""Verification of trees emits the target's law, exactly: enumeration by `probe`."""

import os
from itertools import product

import pytest
import torch
from words import LAWS, TOLERANCE, Model, assert_law, total_variation, two_cycles

from dflash_ops import build_tree, verify_tree

SAMPLED = [("rrs", False), ("rrs", True), ("traversal", False), ("traversal", True)]
RULES = [*SAMPLED, ("target_only", False)]
KINDS = ["dense", "sparse", "close", "zeros"]
# (vocabulary, rows with the anchor); the last one takes a while.
SIZES = [(1, 4), (2, 2), (2, 3), (2, 5), (3, 4), (3, 5), (4, 5), (5, 4)]
SIZES += [(5, 5)] * (os.environ.get("HYPOTHESIS_PROFILE") == "nightly")


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
            q = model.q_of(start + prefix_of(parents, tokens, parent))
            if not replacement:
                for j in range(1, i):
                    if parents[j] == parent:
                        q[tokens[j]] = 0.0
            total = sum(q)
            if total == 0:
                grown.append(((*tokens, -1), x))
            grown += [((*tokens, v), x * y / total) for v, y in enumerate(q) if y > 0]
        trees = grown
    return trees


def call_of(model, start, parents, trees, kind):
    n, batch = len(parents), len(trees)
    depths = [len(prefix_of(parents, range(n), i)) for i in range(n)]
    rows = []
    for tokens in trees:
        prefixes = [prefix_of(parents, tokens, i) for i in range(n)]
        rows += [start + (() if -1 in prefix else prefix) for prefix in prefixes]
    return {
        "tokens": torch.tensor(trees).flatten(),
        "parents": torch.tensor(parents).repeat(batch),
        "positions": torch.tensor(depths).repeat(batch) + 5,
        "cu_verify": torch.arange(0, len(rows) + 1, n),
        "max_path": n - 1,
        "probe": True,
        **model.laws_of_call(rows, batch, kind),
    }


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


def words_of_target(parents, tokens, weights):
    """Rule target_only: every row's token is a draw from its weights; the first child with it is
    followed. Yields words with their probability and the number of drafts in them."""
    todo = [(0, (), 1.0)]
    while todo:
        i, path, x = todo.pop()
        for v, y in enumerate(weights[i]):
            equal = [j for j in range(len(parents)) if parents[j] == i and tokens[j] == v]
            if equal:
                todo.append((equal[0], (*path, v), x * y))
            else:
                yield (*path, v), x * y, len(path)


def words_of_rejection(rule, parents, tokens, accept, weights):
    for i, x in enumerate(ends(rule, parents, tokens, accept)):
        if x == 0:  # a padded row has no weights
            continue
        path = prefix_of(parents, tokens, i)
        for v, y in enumerate(weights[i]):
            yield (*path, v), x * y, len(path)


def one_cycle(model, start, parents, rule, replacement, kind, redraw=None):
    """The law of what one cycle emits after `start`, and the expected number of accepted drafts.
    `redraw` changes the trees after they were drawn."""
    trees = drawn_trees(model, start, parents, replacement)
    if redraw is not None:
        trees = [(redraw(tokens), x) for tokens, x in trees]
    call = call_of(model, start, parents, [tokens for tokens, _ in trees], kind)
    got = verify_tree(**call, rule=rule, replacement=replacement)
    weights, n = got.weights.double(), len(parents)
    weights = (weights / weights.sum(dim=1, keepdim=True)).view(-1, n, model.vocab).tolist()
    accept = got.accept_probs.view(-1, n).tolist()
    law, accepted = {}, 0.0
    for b, (tokens, x) in enumerate(trees):
        if rule == "target_only":
            words = words_of_target(parents, tokens, weights[b])
        else:
            words = words_of_rejection(rule, parents, tokens, accept[b], weights[b])
        for word, y, length in words:
            law[word] = law.get(word, 0.0) + x * y
            accepted += x * y * length
    return law, accepted


def check_one_cycle(model, parents, depth, kind, rules):
    want = model.word_law(depth + 1)
    for rule, replacement in rules:
        cycle, _ = one_cycle(model, (), parents, rule, replacement, kind)
        assert_law(model.extend(cycle, depth + 1), want)


def depth_of(parents):
    return max(len(prefix_of(parents, parents, i)) for i in range(len(parents)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("vocab", "num_nodes"), SIZES)
def test_every_tree(kind, vocab, num_nodes):
    """Duplicate siblings under replacement; with few tokens, cousins of one token at one depth."""
    for seed, parents in enumerate(shapes(num_nodes)):
        model = Model(vocab, depth_of(parents), kind, seed, LAWS[seed % len(LAWS)])
        check_one_cycle(model, parents, depth_of(parents), kind, RULES)


@pytest.mark.parametrize("part", range(4))
def test_every_tree_of_five_drafts(part):
    """Two tokens; the kinds of q and the rules take turns over the 120 shapes."""
    for seed, parents in list(enumerate(shapes(6)))[part::4]:
        kind = KINDS[(seed // 4 + part) % 4]
        model = Model(2, depth_of(parents), kind, seed, LAWS[seed % len(LAWS)])
        check_one_cycle(model, parents, depth_of(parents), kind, RULES)


@pytest.mark.parametrize(("rule", "replacement"), RULES)
@pytest.mark.parametrize("kind", KINDS)
def test_many_siblings(rule, replacement, kind):
    """A star of five, and two of two on one level."""
    for seed, parents in enumerate([(-1, 0, 0, 0, 0, 0), (-1, 0, 0, 1, 1, 2, 2)]):
        model = Model(2 + (seed == 0), 1 + seed, kind, seed, {})
        check_one_cycle(model, parents, 1 + seed, kind, [(rule, replacement)])


@pytest.mark.parametrize(("rule", "replacement"), RULES)
@pytest.mark.parametrize("kind", KINDS)
def test_two_cycles(rule, replacement, kind):
    firsts = [(-1, 0, 0), (-1, 0, 1), (-1, 0, 0, 1, 2)]
    seconds = [(-1, 0, 0, 1), (-1, 0, 0, 2), (-1, 0, 1, 1)]
    for seed, (first, second) in enumerate(product(firsts, seconds)):
        model = Model(2, depth_of(first) + depth_of(second) + 2, kind, 7, LAWS[seed % len(LAWS)])

        def cycle(parents, m=model):
            return lambda start: one_cycle(m, start, parents, rule, replacement, kind)[0]

        two_cycles(model, cycle(first), cycle(second))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("replacement", [False, True])
def test_accepted_length(kind, replacement):
    """A chain accepts the sum of prod min(p, q) under rrs, and that of q times the scale under
    traversal, as rule block does; traversal is not below rrs on any tree."""
    for seed, parents in enumerate(shapes(4)):
        model = Model(3, 3, kind, seed, LAWS[seed % len(LAWS)])
        rrs = one_cycle(model, (), parents, "rrs", replacement, kind)[1]
        traversal = one_cycle(model, (), parents, "traversal", replacement, kind)[1]
        assert traversal >= rrs - TOLERANCE
        if parents == (-1, 0, 1, 2):
            want_rrs = want_traversal = 0.0
            for word in (w for n in (1, 2, 3) for w in product(range(3), repeat=n)):
                both, drawn, scale = 1.0, 1.0, 1.0
                for i, token in enumerate(word):
                    p, q = model.p(word[:i])[token], model.q_of(word[:i])[token]
                    both, drawn = both * min(p, q), drawn * q
                    scale = min(scale * p / q, 1.0) if q > 0 else 0.0
                want_rrs, want_traversal = want_rrs + both, want_traversal + drawn * scale
            assert abs(rrs - want_rrs) < TOLERANCE
            assert abs(traversal - want_traversal) < TOLERANCE


@pytest.mark.parametrize(("rule", "replacement"), SAMPLED)
def test_a_useless_branch_takes_nothing_away(rule, replacement):
    """A sibling that is drawn later, or below another node, never shortens the path."""
    for seed in range(12):
        model = Model(3, 3, KINDS[seed % 4], seed, {})
        kind = model.kind
        chain = one_cycle(model, (), (-1, 0, 1, 2), rule, replacement, kind)[1]
        for parents in [(-1, 0, 1, 2, 0), (-1, 0, 1, 2, 1), (-1, 0, 1, 2, 2)]:
            assert one_cycle(model, (), parents, rule, replacement, kind)[1] >= chain - TOLERANCE


def first_token(law):
    first = {}
    for word, x in law.items():
        first[word[:1]] = first.get(word[:1], 0.0) + x
    return first


@pytest.mark.parametrize(("rule", "replacement"), SAMPLED)
def test_trees_pruned_or_sorted_by_value_are_biased(rule, replacement):
    """What the docs warn of: a draft must not be submitted, or moved, for its own q."""
    model = Model(3, 1, "dense", 2, {})
    model.logits[()], model.q[()] = (
        torch.tensor([0.2, 0.3, 0.5]).log(),
        torch.tensor([0.6, 0.3, 0.1]),
    )
    q, parents, want = model.q[()], (-1, 0, 0), model.word_law(1)

    def by_q(tokens):
        return (0, *sorted(tokens[1:], key=lambda d: -float(q[d])))

    def unlikely_dropped(tokens):
        return (0, *(d if q[d] > 0.2 else -1 for d in tokens[1:]))

    for redraw, low in ((None, 0.0), (by_q, 0.05), (unlikely_dropped, 0.04)):
        law, _ = one_cycle(model, (), parents, rule, replacement, "dense", redraw)
        bias = total_variation(first_token(law), want)
        print(rule, replacement, getattr(redraw, "__name__", "as drawn"), f"{bias:.3f}")
        assert bias > low if redraw else bias < TOLERANCE


@pytest.mark.parametrize("rule", ["rrs", "traversal"])
def test_trees_of_the_likeliest_tokens_are_biased_under_rejection(rule):
    """A deterministic tree (build_tree) has no q that it was drawn from; target_only takes it."""
    model = Model(3, 1, "dense", 2, {})
    model.logits[()], model.q[()] = (
        torch.tensor([0.2, 0.3, 0.5]).log(),
        torch.tensor([0.6, 0.3, 0.1]),
    )
    tree = build_tree(
        torch.tensor([0]),
        torch.arange(3)[None, None],
        model.q[()].log()[None, None],
        max_nodes=3,
    )
    best = tuple(tree.tokens.tolist())
    assert best == (0, 0, 1)
    bias = {}
    for name in (rule, "target_only"):
        law, _ = one_cycle(model, (), (-1, 0, 0), name, False, "dense", lambda tokens: best)
        bias[name] = total_variation(first_token(law), model.word_law(1))
    assert bias[rule] > 0.04 and bias["target_only"] < TOLERANCE


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
