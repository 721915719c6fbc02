"""Rows, laws and ids that broke other verification kernels: the kinds, for every rule. Each test says
which row of rows.toml it answers."""

import math

import pytest
import torch
from bounds import ACCUMULATION
from chains import REJECTION, RULES, assert_well_formed, verify

from dflash_ops import Status

INF, NAN = float("inf"), float("nan")
# Both sides of a word of the noise, of a block of the sum and of a span; one token.
EDGES = [1, 2, 5, 63, 64, 65, 513]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("vocab", EDGES)
@pytest.mark.parametrize("law", [{}, {"temperature": 0.0}, {"top_k": 3, "top_p": 0.9}])
def test_rows_without_a_number_give_tokens(device, rule, vocab, law):
    """NaN and infinities at the anchor, in the middle and at the end; neighbours keep their bits."""
    g = torch.Generator().manual_seed(vocab)
    logits = torch.randn(10, 4, vocab, generator=g)
    drafts = torch.randint(vocab, (10, 3), generator=g)
    clean, _ = verify(device, rule, logits, drafts, **law)
    bad = [(b, row, value) for b, row in enumerate((0, 1, 3)) for value in (NAN, -INF)]
    spoiled = logits.clone()
    for at, (_, row, value) in enumerate(bad):
        spoiled[at, row] = value
    spoiled[6, 0, ::2], spoiled[7, 0, -1] = NAN, INF
    spoiled[8, 0] = torch.where(torch.arange(vocab) == vocab - 1, -1e38, -INF)
    got, status = verify(device, rule, spoiled, drafts, **law)
    assert_well_formed(got, vocab)
    assert (got.num_emitted >= 1).all()
    assert (status[:2] & Status.NO_FINITE_LOGIT != 0).all()  # the anchor's row is always read
    assert status[6] == (Status.NO_FINITE_LOGIT if vocab == 1 else 0) and status[9] == 0
    assert got.emitted[7, 0] == vocab - 1
    assert got.emitted[8, 0] == vocab - 1 and status[8] == 0
    assert torch.equal(got.emitted[9], clean.emitted[9])


@pytest.mark.parametrize("rule", RULES)
def test_one_hot_rows_give_their_token(device, rule):
    vocab = 65
    sure = torch.arange(vocab)
    logits = torch.where(sure[:, None, None] == sure, 0.0, -INF).expand(-1, 2, -1)
    for shift in (0, 1):
        got, status = verify(device, rule, logits, (sure[:, None] + shift) % vocab)
        assert (got.num_accepted == 1 - shift).all() and not status.any()
        assert torch.equal(got.emitted[:, 0], sure)


SETS = [
    ({"top_k": 2}, {0, 1}),
    ({"top_k": 1}, {0}),
    ({"top_k": 3}, {0, 1, 2}),
    ({"top_p": 0.41}, {0, 1}),
    ({"top_p": 0.71}, {0, 1, 2}),
    ({"top_p": 0.0}, {0}),
    ({"top_p": 1e-8}, {0}),
    ({"top_p": float(torch.tensor(1e-3).bfloat16())}, {0}),
    ({"min_p": 1.5}, {0}),
    ({"min_p": 0.76}, {0}),
    ({"min_p": 0.74}, {0, 1, 2}),
]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("law", "kept"), SETS)
def test_ties_at_a_filters_edge_keep_exactly_the_set(device, rule, law, kept):
    """p = (.4, .3, .3, 0): of equal values the lower ids; at least one token stays."""
    n = 80
    logits = torch.tensor([math.log(x) if x else -INF for x in (0.4, 0.3, 0.3, 0.0)])
    drafts = (torch.arange(n) % 4)[:, None]
    call = (device, rule, logits.expand(n, 2, 4), drafts)
    got, _ = verify(*call, **law, probe=rule != "match")
    assert set(got.emitted[got.emitted >= 0].tolist()) == kept
    if rule != "match":
        last = got.weights[1::2]
        assert {i for i in range(4) if last[:, i].any()} == kept


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("temperature", [0.0, 1e-6, -1.0, NAN, 1e-5, 2e-5, 1e30, INF])
def test_extreme_temperatures_and_logits(device, rule, temperature):
    logits = torch.tensor([-1e4, 1e4, 0.0, 9999.0]).expand(8, 3, 4)
    got, _ = verify(
        device, rule, logits, torch.tensor([[1, 3]]).expand(8, -1), temperature=temperature
    )
    assert_well_formed(got, 4)
    assert got.logprobs[got.emitted >= 0].isfinite().all() if rule != "match" else True
    if not temperature > 1:
        assert (got.emitted[:, :2] == 1).all() and (got.num_accepted == 1).all()


