"""What a decision is made of: the coin against its probability, the noise against the weights, and
no counter for two draws."""

from itertools import product

import pytest
import torch
from calls import apply

from dflash_ops import _C, Verified, sample_logits, select_path, verify_chain, verify_tree
from dflash_ops.reference import noise

RULES = ["token", "block", "rrs", "traversal"]


def one_draft(rule, logits, q, drafts, seeds, device="cpu"):
    """Requests of one draft each, with a dense q."""
    n = len(seeds)
    call = {
        "positions": torch.arange(2).repeat(n),
        "cu_verify": torch.arange(0, 2 * n + 1, 2),
        "q": q.repeat_interleave(2, dim=0),
        "temperature": torch.ones(n),
        "seeds": seeds,
    }
    tokens = torch.stack([torch.zeros_like(drafts), drafts], dim=1).flatten()
    args = [tokens, logits.expand(2 * n, -1).contiguous()]
    function = verify_chain if rule in ("token", "block") else verify_tree
    if function is verify_tree:
        args.append(torch.tensor([-1, 0]).repeat(n))
    args = [x.to(device) for x in args]
    call = {k: x.to(device) for k, x in call.items()}
    got = function(*args, **call, rule=rule, max_path=1, probe=True)
    return Verified(*(x.cpu() for x in got))


def neighbours(x, count=8):
    """[n, 2 count + 1]: the fp32 numbers around each of x > 0."""
    steps = torch.arange(-count, count + 1, dtype=torch.int32)
    return (x.view(torch.int32)[:, None] + steps).view(torch.float32)


@pytest.mark.parametrize("rule", RULES)
def test_a_coin_that_equals_the_probability_rejects(device, device_class, rule):
    """u q = p exactly, or p / q = u where the probability is formed: the test is strict."""
    n = 400 if device_class.startswith("ptx") else 2000  # requests, emulated ones take long
    seeds, drafts = torch.arange(n), torch.zeros(n, dtype=torch.int64)
    first = one_draft(rule, torch.zeros(2), torch.full((n, 2), 0.5), drafts, seeds, device)
    u, p = first.coins[1::2], first.weights[1::2, 0]  # the last row's weights are p
    q = neighbours(p / u)
    product_is_p = u[:, None] * q == p[:, None]
    equal = product_is_p if rule in ("token", "rrs") else p[:, None] / q == u[:, None]
    usable = equal.any(dim=1) & (u > 0.6)  # q and 1 - q exact, and their sum 1
    assert usable.sum() > n / 4
    at_p = q[usable, equal[usable].int().argmax(dim=1)]

    def decide(q):
        both = torch.stack([q, 1 - q], dim=1)
        assert (both.sum(dim=1) == 1).all()
        return one_draft(rule, torch.zeros(2), both, drafts[usable], seeds[usable], device)

    got = decide(at_p)
    assert torch.equal(got.coins[1::2], u[usable])
    assert (got.num_accepted == 0).all() and (got.emitted[:, 0] == 1).all()
    below = neighbours(at_p, 16)[:, 0]  # 16 steps: beyond the rounding of the product
    assert (decide(below).num_accepted == 1).all()


def test_the_noise_makes_the_weights_into_the_law():
    """Every combination of words cut to their first bits: the share of the highest
    log w + g is w, off by at most 2^-bits for each token, as each is monotone in its own word."""
    for weights, bits in (
        ([0.3, 0.7], 10),
        ([1e-3, 1.0], 10),
        ([0.2, 0.5, 0.3], 7),
        ([1, 0, 3], 7),
    ):
        w = torch.tensor(weights, dtype=torch.float64)
        words = (torch.arange(2**bits) << (32 - bits)) + (1 << (31 - bits))
        g = apply(_C.hooks.gumbel, (words << 32).view(torch.uint64)).double()
        grids = torch.meshgrid(*(w[i].log() + g for i in range(len(w))), indexing="ij")
        won = torch.stack(grids).argmax(dim=0)
        share = torch.bincount(won.flatten(), minlength=len(w)).double() / won.numel()
        assert ((share - w / w.sum()).abs() <= len(w) * 2.0**-bits).all(), (weights, share)


def words_at(seeds, counters, ids):
    """[n, V] Philox words of each request's ids under a counter [n, 4] of which c0 is open, and
    the words below them."""
    full = counters[:, None, :].repeat(1, len(ids), 1)
    full[..., 0] = ids >> 2
    column = (ids & 3).expand(len(seeds), -1)[..., None]
    key = seeds[:, None].expand(-1, len(ids))
    extended = full.clone()
    extended[..., 2] |= 4
    return (noise.philox(key, c).gather(2, column)[..., 0] for c in (full, extended))


