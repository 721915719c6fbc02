import torch
from torch import Tensor

from dflash_ops import MergedShards, ShardSum

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


def merge_shards(
    keys: Tensor, ids: Tensor, lse: Tensor, *, values: Tensor | None = None
) -> MergedShards:
    """Well-formed rows only."""
    _, rows, count = keys.shape
    width = 0 if values is None else count
    out = MergedShards(
        torch.full((rows, count), -torch.inf, dtype=torch.float64),
        torch.full((rows, count), -1),
        torch.full((rows, width), -torch.inf, dtype=torch.float64),
        lse.double().logsumexp(dim=0),
    )
    for row in range(rows):
        found = [
            (-float(keys[at]), int(ids[at]), at)
            for at in ((s, row, k) for s in range(len(keys)) for k in range(count))
            if ids[at] >= 0
        ]
        finite = [x for x in found if x[0] < torch.inf]
        for k, (key, token, at) in enumerate(sorted(finite or found)[: count if finite else 1]):
            out.keys[row, k], out.ids[row, k] = -key, token
            if values is not None and finite:
                out.values[row, k] = values[at]
    return out
