from dataclasses import dataclass, field
from typing import Any


@dataclass
class Stats:
    """Counters of an engine. A cycle is a step in which at least one request was verified."""

    new_tokens: int = 0
    cycles: int = 0
    request_cycles: int = 0  # requests verified, summed over the cycles
    preemptions: int = 0
    prefix_hits: int = 0  # tokens whose KV was there already
    proposed: list[int] = field(default_factory=list)  # by position after the anchor
    accepted: list[int] = field(default_factory=list)
    prefill_s: float = 0.0  # forward passes of steps that verified nobody
    draft_s: float = 0.0
    verify_s: float = 0.0  # forward pass, sampling and verification of the others
    total_s: float = 0.0

    def count_drafts(self, depth: int, num_accepted: int) -> None:
        """`depth` positions had drafts, the first `num_accepted` of them were accepted."""
        missing = depth - len(self.proposed)
        self.proposed += [0] * missing
        self.accepted += [0] * missing
        for position in range(depth):
            self.proposed[position] += 1
            self.accepted[position] += position < num_accepted

    def report(self) -> dict[str, Any]:
        return {
            "new_tokens": self.new_tokens,
            "tokens_per_s": ratio(self.new_tokens, self.total_s),
            "cycles": self.cycles,
            "tokens_per_cycle": ratio(self.new_tokens, self.request_cycles),
            "acceptance_per_position": [
                ratio(a, p) for a, p in zip(self.accepted, self.proposed, strict=True)
            ],
            "prefill_s": self.prefill_s,
            "draft_s": self.draft_s,
            "verify_s": self.verify_s,
            "other_s": self.total_s - self.prefill_s - self.draft_s - self.verify_s,
            "preemptions": self.preemptions,
            "prefix_hits": self.prefix_hits,
        }


def ratio(a: float, b: float) -> float:
    return a / b if b else 0.0