def noise_at(seeds, counters, ids):
    word, low = words_at(seeds, counters, ids)
    wide = (word << 32 | low).contiguous()
    return apply(_C.hooks.gumbel, wide.view(torch.uint64)).double(), word


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("vocab", [2, 3])
def test_the_last_token_is_the_draw_from_its_weights(rule, vocab):
    """By the counters of the probe, over noise that fills every cell of words cut to three bits."""
    n = 30_000
    g = torch.Generator().manual_seed(vocab)
    z, q = torch.randn(vocab, generator=g), torch.rand(vocab, generator=g)
    q = (q / q.sum()).expand(n, -1)
    seeds, drafts = torch.arange(n), torch.multinomial(q, 1, generator=g)[:, 0]
    got = one_draft(rule, z, q, drafts, seeds)
    row = 2 * torch.arange(n) + got.num_accepted
    scores, word = noise_at(seeds, got.counters[row, 1], torch.arange(vocab))
    scores = scores + got.weights[row].double().log()
    token = got.emitted.gather(1, got.num_accepted[:, None])
    margin = scores.max(dim=1).values - scores.gather(1, token)[:, 0]
    assert margin.max() < 1e-5  # fp32 rounding of the logarithm and of the sum
    cells = (word >> 29) @ torch.tensor([64, 8, 1])[:vocab]
    assert len(cells.unique()) == 8**vocab
    coin = got.coins[1::2] < got.accept_probs[1::2]
    assert torch.equal(coin, got.num_accepted == 1)


def test_two_cycles_of_draft_and_verification_share_no_counter():
    """Streams 1 to 3 through select_path and verify_chain: slots that were rejected are drafted and
    verified again, with counters of the new cycle."""
    vocab, slots, n = 3, 3, 400
    seeds = torch.arange(n)
    seen = set()
    for anchor in (7, 8):  # the second cycle begins at the first one's first slot
        drafted = select_path(
            torch.zeros(n, slots, vocab),
            torch.arange(vocab).expand(n, slots, -1),
            torch.zeros(n, slots, 0),
            torch.zeros(n).long(),
            torch.zeros(vocab, 0),
            torch.zeros(vocab, 0),
            ctx_lens=torch.full((n,), anchor),
            temperature=torch.ones(n),
            seeds=seeds,
        )
        counters = torch.tensor(
            [[0, anchor + 1 + j, noise.purpose(noise.DRAFT, 0, j), anchor] for j in range(slots)]
        )
        for j in range(slots):
            g, _ = noise_at(seeds, counters[j].expand(n, -1), torch.arange(vocab))
            assert torch.equal(g.argmax(dim=1), drafted.tokens[:, j])
        tokens = torch.cat([torch.zeros(n, 1).long(), drafted.tokens], dim=1)
        got = verify_chain(
            tokens.flatten(),
            torch.zeros(n * (slots + 1), vocab),
            positions=(anchor + torch.arange(slots + 1)).repeat(n),
            cu_verify=torch.arange(0, n * (slots + 1) + 1, slots + 1),
            q=torch.ones(n * (slots + 1), vocab),
            temperature=torch.ones(n),
            seeds=seeds,
            max_path=slots,
            probe=True,
        )
        every = got.counters.view(n, -1, 4)
        assert (every == every[:1]).all()  # the same for every seed
        used = [tuple(c) for c in every[0].tolist() if c[1] >= 0]
        used = [(0 if c[0] == -1 else c[0], *c[1:]) for c in used]  # three tokens: one group
        used += [tuple(c) for c in counters.tolist()]
        assert {c2 & 3 for _, _, c2, _ in used} == {1, 2, 3} and len(used) == 3 + 3 + 4
        assert not seen & set(used) and len(set(used)) == len(used)
        seen |= set(used)


def test_the_targets_own_token_does_not_depend_on_where_steps_begin():
    """Stream 0: one row, one chain, or any split of the rows into steps; and its counter is that
    of docs/noise.md, without the cycle."""
    n, vocab, seed = 12, 50, 5
    logits = torch.randn(n, vocab, generator=torch.Generator().manual_seed(0))
    law = {"temperature": torch.ones(1), "seeds": torch.tensor([seed])}

    def step(rows):
        return sample_logits(
            logits[rows],
            positions=torch.tensor(rows) + 30,
            cu_verify=torch.tensor([0, len(rows)]),
            **law,
        ).ids.tolist()

    whole = step(list(range(n)))
    for size in (1, 2, 5):
        rows = [list(range(i, min(i + size, n))) for i in range(0, n, size)]
        assert [token for part in rows for token in step(part)] == whole
    for i, token in enumerate(whole):
        g = noise.gumbel(seed, torch.arange(vocab), i + 31)  # stream 0, anchor 0
        assert int((logits[i].double() + g).argmax()) == token


def largest(function, threshold):
    """The number of 64-bit words whose value is above the threshold; the function falls with them
    (`gumbel`) or rises (`coin`): bisection."""
    above = function is _C.hooks.gumbel
    low, high = 0, 2**64  # the answer's bounds
    while low < high:
        middle = (low + high) // 2
        word = torch.tensor([middle - (middle >= 2**63) * 2**64]).view(torch.uint64)
        value = float(apply(function, word)[0])
        inside = value > threshold if above else value < threshold
        low, high = (middle + 1, high) if inside else (low, middle)
    return low


