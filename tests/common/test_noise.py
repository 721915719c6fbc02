"""Noise: known answers, the exact law of the words, errors over all of them, frozen bits."""

import os

import pytest
import torch
from calls import apply

from dflash_ops import _C
from dflash_ops.reference import noise

EPS = 2.0**-24
# Published with the generator (Random123, kat_vectors): counter, key, words.
KNOWN = [
    ([0] * 4, 0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, -1, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        0x299F31D0_A4093822,
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]
# sum over all words of mix(word << 32 | bits of the noise), as _C.hooks.check_gumbel defines it.
HASH_OF_ALL = 0x50F87EFEF20DC0DF
HASHES = {  # of 2^20 words from each start
    0: 0x1F2B0CD8F8643904,
    16252928: 0x57F8EFE61EE8A1F2,
    16777216: 0xA5EC89A05FC10D6B,
    536870912: 0xB570144EAAFD4B5B,
    2146959360: 0x606C481219735FAB,
    2147483648: 0x085EC4BCE84CFC28,
    3221225472: 0x25D1795329829880,
    4293918720: 0x0E7CE7141D9DB248,
}


def pack(words):
    """uint32 numbers in int64 tensors [..., n] -> uint32 tensors."""
    return words.to(torch.uint32).contiguous()


def kernel_philox(key, counter):
    raw = torch.zeros(len(key), 6, dtype=torch.uint32)
    raw[:, 0] = (key & 0xFFFFFFFF).to(torch.uint32)
    raw[:, 1] = ((key >> 32) & 0xFFFFFFFF).to(torch.uint32)
    raw[:, 2:] = counter.to(torch.uint32)
    out = torch.empty(len(key), 4, dtype=torch.uint32)
    _C.hooks.philox(raw.data_ptr(), out.data_ptr(), len(key))
    return out.long()


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_philox_known_answers(counter, key, words):
    counter, key = torch.tensor([counter]), torch.tensor([key])
    assert noise.philox(key, counter).tolist() == [words]
    assert kernel_philox(key, counter).tolist() == [words]


def test_philox_equals_reference():
    g = torch.Generator().manual_seed(0)
    key = torch.randint(-(2**63), 2**63 - 1, (10_000,), generator=g)
    counter = torch.randint(2**32, (10_000, 4), generator=g)
    assert torch.equal(kernel_philox(key, counter), noise.philox(key, counter))


def pairs():
    """(word, low) pairs: every power of two and its neighbours, both ends of the low word."""
    powers = torch.tensor([2**k for k in range(33)])
    word = torch.cat([powers - 1, powers, powers + 1]).unique()
    word = word[(word >= 0) & (word < 2**32)]
    low = torch.tensor([0, 1, 2**31, 2**32 - 1])
    return word.repeat_interleave(len(low)), low.repeat(len(word))


def as_uint64(word, low):
    return torch.stack((pack(low), pack(word)), dim=-1).view(torch.uint64)[..., 0]


def test_gumbel_at_the_edges():
    word, low = pairs()
    got = apply(_C.hooks.gumbel, as_uint64(word, low)).double()
    want = noise.gumbel_of(word, low)
    assert ((got - want).abs() <= 8 * EPS * want.abs().clamp(min=1)).all()
    assert got.isfinite().all() and got.max() < 45.06 and got.min() > -3.15
    bound = apply(_C.hooks.gumbel_bound, pack(word)).double()
    assert (got < bound).all()
    small = (word >= 2**10) & (word < 2**24)
    assert (bound - got)[small & (low == 0)].max() < 0.07


def test_coin_is_cut_not_rounded():
    word, low = pairs()
    got = apply(_C.hooks.coin, as_uint64(word, low))
    want = [noise.coin_of(w, x) for w, x in zip(word.tolist(), low.tolist(), strict=True)]
    assert got.double().tolist() == want
    assert got.min() == 2.0**-65 and got.max() == 1 - 2.0**-24


def test_gumbel_over_a_sample_of_all_words():
    """Both sides of every branch; these bits are frozen."""
    for first, want in HASHES.items():
        check = _C.hooks.check_gumbel(first, first + 2**20)
        assert check.worst <= 8 * EPS and check.worst_over < 0
        assert check.hash == want, hex(check.hash)


@pytest.mark.skipif(
    os.environ.get("HYPOTHESIS_PROFILE") != "nightly", reason="all 2^32 words: nightly profile"
)
def test_gumbel_over_all_words():
    check = _C.hooks.check_gumbel(0, 2**32)
    assert check.worst <= 8 * EPS and check.worst_over < 0
    assert check.hash == HASH_OF_ALL, hex(check.hash)


def test_counters_of_streams():
    """c0..c3 as docs/noise.md lays them out, checked against words made by hand."""
    seed, ids = 2**40 + 5, torch.tensor([0, 3, 4, 151_935])
    counter = torch.stack(
        [ids >> 2, *(torch.full_like(ids, x) for x in (77, 3 | 2 << 3 | 9 << 12, 70))], dim=-1
    )
    words = noise.philox(torch.full_like(ids, seed), counter)
    word = words.gather(1, (ids & 3)[:, None])[:, 0]
    got = noise.gumbel(seed, ids, 77, noise.purpose(noise.RESIDUAL, 2, 9), 70)
    assert torch.equal(got, noise.gumbel_of(word, torch.zeros_like(word)))
    assert noise.purpose(noise.COIN) == 2