@pytest.mark.parametrize("rule", RULES)
def test_the_anchors_own_id_is_not_looked_up(device, rule):
    """A multimodal or padding id far outside the vocabulary."""
    g = torch.Generator().manual_seed(0)
    logits, drafts = torch.randn(9, 4, 70, generator=g), torch.randint(70, (9, 3), generator=g)
    want, _ = verify(device, rule, logits, drafts)
    for anchor in (-1, 70, 2**31 - 1, 2**40):
        got, status = verify(device, rule, logits, drafts, anchors=anchor)
        assert torch.equal(got.emitted, want.emitted) and not status.any()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("sentinel", [-1, 64, 2**31, 2**40])
def test_padded_draft_ids_are_never_accepted(device, rule, temperature, sentinel):
    """Chains padded with an id that is no token, over rows of zeros: as the shorter chain."""
    g = torch.Generator().manual_seed(1)
    logits = torch.randn(12, 6, 64, generator=g) * 20  # nearly sure
    q = logits.softmax(dim=2)
    drafts = torch.multinomial(q[:, :-1].flatten(0, 1), 1, generator=g).view(12, 5)
    law = {"temperature": temperature}
    short, _ = verify(device, rule, logits[:, :3], drafts[:, :2], q[:, :3], **law)
    drafts[:, 2:], logits[:, 3:], q[:, 2:] = sentinel, 0.0, 0.0
    got, _ = verify(device, rule, logits, drafts, q, **law)
    assert_well_formed(got, 64)
    assert torch.equal(got.emitted[:, :3], short.emitted)
    assert (got.num_accepted <= 2).all() and got.num_accepted.max() == 2


@pytest.mark.parametrize("rule", REJECTION)
@pytest.mark.parametrize("value", [NAN, -0.25, 0.0, INF])
def test_a_bad_q_leaves_p(device, rule, value):
    """The draft is rejected whatever it is, and not emitted as its own residual: over all drafts the
    last token's weights are p, not p without the draft."""
    g = torch.Generator().manual_seed(2)
    logits = torch.randn(1, 1, 6, generator=g).expand(60, 2, -1)
    q = torch.full((60, 2, 6), value)
    drafts = (torch.arange(60) % 6)[:, None]
    got, status = verify(device, rule, logits, drafts, q, probe=True)
    alone, _ = verify(device, rule, logits[:, :1], drafts[:, :0], probe=True)
    assert (status == Status.BAD_Q).all() and (got.num_accepted == 0).all()
    assert torch.equal(got.weights[::2], alone.weights)
    assert len(set(got.emitted[:, 0].tolist())) == 6


@pytest.mark.parametrize("rule", REJECTION)
def test_the_token_after_a_whole_chain_follows_p(device, rule):
    """Not a residual: with q = p every draft is accepted, and the last row's weights are p."""
    g = torch.Generator().manual_seed(3)
    z = torch.randn(1, 1, 9, generator=g)
    logits, q = z.expand(50, 4, 9), z.softmax(dim=2).expand(50, 4, 9)
    drafts = torch.randint(9, (50, 3), generator=g)
    got, _ = verify(device, rule, logits, drafts, q, probe=True)
    accept = got.accept_probs.view(50, 4)[:, 1:]
    if rule in ("token", "rrs"):
        assert (accept > 1 - ACCUMULATION).all()
    else:  # the whole chain's coin; the shorter ones are not asked
        assert (accept[:, -1] > 1 - 4 * ACCUMULATION).all()
    last = got.weights.view(50, 4, 9)[:, -1]
    torch.testing.assert_close(last, q[:, 0], rtol=ACCUMULATION, atol=0)


# Vocabularies of released models, and what a padded head adds to them.
@pytest.mark.parametrize(
    ("vocab", "columns"), [(248_320, 248_320), (200_058, 200_064), (151_937, 152_064)]
)
@pytest.mark.parametrize("rule", RULES)
def test_ids_stay_below_the_vocabulary(rule, vocab, columns):
    """NaN rows, flat rows, and padding that would win: on the CPU."""
    logits = torch.zeros(4, 2, columns)
    logits[..., vocab:] = 1e4
    logits[1, 0], logits[2, 0, : vocab - 1] = NAN, -INF
    logits[3, 0, vocab - 1] = 50.0
    drafts = torch.tensor([[vocab - 1], [vocab], [vocab - 1], [vocab - 1]])
    got, status = verify("cpu", rule, logits, drafts, vocab_size=vocab)
    assert_well_formed(got, vocab)
    assert got.emitted[2:, 0].tolist() == [vocab - 1] * 2
    assert status[1] & Status.NO_FINITE_LOGIT and not status[[0, 2, 3]].any()
