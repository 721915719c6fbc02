"""The LM head in float64: all logits, then what is asked of them."""

from typing import Any

import torch
from torch import Tensor

from dflash_ops.lm_head import Gathered, HeadRecord, TopK
from dflash_ops.reference import noise
from dflash_ops.reference.gemm import unpack
from dflash_ops.reference.quantised import parse
from dflash_ops.reference.sample import (
    request_states,
    row_law,
    sample_logits,
    shape_logits,
    state_law,
)
from dflash_ops.sample import Sampled

INF = float("inf")


def logits64(h: Tensor, weight: Tensor, bias: Tensor | None, options: dict[str, Any]) -> Tensor:
    """``h @ weight.T + bias`` of every input row; pops what only the head takes."""
    norm_weight, eps = options.pop("norm_weight", None), options.pop("eps", 1e-6)
    round_logits = options.pop("round_logits", False)
    format, layout = options.pop("weight_format", None), options.pop("layout", "cpu")
    if format is not None or weight.dim() != 2:
        size = options.get("vocab_size")
        columns = weight.shape[0] * 32
        if size is not None:
            columns = min(max(size - options.get("vocab_start", 0), 0), columns)
        shape = columns, h.shape[1]
        weight = (
            unpack(weight, shape)
            if format is None
            else parse(weight, shape, False, format, layout).values()
        )
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


def lm_head_verify(
    h: Tensor,
    weight: Tensor,
    ids: Tensor,
    bias: Tensor | None = None,
    *,
    positions: Tensor,
    cu_verify: Tensor,
    **options: Any,
) -> HeadRecord:
    """Well-formed rows only."""
    z = shape_logits(logits64(h, weight, bias, options), **options)
    rows, vocab = z.shape
    float64 = torch.float64
    there = (ids >= 0) & (ids < vocab)
    out = HeadRecord(
        z.gather(1, ids.clamp(0, vocab - 1).long()).where(there, -INF),
        z.logsumexp(dim=1),
        z.logsumexp(dim=1),
        torch.full((rows,), -1),
        torch.full((rows,), -INF, dtype=float64),
        torch.full((rows,), -INF, dtype=float64),
        torch.full((rows, 64), -INF, dtype=float64),
        torch.full((rows, 64), -1),
        torch.zeros(rows, dtype=torch.bool),
    )
    for i, state in enumerate(request_states(cu_verify, options.get("req_rows"), rows)):
        law = state_law(options, state)
        greedy = law["temperature"] == 0
        row = row_law(z[i], **law | {"temperature": law["temperature"] or 1.0})
        finite = z[i][z[i] > -INF]
        out.tempered_lse[i] = (finite / (law["temperature"] or 1.0)).logsumexp(dim=0)
        top_k = law.get("top_k", 0)
        filtered = 0 < top_k < vocab or law.get("top_p", 1.0) < 1 or law.get("min_p", 0.0) > 0
        if greedy or filtered:
            top = row.order[: 1 if greedy else 64]
            out.top_ids[i, : len(top)], out.top_values[i, : len(top)] = top, z[i, top]
            out.covered[i] = greedy or row.num_kept <= 64
            if out.covered[i]:
                continue
        request = next(b for b in range(len(cu_verify) - 1) if i < int(cu_verify[b + 1]))
        first = int(cu_verify[request])
        g = noise.gumbel(
            int(options["seeds"][state]),
            torch.arange(vocab),
            int(positions[i]) + 1,
            noise.purpose(noise.RESIDUAL, 0, i - first),
            int(positions[first]),
        )
        score = z[i] / law["temperature"] + g
        score[row.order[row.num_kept :] if filtered else ids[i][there[i]].long()] = -INF
        if (score > -INF).any():
            best = out.rest_ids[i] = score.argmax()
            out.rest_values[i], out.rest_keys[i] = z[i, best], score[best]
    return out
