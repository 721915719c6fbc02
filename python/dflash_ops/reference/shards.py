import torch
from torch import Tensor

from dflash_ops import ShardSum

from .gemm import rmsnorm


def sum_shards(
    shards: Tensor,
    *,
    residual: Tensor | None = None,
    norm_weight: Tensor | None = None,
    eps: float = 1e-6,
    dtype: torch.dtype = torch.float64,
) -> ShardSum:
    """In `dtype`, without the rounding before the norm."""
    total = shards.to(dtype).sum(0)
    if residual is not None:
        total = total + residual.to(dtype)
    if norm_weight is None:
        return ShardSum(total, total[:0])
    return ShardSum(total, rmsnorm(total, norm_weight, eps=eps, dtype=dtype))
