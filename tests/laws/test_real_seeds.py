"""Frequencies of words that the real loop writes, against the law. On the CPU only: that the other
devices decide alike is tested per op. Seeds are fixed, so a test passes always or never."""

import math
import os

import pytest
import torch
from loop import GAMMA, RULES, Language, frequencies, law_of_cells, plain, play

LENGTH = 4
TEMPERATURES = [0.3, 1.0, 5.0]
IS_NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
# A sound sampler fails one of all tests of this file with a probability below 1e-4.
LEAST_P = 1e-6


def even():
    """p = (.5, .5), q = (.85, .15)."""
    return Language(torch.zeros(1, 2), torch.arange(2), torch.tensor([[0.85, 0.15]]).log())


def distance(counts, law):
    return float((counts / counts.sum() - law).abs().sum()) / 2


def noise_of_distance(law, n):
    """What the total variation of n draws from their own law exceeds with probability LEAST_P at
    most: its mean is below sum sqrt(p (1 - p) / n) / 2, and one draw moves it by 1 / n (McDiarmid)."""
    mean = float((law * (1 - law) / n).sqrt().sum()) / 2
    return mean + math.sqrt(-math.log(LEAST_P) / (2 * n))


def num_seeds(rule):
    """Two million for every rule take minutes: in CI for the one whose bias without fresh coins is
    known best."""
    return 2_000_000 if IS_NIGHTLY or rule == "block" else 250_000


@pytest.mark.parametrize("rule", RULES)
def test_words_of_two_tokens(rule):
    """Coins that were seen must not be met again (tests/mutants/laws.toml): block and traversal look at
    coins of tokens that are drafted again. Looked at on the way, so that what is wrong is red soon.
    """
    lang, identity, total = even(), torch.arange(2), num_seeds(rule)
    chunk = min(total, 250_000)
    law = law_of_cells(lang, identity, LENGTH)
    counts = torch.zeros(2**LENGTH, dtype=torch.float64)
    for first in range(0, total, chunk):
        words, _ = play(lang, rule, torch.arange(first, first + chunk), LENGTH)
        counts += frequencies(words, identity)
        noise = noise_of_distance(law, first + chunk)
        assert distance(counts, law) < noise
    print(rule, f"off by {distance(counts, law):.5f}, noise {noise:.5f}")


@pytest.mark.parametrize("rule", ["token", "block"])
def test_accepted_length_is_the_closed_form(rule):
    """token: sum of .65^i; block: over prefixes, of q times the scale. Six standard deviations of
    a mean of numbers in 0 .. 3."""
    want, n = 0.0, 200_000
    laws = [(1.0, 1.0)]  # of every prefix: q and the scale, or the overlap
    for _ in range(GAMMA):
        if rule == "token":
            laws = [(x * min(p, q), s) for x, s in laws for p, q in ((0.5, 0.85), (0.5, 0.15))]
        else:
            laws = [(x * q, min(s * 0.5 / q, 1.0)) for x, s in laws for q in (0.85, 0.15)]
        want += sum(x * s for x, s in laws)
    _, mean = play(even(), rule, torch.arange(n), 1)
    assert abs(mean - want) < 6 * (GAMMA / 2) / math.sqrt(n)


def language(vocab, temperature):
    """Two classes of tokens. Sixteen tokens have some 0.6 of the probability at this temperature;
    they are the drafter's candidates, and it does not quite know them."""
    g = torch.Generator().manual_seed(vocab)
    logits = torch.randn(2, vocab, generator=g)
    cand_ids = torch.randperm(vocab, generator=g)[:16].sort().values
    rest = (logits / temperature).logsumexp(dim=1, keepdim=True)
    best = rest + math.log(1.5 / 16) + torch.randn(2, 16, generator=g) * 0.7
    logits[:, cand_ids] = best * temperature
    return Language(logits, cand_ids, best + torch.randn(2, 16, generator=g) / 2, temperature)


def three_cells(lang):
    """Of each token: one of two halves of the candidates, or none."""
    cell_of = torch.full((lang.logits.shape[1],), 2)
    cell_of[lang.cand_ids] = torch.arange(16) // 8
    return cell_of


def p_value(counts, law):
    """Chi-squared of cells; those that are expected fewer than five times count as one."""
    expected = law * counts.sum()
    rare = expected < 5
    seen = torch.cat([counts[~rare], counts[rare].sum()[None]])
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    if expected[-1] < 5:  # too few together: they join the least of the others
        least = expected[:-1].argmin()
        seen[least] += seen[-1]
        expected[least] += expected[-1]
        seen, expected = seen[:-1], expected[:-1]
    assert len(expected) >= 20
    chi2 = ((seen - expected) ** 2 / expected).sum()
    half = torch.tensor((len(expected) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(half, chi2 / 2))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize(("vocab", "num_words"), [(50, 5000), (1000, 5000), (151_936, 600)])
def test_words_of_a_large_vocabulary(vocab, num_words, temperature, rule):
    if vocab > 1000 and not IS_NIGHTLY and TEMPERATURES[RULES.index(rule) % 3] != temperature:
        pytest.skip("each rule at one temperature; the others under the nightly profile")
    lang = language(vocab, temperature)
    seeds = torch.arange(num_words) + 10**9
    cell_of = three_cells(lang)
    words, mean = play(lang, rule, seeds, LENGTH)
    p = p_value(frequencies(words, cell_of), law_of_cells(lang, cell_of, LENGTH))
    print(rule, vocab, temperature, f"accepted {mean:.2f}, p-value {p:.3g}")
    assert p > LEAST_P


@pytest.mark.parametrize("rule", ["match", "match coupled"])
def test_match_writes_the_plain_words(rule):
    lang, seeds = language(50, 1.0), torch.arange(4000)
    assert torch.equal(play(lang, rule, seeds, LENGTH)[0], plain(lang, seeds, LENGTH))


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("vocab", [50, 1000])
def test_the_record_writes_the_words_of_the_logits(rule, vocab):
    lang, seeds = language(vocab, 0.7), torch.arange(1000)
    by_record, _ = play(lang, f"{rule} by record", seeds, LENGTH)
    assert torch.equal(by_record, play(lang, rule, seeds, LENGTH)[0])
