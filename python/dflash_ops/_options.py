"""Options that several ops take, and their checks: the twin of csrc/sample/options.h."""

from typing import TypedDict

import torch
from torch import Tensor

from ._check import Checks

MAX_ID = 2**32 - 1


class LogitOptions(TypedDict, total=False):
    """What a logit is. Order: scale, softcap, adj, mask, temperature; a token id is
    ``vocab_start`` plus its column."""

    verify_rows: Tensor | None
    """``[Tv]`` int, row of the input; -1: a padded row. Default: all rows in order."""
    logit_scale: float
    softcap: float
    """``softcap * tanh(logit / softcap)``; 0: none."""
    vocab_start: int
    vocab_size: int | None
    """Ids from here on never win and do not count. Default: ``vocab_start`` plus the columns."""
    token_mask: Tensor | None
    """``[num_masks, ceil(vocab_size / 32)]`` int32; bit ``id % 32`` of word ``id // 32`` set:
    allowed."""
    mask_rows: Tensor | None
    """``[Tv]`` int, row of the mask; -1: everything is allowed. Default: the same numbers."""
    adj_cu: Tensor | None
    """``[Tv + 1]`` int: row i adds ``adj_values[j]`` to logit ``adj_ids[j]`` for
    ``adj_cu[i] <= j < adj_cu[i + 1]``."""
    adj_ids: Tensor | None
    """``[nnz]`` int."""
    adj_values: Tensor | None
    """``[nnz]`` float32."""


class SamplingOptions(TypedDict, total=False):
    """How a row's token is chosen. R: rows of request state."""

    req_rows: Tensor | None
    """``[B]`` int, state row of each request; -1: padded. Default: the same numbers."""
    temperature: Tensor | None
    """``[R]`` float32; below 1e-5: greedy. Default: greedy everywhere."""
    top_k: Tensor | None
    """``[R]`` int; <= 0 or >= ``vocab_size``: off."""
    top_p: Tensor | None
    """``[R]`` float32; >= 1: off."""
    min_p: Tensor | None
    """``[R]`` float32; <= 0: off."""
    seeds: Tensor | None
    """``[R]`` int; needed with ``temperature``."""
    order: str
    """``"k_then_p"`` (top_p is a share of the best top_k) or ``"joint"`` (of the whole law)."""


def check_logits(
    checks: Checks, options: LogitOptions, num_source_rows: int, num_columns: int
) -> int:
    """Checks the options and returns Tv."""
    verify_rows = options.get("verify_rows")
    checks.index("verify_rows", verify_rows, "[Tv]", -1)
    rows = num_source_rows if verify_rows is None else len(verify_rows)
    checks.at_least("softcap", options.get("softcap", 0.0), 0)
    start = options.get("vocab_start", 0)
    checks.at_least("vocab_start", start, 0)
    vocab_size = options.get("vocab_size")
    vocab_size = start + num_columns if vocab_size is None else vocab_size
    checks.at_least("vocab_size", vocab_size, 0)
    checks.at_most("vocab_size", vocab_size, MAX_ID)
    token_mask, mask_rows = options.get("token_mask"), options.get("mask_rows")
    masks, first = (rows, "Tv") if mask_rows is None else (-1, "num_masks")
    dims = f"[{first}, ceil(vocab_size / 32)]"
    checks.tensor("token_mask", token_mask, (torch.int32,), dims, masks, (vocab_size + 31) // 32)
    checks.given("token_mask", token_mask, "mask_rows", mask_rows)
    checks.index("mask_rows", mask_rows, "[Tv]", rows)
    adj_cu, adj_ids = options.get("adj_cu"), options.get("adj_ids")
    adj_values = options.get("adj_values")
    checks.given("adj_ids", adj_ids, "adj_cu", adj_cu)
    checks.given("adj_values", adj_values, "adj_cu", adj_cu)
    checks.index("adj_cu", adj_cu, "[Tv + 1]", rows + 1)
    checks.index("adj_ids", adj_ids, "[nnz]", -1)
    count = 0 if adj_ids is None else len(adj_ids)
    checks.tensor("adj_values", adj_values, (torch.float32,), "[nnz]", count)
    return rows


def check_sampling(
    checks: Checks, positions: Tensor, cu_verify: Tensor, options: SamplingOptions, rows: int
) -> None:
    checks.index("positions", positions, "[Tv]", rows)
    checks.index("cu_verify", cu_verify, "[B + 1]", -1)
    checks.at_least("len(cu_verify)", len(cu_verify), 1)
    checks.index("req_rows", options.get("req_rows"), "[B]", len(cu_verify) - 1)
    temperature, seeds = options.get("temperature"), options.get("seeds")
    checks.tensor("temperature", temperature, (torch.float32,), "[R]", -1)
    state_rows = -1 if temperature is None else len(temperature)
    checks.index("top_k", options.get("top_k"), "[R]", state_rows)
    checks.tensor("top_p", options.get("top_p"), (torch.float32,), "[R]", state_rows)
    checks.tensor("min_p", options.get("min_p"), (torch.float32,), "[R]", state_rows)
    checks.given("seeds", seeds, "temperature", temperature)
    checks.index("seeds", seeds, "[R]", state_rows)
    checks.one_of("order", options.get("order", "k_then_p"), "k_then_p", "joint")
