"""Drafters guess the next tokens of one request; the target decides."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Draft(NamedTuple):
    tokens: list[int]
    parents: list[int] | None = None
    """Of each draft, the row that it follows: 0 is the anchor, i + 1 is draft i. None: a chain."""


class Drafter(Protocol):
    def propose(self, tokens: Sequence[int], limit: int) -> Draft:
        """At most `limit` drafts to follow `tokens`, all that the request has so far."""


class NgramDrafter:
    """Prompt lookup: what followed the last few tokens when they stood here before.

    A chain is the continuation of the latest such place. A tree merges the continuations of
    several places, longest match and latest place first, until it has `tree_nodes` nodes.
    One drafter serves one request, whose tokens only grow.
    """

    def __init__(
        self,
        draft_len: int = 8,
        tree_nodes: int = 0,
        *,
        min_match: int = 2,
        max_match: int = 4,
        max_places: int = 16,
    ):
        self.draft_len = draft_len
        self.tree_nodes = tree_nodes
        self._sizes = range(max_match, min_match - 1, -1)
        self._max_places = max_places
        self._places: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        self._num_seen = 0

    def propose(self, tokens: Sequence[int], limit: int) -> Draft:
        self._index(tokens)
        starts = self._starts(tokens)
        if self.tree_nodes > 0:
            return self._tree(tokens, starts, min(limit, self.tree_nodes))
        length = min(limit, self.draft_len)
        return Draft(self._continuation(tokens, starts[0], length) if starts else [])

    def _index(self, tokens: Sequence[int]) -> None:
        """Notes, for each n-gram that has a successor, where the successor stands."""
        for start in range(max(self._num_seen, 1), len(tokens)):
            for size in self._sizes:
                if size <= start:
                    self._places[tuple(tokens[start - size : start])].append(start)
        self._num_seen = len(tokens)

    def _starts(self, tokens: Sequence[int]) -> list[int]:
        """Places to continue from, best first, each once."""
        found: dict[int, None] = {}
        for size in self._sizes:
            if size > len(tokens):
                continue
            for start in reversed(self._places.get(tuple(tokens[-size:]), ())):
                found.setdefault(start)
                if len(found) == self._max_places or self.tree_nodes == 0:
                    return list(found)
        return list(found)

    @staticmethod
    def _continuation(tokens: Sequence[int], start: int, length: int) -> list[int]:
        """Goes on into itself when it reaches the end: text that repeats has a period."""
        draft = list(tokens[start : start + length])
        period = len(tokens) - start
        while len(draft) < length:
            draft.append(draft[len(draft) - period])
        return draft

    def _tree(self, tokens: Sequence[int], starts: list[int], num_nodes: int) -> Draft:
        draft: list[int] = []
        parents: list[int] = []
        rows: dict[tuple[int, int], int] = {}  # (parent's row, token) -> row
        for start in starts:
            row = 0
            for token in self._continuation(tokens, start, self.draft_len):
                if (row, token) not in rows:
                    if len(draft) == num_nodes:
                        return Draft(draft, parents)
                    draft.append(token)
                    parents.append(row)
                    rows[row, token] = len(draft)
                row = rows[row, token]
        return Draft(draft, parents)
