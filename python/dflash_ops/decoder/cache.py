"""Paged KV memory: the tensors, and on the host which page belongs to whom."""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence

import torch

from .weights import ModelConfig


class PagePool:
    """Owners of pages. A page is free, held by one or more requests, or idle.

    An idle page belongs to nobody but still holds a full page of a known prefix: whoever begins
    with the same tokens takes it up again. Idle pages are reused, oldest first, when no page is
    free.
    """

    def __init__(self, num_pages: int, page_size: int):
        self.num_pages = num_pages
        self.page_size = page_size
        self.peak_held = 0
        self._free = list(range(num_pages - 1, -1, -1))
        self._holders = [0] * num_pages
        self._digests: list[bytes | None] = [None] * num_pages
        self._by_digest: dict[bytes, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def num_available(self) -> int:
        return len(self._free) + len(self._idle)

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def take(self, count: int) -> list[int] | None:
        """`count` pages, or none at all if there are not so many."""
        if count > self.num_available:
            return None
        while len(self._free) < count:
            page, _ = self._idle.popitem(last=False)
            self._forget(page)
            self._free.append(page)
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._holders[page] = 1
        self._note_peak()
        return pages

    def share(self, digests: Sequence[bytes]) -> list[int]:
        """The pages of the longest known beginning of `digests`; the caller holds them too."""
        pages = []
        for digest in digests:
            page = self._by_digest.get(digest)
            if page is None:
                break
            self._idle.pop(page, None)
            self._holders[page] += 1
            pages.append(page)
        self._note_peak()
        return pages

    def release(self, pages: Sequence[int]) -> None:
        """Deepest first: a beginning is worth more than what follows it."""
        for page in reversed(pages):
            self._holders[page] -= 1
            if self._holders[page] > 0:
                continue
            if self._digests[page] is None:
                self._free.append(page)
            else:
                self._idle[page] = None

    def publish(self, page: int, digest: bytes) -> None:
        """`page` is full and will not change. Of pages with one content the first is known."""
        if digest not in self._by_digest and self._digests[page] is None:
            self._by_digest[digest] = page
            self._digests[page] = digest

    def _forget(self, page: int) -> None:
        digest, self._digests[page] = self._digests[page], None
        if digest is not None:
            del self._by_digest[digest]

    def _note_peak(self) -> None:
        self.peak_held = max(self.peak_held, self.num_pages - self.num_available)


def extend_digests(digests: list[bytes], tokens: Sequence[int], page_size: int) -> None:
    """Appends the digest of each further full page: of its tokens and all before them."""
    while (end := (len(digests) + 1) * page_size) <= len(tokens):
        before = digests[-1] if digests else b""
        page = array("q", tokens[end - page_size : end]).tobytes()
        digests.append(hashlib.blake2b(before + page, digest_size=32).digest())


class KVCache:
    """K and V of every layer, ``[num_pages, page_size, num_kv_heads, head_dim]``, and its pool."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        num_pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device | None = None,
    ):
        self.pool = PagePool(num_pages, page_size)
        shape = (num_pages, page_size, config.num_kv_heads, config.head_dim)
        # Not initialised: what no request has written is read by none.
        self.k = [torch.empty(shape, dtype=dtype, device=device) for _ in range(config.num_layers)]
        self.v = [torch.empty(shape, dtype=dtype, device=device) for _ in range(config.num_layers)]
        self.page_bytes = 2 * config.num_layers * self.k[0][0].nbytes

    @property
    def peak_bytes(self) -> int:
        return self.pool.peak_held * self.page_bytes