def test_tail_of_the_noise():
    """P(g > t) = 1 - exp(-exp(-t)), counted over all words: relative to the error that g may have
    (8 * 2^-24 of it, docs/noise.md) and to the grid of words."""
    for t in torch.arange(0.0, 42.0, 0.37).tolist():
        want = -torch.expm1(-torch.exp(torch.tensor(-t, dtype=torch.float64)))
        got = largest(_C.hooks.gumbel, t) / 2.0**64
        grid = 2.0**-32 / 2 if want > 2.0**-8 else 2.0**-64
        assert abs(got - want) <= want * 8 * 2.0**-24 * max(1, t) + grid, t


@pytest.mark.parametrize("rare", [1e-7, 1e-9, 1e-12])
def test_tail_tokens_are_drawn_with_their_probability(rare):
    """A token of probability `rare` wins iff g > G + log((1 - rare) / rare), where G, of all other
    tokens, is Gumbel noise too: the count of words, integrated over G."""
    step = 0.02
    cell = torch.arange(-4.0, 12.0, step, dtype=torch.float64)
    cdf = torch.exp(-torch.exp(-cell))
    share = cdf.diff(append=torch.ones(1, dtype=torch.float64))
    share[0] += cdf[0]
    odds = float(torch.tensor((1 - rare) / rare, dtype=torch.float64).log())
    # exp(-G) decides: within a cell its mean lies between those of the ends.
    won = [largest(_C.hooks.gumbel, float(c) + odds) / 2.0**64 for c in cell]
    won = torch.tensor([*won, 0.0], dtype=torch.float64)
    high, low = float((share * won[:-1]).sum()), float((share * won[1:]).sum())
    assert low < rare < high and high - low < 1.1 * step * rare, (low, high)


def test_rare_acceptance():
    """P(u < a), counted over all words: a draft of p / q = a is accepted as often, down to 2^-64."""
    for a in (1e-12, 1e-9, 1e-7, 1e-3, 0.3, 0.5, 0.85, 1 - 2.0**-20):
        a = float(torch.tensor(a, dtype=torch.float32))
        got = largest(_C.hooks.coin, a) / 2.0**64
        # u is cut to 24 bits, and below 2^-8 a grid of 2^-64, else of 2^-32.
        assert abs(got - a) <= a * 2.0**-23 + (2.0**-64 if a < 2.0**-8 else 2.0**-32), a


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("p", "q"), [(0.01, 0.99), (0.99, 0.01), (0.3, 0.6)])
def test_drafts_are_accepted_as_often_as_they_should(rule, p, q):
    """min(1, p / q), six standard deviations: no coin is stuck, none is left out."""
    n = 20_000
    law = torch.tensor([q, 1 - q]).expand(n, -1)
    z = torch.tensor([p, 1 - p]).log()
    got = one_draft(rule, z, law, torch.zeros(n).long(), torch.arange(n))
    want = min(1.0, p / q)
    spread = 6 * (want * (1 - want) / n) ** 0.5 + 1e-9
    assert abs(float(got.num_accepted.double().mean()) - want) <= spread


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("likely", [0, 1, 2])
def test_a_rejected_coin_says_nothing_of_the_token_after_it(rule, likely):
    """The law of the first token where a rejection leaves two tokens to choose from: within six
    standard deviations."""
    n = 40_000
    p, q = torch.full((3,), 0.4), torch.full((3,), 0.1)
    p[likely], q[likely] = 0.2, 0.8
    g = torch.Generator().manual_seed(likely)
    drafts = torch.multinomial(q, n, replacement=True, generator=g)
    got = one_draft(rule, p.log(), q.expand(n, -1), drafts, torch.arange(n))
    share = torch.bincount(got.emitted[:, 0], minlength=3) / n
    assert ((share - p).abs() < 6 * (p * (1 - p) / n).sqrt()).all(), share


def test_coins_and_noise_of_one_request_are_independent():
    """Of a draft, its coin and the token after it: chi-squared-like bound on every joint cell of
    eight parts each, over 64 000 seeds."""
    n, parts = 64_000, 8
    seeds = torch.arange(n)
    got = one_draft("token", torch.zeros(4), torch.full((n, 4), 0.25), torch.zeros(n).long(), seeds)
    columns = []
    for row in (0, 1):
        _, word = noise_at(seeds, got.counters[row::2, 1], torch.arange(4))
        columns += [word[:, i] >> 29 for i in range(4)]
    columns.append((got.coins[1::2] * parts).long())
    draft = torch.tensor([0, 1, noise.purpose(noise.DRAFT), 0]).expand(n, -1)
    _, word = noise_at(seeds, draft, torch.arange(4))
    columns += [word[:, i] >> 29 for i in range(4)]
    for a, b in product(range(len(columns)), repeat=2):
        if a < b:
            counts = torch.bincount(columns[a] * parts + columns[b], minlength=parts**2).double()
            mean = n / parts**2
            # 78 pairs of 64 cells: six deviations of each would be met once in 10^5 runs.
            assert ((counts - mean).abs() < 6 * mean**0.5).all(), (a, b)
