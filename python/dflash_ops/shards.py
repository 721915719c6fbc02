"""Tensor parallelism: what the ranks' parts add up to."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ._check import FLOATS, Checks
from .lm_head import MAX_TOPK, HeadRecord


class ShardSum(NamedTuple):
    """The sum of all shards, and its norm."""

    sum: Tensor
    """``[M, N]``"""
    normed: Tensor
    """``[M, N]``; ``[0, N]`` without a norm."""


def sum_shards(
    shards: Tensor,
    *,
    residual: Tensor | None = None,
    norm_weight: Tensor | None = None,
    eps: float = 1e-6,
    out_dtype: torch.dtype | None = None,
    out: ShardSum | None = None,
) -> ShardSum:
    """Add tensor-parallel partial sums in rank order, with the residual and the norm after it.

    ``sum = ((shards[0] + shards[1]) + ..) + residual`` in fp32, rounded once;
    ``normed = rmsnorm(sum)``. Unlike an all-reduce, whose order depends on the message's size, this
    gives a row the same bits whatever else is in the call. The bits depend on the number of ranks.

    Args:
        shards: ``[S, M, N]`` bf16, fp16 or fp32, gathered from the ranks. Last dimension
            contiguous, as for residual.
        residual: ``[M, N]`` float. Default: none.
        norm_weight: ``[N]`` float. Default: no norm.
        eps: of the norm.
        out_dtype: of both results. Default: shards'.
        out: tensors of out_dtype to write into, any strides.

    Returns:
        A :class:`ShardSum`; ``out`` if given.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape, stride, device or bound is not as above.

    Reference: :func:`dflash_ops.reference.sum_shards`, within fp32 rounding.
    """
    checks = Checks("sum_shards", shards)
    checks.tensor("shards", shards, FLOATS, "[S, M, N]", -1, -1, -1)
    dtype = shards.dtype if out_dtype is None else out_dtype
    if dtype not in FLOATS and out is None:
        name = str(dtype).removeprefix("torch.")
        raise TypeError(f"sum_shards: out_dtype must be bfloat16 or float16 or float32, got {name}")
    checks.last_contiguous("shards", shards)
    _, rows, cols = shards.shape
    checks.tensor("residual", residual, FLOATS, "[M, N]", rows, cols)
    checks.last_contiguous("residual", residual)
    checks.tensor("norm_weight", norm_weight, FLOATS, "[N]", cols)
    checks.last_contiguous("norm_weight", norm_weight)
    checks.at_least("eps", eps, 0)
    options = {"residual": residual, "norm_weight": norm_weight, "eps": eps, "out_dtype": out_dtype}
    if out is None:
        return ShardSum(*torch.ops.dflash.sum_shards(shards, **options))
    checks.tensor("sum", out.sum, (dtype,), "[M, N]", rows, cols)
    if norm_weight is None:
        checks.tensor("normed", out.normed, (dtype,), "[0, N]", 0, cols)
    else:
        checks.tensor("normed", out.normed, (dtype,), "[M, N]", rows, cols)
    torch.ops.dflash.sum_shards.out(shards, **options, sum=out.sum, normed=out.normed)
    return out


@torch.library.register_fake("dflash::sum_shards")
def _(shards, *, residual=None, norm_weight=None, eps=1e-6, out_dtype=None):
    _, rows, cols = shards.shape
    dtype = out_dtype or shards.dtype
    normed = rows if norm_weight is not None else 0
    return shards.new_empty(rows, cols, dtype=dtype), shards.new_empty(normed, cols, dtype=dtype)


@torch.library.register_fake("dflash::sum_shards.out")
def _(*args, **kwargs):
    return None


class MergedShards(NamedTuple):
    """What one head over the whole vocabulary says of each row."""

    keys: Tensor
    """``[Tv, K]`` float32, descending; -inf: absent."""
    ids: Tensor
    """``[Tv, K]`` int64; of equal keys the lowest first; -1: absent."""
    values: Tensor
    """``[Tv, K]`` float32, what came along; ``[Tv, 0]`` without."""
    lse: Tensor
    """``[Tv]`` float32."""


def merge_shards(
    keys: Tensor,
    ids: Tensor,
    lse: Tensor,
    *,
    values: Tensor | None = None,
    status: Tensor | None = None,
    out: MergedShards | None = None,
) -> MergedShards:
    """Combine what the shards of a vocabulary-parallel head found.

    The best K of all shards in the order (key descending, id ascending), and the log-sum-exps added
    up in rank order. Ids and keys are those of one head over all ids; the log-sum-exp is within
    rounding of its, with bits that depend on the shards alone.

    Args:
        keys: ``[S, Tv, K]`` float32, K <= 64, in any order: the values of :func:`lm_head_topk`, or
            the scores of draws. NaN: absent.
        ids: ``[S, Tv, K]`` int, ids of the whole vocabulary; -1: absent. One with key -inf counts
            only if its row has no other: then the lowest stands first.
        lse: ``[S, Tv]`` float32; NaN counts as -inf.
        values: ``[S, Tv, K]`` float32, goes with the ids.
        status: ``[Tv]`` int32, :class:`Status` bits are OR-ed in. OUT_OF_RANGE: an id below -1 or
            from 2^32 - 1 on, which is left out.
        out: tensors to write into, of any strides.

    Returns:
        A :class:`MergedShards`; ``out`` if given.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape or device is not as above.

    Reference: :func:`dflash_ops.reference.merge_shards`.
    """
    checks = Checks("merge_shards", keys)
    fp32 = (torch.float32,)
    checks.tensor("keys", keys, fp32, "[S, Tv, K]", -1, -1, -1)
    shards, rows, count = keys.shape
    checks.at_most("K", count, MAX_TOPK)
    checks.index("ids", ids, "[S, Tv, K]", shards, rows, count)
    checks.tensor("lse", lse, fp32, "[S, Tv]", shards, rows)
    checks.tensor("values", values, fp32, "[S, Tv, K]", shards, rows, count)
    checks.tensor("status", status, (torch.int32,), "[Tv]", rows)
    if out is None:
        return MergedShards(
            *torch.ops.dflash.merge_shards(keys, ids, lse, values=values, status=status)
        )
    checks.tensor("out_keys", out.keys, fp32, "[Tv, K]", rows, count)
    checks.index("out_ids", out.ids, "[Tv, K]", rows, count)
    if values is None:
        checks.tensor("out_values", out.values, fp32, "[Tv, 0]", rows, 0)
    else:
        checks.tensor("out_values", out.values, fp32, "[Tv, K]", rows, count)
    checks.tensor("out_lse", out.lse, fp32, "[Tv]", rows)
    named = {f"out_{name}": x for name, x in out._asdict().items()}
    torch.ops.dflash.merge_shards.out(keys, ids, lse, values=values, status=status, **named)
    return out


def merge_records(records: Sequence[HeadRecord]) -> HeadRecord:
    """One :class:`HeadRecord` of those that :func:`lm_head_verify` made of each shard, in rank
    order: ready for :func:`verify_chain`. A row with a filter is ``covered`` if its best 64 prove
    what the filter keeps, which verify_chain finds out: here the flag says that there are any."""
    shards = HeadRecord(*(torch.stack(x) for x in zip(*records, strict=True)))
    top = merge_shards(shards.top_values, shards.top_ids, shards.lse)
    rest = merge_shards(
        shards.rest_keys[..., None],
        shards.rest_ids[..., None],
        shards.tempered_lse,
        values=shards.rest_values[..., None],
    )
    return HeadRecord(
        values=shards.values.amax(dim=0),
        lse=top.lse,
        tempered_lse=rest.lse,
        rest_ids=rest.ids[:, 0],
        rest_values=rest.values[:, 0],
        rest_keys=rest.keys[:, 0],
        top_values=top.keys,
        top_ids=top.ids,
        covered=top.ids[:, 0] >= 0,
    )


@torch.library.register_fake("dflash::merge_shards")
def _(keys, ids, lse, *, values=None, status=None):
    _, rows, count = keys.shape
    return (
        keys.new_empty(rows, count),
        keys.new_empty(rows, count, dtype=torch.int64),
        keys.new_empty(rows, count if values is not None else 0),
        keys.new_empty(rows),
    )


@torch.library.register_fake("dflash::merge_shards.out")
def _(*args, **kwargs):
    return None
