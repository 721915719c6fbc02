"""Tensor parallelism: what the ranks' parts add up to."""

from typing import NamedTuple

import torch
from torch import Tensor

from ._check import FLOATS, Checks


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
