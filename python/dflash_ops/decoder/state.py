from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Settings:
    """How one request is sampled, and when it ends."""

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    stop_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, good, wanted in (
            ("max_new_tokens", self.max_new_tokens >= 1, "at least 1"),
            ("temperature", 0 <= self.temperature < float("inf"), "at least 0"),
            ("top_k", self.top_k >= 0, "at least 0"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("min_p", 0 <= self.min_p <= 1, "from 0 to 1"),
            ("seed", -(2**63) <= self.seed < 2**63, "a 64-bit integer"),
        ):
            if not good:
                raise ValueError(f"{name} must be {wanted}, got {getattr(self, name)}")

    @property
    def is_greedy(self) -> bool:
        return self.temperature < 1e-5


class State:
    """What the ops know of R requests, a row each."""

    def __init__(
        self, num_rows: int, capacity: int, max_pages: int, max_stops: int, device: torch.device
    ):
        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.tokens = zeros(num_rows, capacity)
        self.lengths = zeros(num_rows)  # tokens; the last one is the anchor
        self.max_lens = zeros(num_rows)
        self.ctx_lens = zeros(num_rows)  # tokens whose KV is in the cache
        self.finished = zeros(num_rows, dtype=torch.bool)
        self.stop_ids = zeros(num_rows, max_stops) - 1
        self.block_table = zeros(num_rows, max_pages, dtype=torch.int32) - 1
        self.seeds = zeros(num_rows)
        self.top_k = zeros(num_rows, dtype=torch.int32)
        self.temperature, self.top_p, self.min_p = (
            zeros(num_rows, dtype=torch.float32) for _ in range(3)
        )

    def admit(self, row: int, tokens: list[int], max_len: int, s: Settings) -> None:
        device = self.tokens.device
        self.tokens[row, : len(tokens)] = torch.tensor(tokens, device=device)
        self.lengths[row] = len(tokens)
        self.max_lens[row] = max_len
        self.ctx_lens[row] = 0
        self.finished[row] = False
        self.stop_ids[row] = -1
        self.stop_ids[row, : len(s.stop_ids)] = torch.tensor(s.stop_ids, device=device)
        self.block_table[row] = -1
        self.seeds[row] = s.seed
        self.top_k[row] = s.top_k
        self.temperature[row] = s.temperature
        self.top_p[row] = s.top_p
        self.min_p[row] = s.min_p
