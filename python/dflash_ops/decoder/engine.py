"""Continuous batching: requests join and leave between any two steps.

A step is: draft, one forward pass over everybody's rows, sample, match, commit, compact. A request
does one of two things in it: a chunk of its prefill, or its anchor with drafts. The last row of a
prefill is an anchor, so the first new token comes from the same step.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import Accepted
from .batch import Batch, pack
from .cache import KVCache
from .model import Model
from .ngram import Drafter
from .scheduler import Request, Scheduler
from .state import Settings, State
from .stats import Stats

# The ops themselves: what the public functions check first holds here by construction.
_accept_match = torch.ops.dflash.accept_match.default
_commit = torch.ops.dflash.commit.default
_compact_kv = torch.ops.dflash.compact_kv.default


VERIFY = ("match", "token", "block")


@dataclass
class Step:
    """What a step did. Tensors are valid until the next one."""

    requests: list[Request]
    emitted: list[list[int]]  # new tokens of each request
    batch: Batch
    hidden: Tensor  # [T, hidden]
    accepted_rows: Tensor
    num_kept: Tensor


class Engine:
    """
    Args:
        model: the target.
        num_pages, page_size: of the KV cache.
        max_requests: rows of request state: how many run at a time.
        chunk: most rows of one request's prefill in a step.
        max_stops: most stop tokens of a request.
        verify: ``"match"``: a draft stays iff it is the target's own token, so the output does not
            depend on the drafts. ``"token"``, ``"block"``: rejection verification of chains, which
            keeps the target's law; tokens depend on the drafts, and more of these stay.
    """

    def __init__(
        self,
        model: Model,
        *,
        num_pages: int,
        page_size: int = 16,
        max_requests: int = 8,
        chunk: int = 64,
        max_stops: int = 8,
        verify: str = "match",
    ):
        if verify not in VERIFY:
            raise ValueError(f"verify must be one of {', '.join(VERIFY)}, got {verify}")
        self.model = model
        self.verify = verify
        self.cache = KVCache(
            model.config,
            num_pages=num_pages,
            page_size=page_size,
            dtype=model.dtype,
            device=model.device,
        )
        self.capacity = min(num_pages * page_size, model.max_position)
        max_pages = self.cache.pool.pages_for(self.capacity)
        self.state = State(max_requests, self.capacity, max_pages, max_stops, model.device)
        self.stats = Stats()
        self._scheduler = Scheduler(
            self.cache.pool, self.state, self.stats, max_rows=model.max_rows, chunk=chunk
        )

    def add(
        self, prompt: Sequence[int], settings: Settings, drafter: Drafter | None = None
    ) -> Request:
        """Raises ValueError for a prompt that is empty or leaves no room for a token."""
        if not prompt:
            raise ValueError("the prompt has no tokens")
        if len(prompt) >= self.capacity:
            raise ValueError(
                f"the prompt has {len(prompt)} tokens, the context ends at {self.capacity}"
            )
        if len(settings.stop_ids) > self.state.stop_ids.shape[1]:
            raise ValueError(f"at most {self.state.stop_ids.shape[1]} stop tokens")
        max_len = min(len(prompt) + settings.max_new_tokens, self.capacity)
        request = Request(len(prompt), list(prompt), settings, drafter, max_len)
        self._scheduler.add(request)
        return request

    def cancel(self, request: Request) -> None:
        """The request leaves before the next step."""
        request.finished = True

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    def run(self) -> None:
        while self.step():
            pass

    def step(self) -> Step | None:
        """None: there is nothing to do."""
        begin = time.perf_counter()
        requests, shares, draft_s = self._scheduler.plan()
        if not requests:
            return None
        batch = pack(shares, self.cache.pool.page_size, self.model.device)

        if batch.tree and self.verify != "match":
            raise ValueError(f"verify {self.verify} takes chains, a drafter proposed a tree")

        verify_begin = time.perf_counter()
        hidden = self.model.forward(batch, self.cache, self.state)
        step = self._verify(requests, batch, hidden)
        verify_s = time.perf_counter() - verify_begin

        self._scheduler.publish(requests)
        if any(step.emitted):
            self.stats.verify_s += verify_s
        else:
            self.stats.prefill_s += verify_s
        self.stats.draft_s += draft_s
        self.stats.total_s += time.perf_counter() - begin
        return step

    def _verify(self, requests: list[Request], batch: Batch, hidden: Tensor) -> Step:
        state = self.state
        accepted = self._accept(batch, hidden)
        ctx_lens = state.ctx_lens.clone()  # as they were: compaction needs them
        num_kept = _commit(
            state.tokens,
            state.lengths,
            state.ctx_lens,
            state.finished,
            accepted.emitted,
            accepted.num_emitted,
            batch.cu_rows,
            batch.cu_verify,
            req_rows=batch.req_rows,
            stop_ids=state.stop_ids,
            max_lens=state.max_lens,
        )
        if batch.tree:
            _compact_kv(
                self.cache.k,
                self.cache.v,
                block_tables=[state.block_table],
                accepted_rows=accepted.accepted_rows,
                cu_rows=batch.cu_rows,
                num_kept=num_kept,
                ctx_lens=ctx_lens,
                req_rows=batch.req_rows,
            )
        new = self._read_back(requests, batch, accepted)
        return Step(requests, new, batch, hidden, accepted.accepted_rows, num_kept)

    def _accept(self, batch: Batch, hidden: Tensor) -> Accepted:
        max_path = max(batch.draft_depths)
        if self.verify != "match":
            return self.model.verify(hidden, batch, self.state, self.verify, max_path)
        return Accepted(
            *_accept_match(
                batch.verify_ids,
                batch.cu_verify,
                self.model.sample(hidden, batch, self.state),
                batch.verify_parents,
                batch.verify_rows,
                max_path=max_path,
            )
        )

    def _read_back(
        self, requests: list[Request], batch: Batch, accepted: Accepted
    ) -> list[list[int]]:
        """What the host must know: the new tokens, who is done, how much KV there is."""
        lengths, ctx_lens = self.state.lengths.tolist(), self.state.ctx_lens.tolist()
        finished = self.state.finished.tolist()
        new = []
        for request, ids, num_accepted, depth in zip(
            requests,
            accepted.emitted.tolist(),
            accepted.num_accepted.tolist(),
            batch.draft_depths,
            strict=True,
        ):
            row = request.row
            tokens = ids[: lengths[row] - len(request.tokens)]
            request.tokens += tokens
            request.ctx_len = ctx_lens[row]
            request.finished = request.finished or finished[row]
            new.append(tokens)
            self.stats.count_drafts(depth, num_accepted)
        verified = sum(map(bool, new))
        self.stats.new_tokens += sum(map(len, new))
        self.stats.cycles += verified > 0
        self.stats.request_cycles += verified
        return new
