import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash_ops.decoder.cache import PagePool, extend_digests


def digests_of(tokens, page_size=2):
    digests = []
    extend_digests(digests, tokens, page_size)
    return digests


def test_all_or_nothing():
    pool = PagePool(3, 16)
    pages = pool.take(2)
    assert pool.take(2) is None and pool.num_available == 1
    pool.release(pages)
    assert sorted(pool.take(3)) == [0, 1, 2] and pool.take(1) is None
    assert pool.take(0) == []


def test_digest_is_of_the_page_and_all_before_it():
    a, b = digests_of([1, 2, 3, 4, 5]), digests_of([9, 2, 3, 4])
    assert len(a) == 2 and len(b) == 2 and not set(a) & set(b)
    assert digests_of([1, 2, 3, 5])[0] == a[0]
    grown = digests_of([1, 2, 3])
    extend_digests(grown, [1, 2, 3, 4], 2)
    assert grown == a


def test_prefix_is_shared_while_held_and_after():
    pool = PagePool(4, 2)
    digests = digests_of([1, 2, 3, 4])
    pages = pool.take(2)
    assert pool.share(digests) == []  # not full yet
    for page, digest in zip(pages, digests, strict=True):
        pool.publish(page, digest)
    assert pool.share(digests) == pages  # two holders
    pool.release(pages)
    assert pool.num_available == 2
    pool.release(pages)
    assert pool.num_available == 4 and pool.share([*digests, b"other"]) == pages
    assert pool.num_available == 2


def test_idle_pages_are_reused_last_and_deepest_first():
    pool = PagePool(3, 2)
    digests = digests_of([1, 2, 3, 4])
    pages = pool.take(2)
    for page, digest in zip(pages, digests, strict=True):
        pool.publish(page, digest)
    pool.release(pages)
    (fresh,) = pool.take(1)
    assert fresh not in pages  # nothing forgotten while a page is free
    assert pool.take(1) == [pages[1]]
    assert pool.share(digests) == [pages[0]]


def test_the_first_of_two_equal_pages_is_known():
    pool = PagePool(2, 2)
    digest = digests_of([1, 2])[0]
    a, b = pool.take(2)
    pool.publish(a, digest)
    pool.publish(b, digest)
    pool.release([b])
    assert pool.share([digest]) == [a]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(0, 3)), max_size=60))
def test_every_page_has_its_holders(script):
    """Against a plain list of who holds what: no page of a holder is ever given to another."""
    pool = PagePool(8, 1)
    holders = [[] for _ in range(6)]
    for action, who, count in script:
        if action == 0 and not holders[who]:
            # Prompts that share beginnings: tokens who // 2, 0, 1, 2, ..
            prompt = [who // 2, *range(count)]
            digests = digests_of(prompt, page_size=1)
            pages = pool.share(digests)
            more = pool.take(len(prompt) - len(pages))
            if more is None:
                pool.release(pages)
                continue
            held = {page for h in holders for page in h}
            assert not held & set(more) and not set(pages) & set(more)
            holders[who] = pages + more
            for page, digest in zip(holders[who], digests, strict=True):
                pool.publish(page, digest)
        elif action == 1:
            pool.release(holders[who])
            holders[who] = []
        held = {page for h in holders for page in h}
        assert pool.num_available == 8 - len(held)
        assert pool.peak_held >= len(held)


@pytest.mark.parametrize("num_tokens, pages", [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_pages_for(num_tokens, pages):
    assert PagePool(4, 16).pages_for(num_tokens) == pages


def test_kv_cache_bytes():
    from dflash_ops.decoder.cache import KVCache
    from dflash_ops.decoder.weights import ModelConfig

    config = ModelConfig(10, 32, 64, 3, 4, 2, 8, 64, 1e-5, (1.0,) * 4)
    cache = KVCache(config, num_pages=5, page_size=16, dtype=torch.bfloat16)
    assert cache.k[2].shape == cache.v[0].shape == (5, 16, 2, 8)
    cache.pool.release(cache.pool.take(3))
    assert cache.peak_bytes == 3 * 2 * 3 * 16 * 2 * 8 * 2  # pages, k and v, layers, ..
