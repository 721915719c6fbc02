"""The bits of a token are the same however it is computed: hidden rows, KV pages and ids."""

import random

import pytest
import torch
from tiny import MAX_POSITION, Ask, DecoyDrafter, assert_same, model, prompt, run

from dflash_ops.decoder import NgramDrafter, Settings
from dflash_ops.decoder.batch import Share, pack
from dflash_ops.decoder.cache import KVCache
from dflash_ops.decoder.state import State

DTYPES = [torch.bfloat16, torch.float32]
PAGE_SIZES = [1, 16, 24]
SAMPLING = [
    {},
    *({"temperature": t, "seed": s} for t in (0.7, 1.0) for s in (0, 1, -(2**62))),
    {"temperature": 0.7, "seed": 3, "top_k": 7},
    {"temperature": 1.0, "seed": 4, "top_p": 0.8, "min_p": 0.02},
]


def settings(sampling, new=40):
    return Settings(max_new_tokens=new, **sampling)


def plain(m, text, sampling, new=40):
    """The oracle: a batch of one, a row at a time once the prompt is read, pages of 16."""
    (trace,), _ = run(m, [Ask(text, settings(sampling, new))], chunk=MAX_POSITION)
    return trace


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "w4"])
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_prefill_in_chunks(dtype, kind, page_size):
    """Chunks of 1 meet every context length: all residues of a block of 64 and a leaf of 512."""
    text = prompt(1100)
    want = plain(model(dtype, kind), text, {}, new=3)
    for chunk in (1, 7, 64):
        ask = Ask(text, settings({}, 3))
        (got,), _ = run(model(dtype, kind), [ask], chunk=chunk, page_size=page_size)
        assert_same(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("sampling", SAMPLING, ids=str)
def test_chains_and_trees(dtype, page_size, sampling):
    m, text = model(dtype), prompt(11) * 3
    want = plain(m, text, sampling)
    drafters = (
        NgramDrafter(5, min_match=1),
        NgramDrafter(3, 9, min_match=1),
        DecoyDrafter(want.tokens),
        DecoyDrafter(want.tokens, decoys=3, first_wrong=2),
    )
    for drafter in drafters:
        (got,), engine = run(m, [Ask(text, settings(sampling), drafter)], page_size=page_size)
        assert_same(got, want)
        if isinstance(drafter, DecoyDrafter):  # it does know, so it is believed
            assert engine.stats.cycles <= 20


@pytest.mark.parametrize("dtype", DTYPES)
def test_decoys_at_every_residue(dtype):
    """Trees whose nodes straddle the edges of blocks (64) and leaves (512)."""
    m = model(dtype)
    for length in [*range(58, 66), *range(122, 130), *range(506, 514)]:
        text = prompt(length, seed=1)
        want = plain(m, text, {}, new=12)
        (got,), _ = run(m, [Ask(text, settings({}, 12), DecoyDrafter(want.tokens))])
        assert_same(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["llama", "w4"])
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_batch_of_eight_that_joins_midway(dtype, kind, page_size):
    """Prefill chunks, plain rows, chains and trees stand in one call."""
    m = model(dtype, kind)
    sampled = [SAMPLING[i % len(SAMPLING)] for i in range(8)]
    texts = [prompt(5 + 13 * i, seed=i) for i in range(8)]
    wants = [plain(m, text, s) for text, s in zip(texts, sampled, strict=True)]
    drafters = [
        None,
        NgramDrafter(5, min_match=1),
        NgramDrafter(3, 9, min_match=1),
        *(DecoyDrafter(want.tokens, decoys=i % 3) for i, want in enumerate(wants[3:])),
    ]
    asks = [
        Ask(text, settings(s), drafter, joins_at=3 * i)
        for i, (text, s, drafter) in enumerate(zip(texts, sampled, drafters, strict=True))
    ]
    gots, engine = run(m, asks, page_size=page_size, chunk=7)
    for got, want in zip(gots, wants, strict=True):
        assert_same(got, want)
    assert engine.stats.preemptions == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("page_size", [1, 16])
def test_recompute_after_preemption(dtype, page_size):
    m = model(dtype)
    texts = [prompt(20 + i, seed=i) for i in range(4)]
    wants = [plain(m, text, {}) for text in texts]
    asks = [
        Ask(text, settings({}), DecoyDrafter(want.tokens) if i % 2 else None)
        for i, (text, want) in enumerate(zip(texts, wants, strict=True))
    ]
    gots, engine = run(m, asks, page_size=page_size, num_pages=128 // page_size, chunk=7)
    for got, want in zip(gots, wants, strict=True):
        assert_same(got, want)
    assert engine.stats.preemptions > 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_prefix_hits(dtype, page_size):
    m, shared = model(dtype), prompt(60)
    texts = [shared + prompt(9, seed=i) for i in range(3)] + [[*shared[:50], 0], shared]
    wants = [plain(m, text, {}, new=20) for text in texts]
    # One that leaves its pages behind, one that is still there, and some that come later.
    asks = [
        Ask(text, settings({}, 20), DecoyDrafter(want.tokens), joins_at=7 * i)
        for i, (text, want) in enumerate(zip(texts, wants, strict=True))
    ]
    gots, engine = run(m, asks, page_size=page_size)
    known = [0, 60, 60, 50, 59]  # the anchor of the last is computed in any case
    for got, want, hit in zip(gots, wants, known, strict=True):
        hit -= hit % page_size
        assert_same(got, want, computed=set(range(hit, len(want.tokens) - 1)))
    assert engine.stats.prefix_hits == sum(hit - hit % page_size for hit in known)


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_the_last_token_of_a_finished_text_has_no_kv(page_size):
    """A page that it fills is not shared: whoever goes on from that text computes it."""
    m, text = model(torch.bfloat16), prompt(40)
    first = Ask(text, settings({}, 8))  # 48 tokens: full pages of every size
    second = Ask([*plain(m, text, {}, 8).tokens, 7], settings({}, 8), joins_at=20)
    want = plain(m, second.prompt, {}, 8)
    (_, got), _ = run(m, [first, second], page_size=page_size)
    known = 47 - 47 % page_size
    assert_same(got, want, computed=set(range(known, len(want.tokens) - 1)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_padded_requests_change_nothing(dtype):
    """A chunk, a plain row and a tree; then the same with padded requests between them."""
    m = model(dtype)
    shares = [
        Share(0, 0, prompt(9, seed=1), 0, pages=[4, 2]),
        Share(2, 0, prompt(1, seed=2), 1, pages=[7]),
        Share(1, 0, prompt(6, seed=3), 6, [-1, 0, 0, 1, 3, 2], pages=[1]),
    ]
    padded = [Share(-1, 0, [5] * n, n, [-1] + [0] * (n - 1) if n == 3 else None) for n in (2, 3, 1)]
    mixed = [padded[0], shares[0], padded[1], shares[1], shares[2], padded[2]]

    def forward(shares):
        cache = KVCache(m.config, num_pages=9, page_size=8, dtype=dtype)
        for memory in (*cache.k, *cache.v):
            memory.fill_(float("nan"))
        state = State(3, 64, 8, 1, torch.device("cpu"))
        for share in shares:
            if share.state_row >= 0:
                state.block_table[share.state_row, : len(share.pages)] = torch.tensor(share.pages)
        batch = pack(shares, 8, torch.device("cpu"))
        hidden = m.forward(batch, cache, state).clone()
        ids = m.sample(hidden, batch, state)
        begins = batch.cu_rows.tolist()
        of = {s.state_row: hidden[a:b] for s, a, b in zip(shares, begins, begins[1:], strict=False)}
        verified = batch.cu_verify.tolist()
        ids = {
            s.state_row: ids[a:b] for s, a, b in zip(shares, verified, verified[1:], strict=False)
        }
        return of, ids, [x.nan_to_num(-7.0) for x in (*cache.k, *cache.v)]

    want, got = forward(shares), forward(mixed)
    for row in range(3):
        assert torch.equal(got[0][row], want[0][row]) and torch.equal(got[1][row], want[1][row])
    assert all(torch.equal(a, b) for a, b in zip(got[2], want[2], strict=True))
    assert (got[1][-1] == -1).all()


@pytest.mark.parametrize("seed", range(12))
def test_many_random_models_and_schedules(seed):
    rng = random.Random(seed)
    dtype, kind = rng.choice(DTYPES), rng.choice(["llama", "qwen2", "qwen3", "w4"])
    m = model(dtype, kind, seed=seed + 1)
    page_size = rng.choice([1, 3, 16, 24])
    asks, wants = [], []
    for i in range(rng.randint(2, 6)):
        text = prompt(rng.randint(1, 70), seed=rng.randint(0, 2))
        new = rng.randint(1, 30)
        sampling = rng.choice(SAMPLING)
        stop = (rng.randrange(101),) if rng.random() < 0.5 else ()
        wanted = Settings(max_new_tokens=new, stop_ids=stop, **sampling)
        (want,), _ = run(m, [Ask(text, wanted)], chunk=MAX_POSITION)
        drafter = rng.choice(
            [
                None,
                NgramDrafter(rng.randint(1, 6), min_match=1),
                NgramDrafter(rng.randint(1, 6), rng.randint(1, 12), min_match=1),
                DecoyDrafter(
                    want.tokens, rng.randint(1, 5), rng.randint(0, 3), rng.choice([None, 1])
                ),
            ]
        )
        asks.append(Ask(text, wanted, drafter, joins_at=rng.randint(0, 10) * i))
        wants.append(want)
    least = max(len(want.tokens) for want in wants)
    torch.set_num_threads(rng.choice([1, 2, 3]))
    gots, _ = run(
        m,
        asks,
        page_size=page_size,
        num_pages=-(-(least + rng.randint(0, 200)) // page_size),
        chunk=rng.choice([1, 5, 64]),
        max_requests=rng.randint(1, 6),
    )
    for got, want in zip(gots, wants, strict=True):
        assert_same(got, want, computed=set(got.hidden))
