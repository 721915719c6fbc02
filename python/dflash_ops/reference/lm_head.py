"""The LM head in float64: all logits, then what is asked of them."""

from typing import Any

import torch
from torch import Tensor

from dflash_ops.lm_head import Gathered, TopK
from dflash_ops.reference.gemm import unpack
from dflash_ops.reference.sample import request_states, sample_logits, shape_logits
from dflash_ops.sample import Sampled

INF = float("inf")


def logits64(h: Tensor, weight: Tensor, bias: Tensor | None, options: dict[str, Any]) -> Tensor:
    """``h @ weight.T + bias`` of every input row; pops what only the head takes."""
    norm_weight, eps = options.pop("norm_weight", None), options.pop("eps", 1e-6)
    round_logits = options.pop("round_logits", False)
    if weight.dim() != 2:
        size = options.get("vocab_size")
        columns = weight.shape[0] * 32
        if size is not None:
            columns = min(max(size - options.get("vocab_start", 0), 0), columns)
        weight = unpack(weight, (columns, h.shape[1]))
    x = h.double()
    if norm_weight is not None:
        x = x / (x.square().mean(dim=1, keepdim=True) + eps).sqrt() * norm_weight.double()
        x = x.to(h.dtype).double()
    z = x @ weight.double().T
    if bias is not None:
        z = z + bias.double()
    return z.to(h.dtype).double() if round_logits else z


def lm_head_topk(
    h: Tensor, weight: Tensor, bias: Tensor | None = None, *, k: int, **options: Any
) -> TopK:
    z = shape_logits(logits64(h, weight, bias, options), **options)
    rows = len(z)
    order = z.sort(dim=1, descending=True, stable=True)
    values = torch.full((rows, k), -INF, dtype=torch.float64)
    ids = torch.full((rows, k), -1)
    count = min(k, z.shape[1])
    values[:, :count], ids[:, :count] = order.values[:, :count], order.indices[:, :count]
    ids[values == -INF] = -1
    return TopK(values, ids, z.logsumexp(dim=1))


def lm_head_sample(
    h: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    positions: Tensor,
    cu_verify: Tensor,
    **options: Any,
) -> Sampled:
    z = logits64(h, weight, bias, options)
    return sample_logits(z, positions=positions, cu_verify=cu_verify, **options)


def lm_head_gather(
    h: Tensor,
    weight: Tensor,
    ids: Tensor,
    bias: Tensor | None = None,
    *,
    cu_verify: Tensor | None = None,
    req_rows: Tensor | None = None,
    temperature: Tensor | None = None,
    **options: Any,
) -> Gathered:
    z = shape_logits(logits64(h, weight, bias, options), **options)
    rows = len(z)
    scale = torch.ones(rows, dtype=torch.float64)
    if cu_verify is not None and temperature is not None:
        states = request_states(cu_verify, req_rows, rows)
        scale = torch.stack([temperature[max(state, 0)].double() for state in states])
    there = (ids >= 0) & (ids < z.shape[1])
    picked = z.gather(1, ids.clamp(0, z.shape[1] - 1).long())
    there &= picked > -INF
    by_id = torch.arange(z.shape[1])
    better = (z[:, None] > picked[..., None]) | (
        (z[:, None] == picked[..., None]) & (by_id < ids[..., None])
    )
    ranks = better.sum(dim=2).where(there, -1)
    lse = z.logsumexp(dim=1)
    greedy = (scale < 1e-5)[:, None]
    divisor = scale.where(scale >= 1e-5, 1.0)[:, None]
    tempered = picked / divisor - (z / divisor).logsumexp(dim=1, keepdim=True)
    one_hot = torch.where(ranks == 0, 0.0, -INF).double()
    return Gathered(
        (picked - lse[:, None]).where(there, -INF),
        torch.where(greedy, one_hot, tempered).where(there, -INF),
        ranks,
        lse,
    )
