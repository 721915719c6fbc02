"""Who runs, who waits and who is pushed out; who holds which pages."""

import time
from collections import deque
from dataclasses import dataclass, field

import torch

from .batch import Share
from .cache import PagePool, extend_digests
from .ngram import Draft, Drafter
from .state import Settings, State
from .stats import Stats


@dataclass(eq=False)
class Request:
    prompt_len: int
    tokens: list[int]  # prompt and what came since
    settings: Settings
    drafter: Drafter | None
    max_len: int
    row: int = -1  # of State; -1: waiting
    ctx_len: int = 0  # tokens whose KV is in the cache
    pages: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)  # of the full pages of tokens[:ctx_len]
    finished: bool = False

    @property
    def new_tokens(self) -> list[int]:
        return self.tokens[self.prompt_len :]

    @property
    def num_missing(self) -> int:
        """Rows up to and including the anchor."""
        return len(self.tokens) - self.ctx_len


class Scheduler:
    """Requests in the order in which they came, over the rows of `state` and the pages of `pool`.

    `max_rows` bounds the rows of a step, `chunk` those of one request's prefill in it.
    """

    def __init__(self, pool: PagePool, state: State, stats: Stats, *, max_rows: int, chunk: int):
        self._pool, self._state, self._stats = pool, state, stats
        self._max_rows, self._chunk = max_rows, chunk
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []  # in the order of admission
        self._free_rows = list(range(len(state.lengths) - 1, -1, -1))

    @property
    def has_work(self) -> bool:
        return any(not r.finished for r in (*self._waiting, *self._running))

    def add(self, request: Request) -> None:
        self._waiting.append(request)

    def plan(self) -> tuple[list[Request], list[Share], float]:
        """Who does what in the next step, and how long the drafters took."""
        self._retire()
        self._admit()
        requests, shares, draft_s = [], [], 0.0
        budget = self._max_rows
        for request in list(self._running):
            if request.row < 0 or budget == 0:
                continue  # pushed out just now; or its turn comes later
            missing = request.num_missing
            size = min(missing, self._chunk, budget)
            draft = Draft([])
            if size == 1 == missing and request.drafter is not None:
                begin = time.perf_counter()
                limit = min(request.max_len - len(request.tokens), budget) - 1
                draft = request.drafter.propose(request.tokens, limit)
                draft_s += time.perf_counter() - begin
            if not self._has_pages(request, size + len(draft.tokens)):
                draft = Draft([])
                if not self._make_room(request, size):
                    continue
            requests.append(request)
            shares.append(_share(request, size, draft))
            budget -= len(shares[-1].tokens)
        return requests, shares, draft_s

    def publish(self, requests: list[Request]) -> None:
        """Pages that are full now can be shared."""
        size = self._pool.page_size
        for request in requests:
            begin = len(request.digests)
            if request.ctx_len < (begin + 1) * size:
                continue
            extend_digests(request.digests, request.tokens[: request.ctx_len], size)
            for page, digest in zip(request.pages[begin:], request.digests[begin:], strict=False):
                self._pool.publish(page, digest)

    def _retire(self) -> None:
        for request in [r for r in self._running if r.finished]:
            self._leave(request)
        if any(r.finished for r in self._waiting):
            self._waiting = deque(r for r in self._waiting if not r.finished)

    def _leave(self, request: Request) -> None:
        self._running.remove(request)
        self._free_rows.append(request.row)
        self._pool.release(request.pages)
        request.row, request.ctx_len = -1, 0
        request.pages, request.digests = [], []

    def _admit(self) -> None:
        while self._waiting and self._free_rows:
            request = self._waiting[0]
            if self._pool.num_available < self._pool.pages_for(len(request.tokens)):
                return  # it would push others out, or soon be pushed out itself
            self._waiting.popleft()
            request.row = self._free_rows.pop()
            self._running.append(request)
            self._state.admit(request.row, request.tokens, request.max_len, request.settings)
            # The anchor's row is computed in any case: its logits are what is wanted.
            extend_digests(request.digests, request.tokens[:-1], self._pool.page_size)
            pages = self._pool.share(request.digests)
            del request.digests[len(pages) :]
            request.ctx_len = len(pages) * self._pool.page_size
            self._state.ctx_lens[request.row] = request.ctx_len
            self._append_pages(request, pages)
            self._stats.prefix_hits += request.ctx_len

    def _append_pages(self, request: Request, pages: list[int]) -> None:
        begin = len(request.pages)
        request.pages += pages
        table = self._state.block_table
        table[request.row, begin : len(request.pages)] = torch.tensor(
            pages, dtype=table.dtype, device=table.device
        )

    def _has_pages(self, request: Request, num_rows: int) -> bool:
        wanted = self._pool.pages_for(request.ctx_len + num_rows) - len(request.pages)
        if wanted <= 0:
            return True
        pages = self._pool.take(wanted)
        if pages is None:
            return False
        self._append_pages(request, pages)
        return True

    def _make_room(self, request: Request, num_rows: int) -> bool:
        """Pushes out who came last, until the rows fit; False if that is the request itself."""
        while not self._has_pages(request, num_rows):
            victim = self._running[-1]
            self._leave(victim)
            self._waiting.appendleft(victim)  # its tokens stay; their KV is computed again
            self._stats.preemptions += 1
            if victim is request:
                return False
        return True


def _share(request: Request, size: int, draft: Draft) -> Share:
    begin = request.ctx_len
    tokens = request.tokens[begin : begin + size]
    reaches_anchor = size == request.num_missing
    parents = None if draft.parents is None or not draft.tokens else [-1, *draft.parents]
    return Share(
        state_row=request.row,
        ctx_len=begin,
        tokens=[*tokens, *draft.tokens],
        num_verify=reaches_anchor + len(draft.tokens),
        parents=parents,
        pages=request.pages,
    )
