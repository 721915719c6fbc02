import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dflash_ops import Status

from . import gemm


def rope_append_kv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    positions: Tensor,
    slots: Tensor,
    cos_sin: Tensor | None = None,
    neox: bool = True,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    status: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Computes in `dtype`, which the rotated q keeps; a norm is rounded to q's dtype."""
    num_positions = 2**62 if cos_sin is None else len(cos_sin)
    out = torch.zeros(q.shape, dtype=dtype)
    for row, (position, slot) in enumerate(zip(positions.tolist(), slots.tolist(), strict=True)):
        if not -1 <= position < num_positions or not -1 <= slot < math.prod(k_cache.shape[:2]):
            if status is not None:
                status[row] |= Status.OUT_OF_RANGE
            continue
        if position == -1:
            continue
        angles = None if cos_sin is None else cos_sin[position].to(dtype)
        out[row] = rotate(norm(q[row].to(dtype), q_norm, eps, q.dtype), angles, neox)
        if slot >= 0:
            page, offset = divmod(slot, k_cache.shape[1])
            key = rotate(norm(k[row].to(dtype), k_norm, eps, k.dtype), angles, neox)
            store(key, k_cache, k_scale, page, offset)
            store(v[row].to(dtype), v_cache, v_scale, page, offset)
    return out


def norm(x: Tensor, weight: Tensor | None, eps: float, rounded_to: torch.dtype) -> Tensor:
    if weight is None:
        return x
    normed = x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.to(x.dtype)
    return normed if x.dtype == torch.float64 else normed.to(rounded_to).to(x.dtype)


def rotate(x: Tensor, cos_sin: Tensor | None, neox: bool) -> Tensor:
    """A pair is a complex number, turned by multiplying with exp(i * angle)."""
    if cos_sin is None:
        return x
    turned, rest = x.split([len(cos_sin), x.shape[-1] - len(cos_sin)], dim=-1)
    pairs = turned.unflatten(-1, (2, -1)).mT if neox else turned.unflatten(-1, (-1, 2))
    product = torch.complex(*pairs.unbind(-1)) * torch.complex(*cos_sin.chunk(2))
    pairs = torch.stack([product.real, product.imag], dim=-1)
    return torch.cat([(pairs.mT if neox else pairs).flatten(-2), rest], dim=-1)


def store(x: Tensor, cache: Tensor, scale: Tensor | None, page: int, offset: int) -> None:
    """Writes the heads of one row, [Hkv, D], and their scales if there is one for each row."""
    stored = cache[page, offset]
    if cache.dtype.is_floating_point and cache.dtype.itemsize > 1:
        stored.copy_(x)
        return
    is_int = not cache.dtype.is_floating_point
    largest = 127.0 if is_int else torch.finfo(cache.dtype).max
    divisor = torch.ones(len(x)) if scale is None else scale
    if divisor.dim() == 3:
        divisor = divisor[page, offset]
        amax = x.where(x.isfinite(), 0).abs().amax(-1)
        divisor.copy_((amax / largest).clamp(min=torch.finfo(torch.float32).tiny))
    scaled = (x / divisor.to(x.dtype).expand(len(x))[:, None]).clamp(-largest, largest)
    stored.copy_(scaled.nan_to_num(nan=0.0).round() if is_int else scaled)


def context_kv(
    features: Tensor,
    fc: Tensor,
    hidden_norm: Tensor,
    kv_weights: Sequence[Tensor],
    k_caches: Sequence[Tensor],
    v_caches: Sequence[Tensor],
    *,
    positions: Tensor,
    slots: Tensor,
    layer_groups: Sequence[int] | None = None,
    k_norms: Sequence[Tensor] | None = None,
    k_scales: Sequence[Tensor] | None = None,
    v_scales: Sequence[Tensor] | None = None,
    eps: float = 1e-6,
    dtype: torch.dtype = torch.float64,
    **rope: Tensor | bool | None,
) -> None:
    """The three steps one after the other in `dtype`, with plain weights."""
    context = gemm.rmsnorm(features.to(dtype) @ fc.to(dtype).T, hidden_norm, eps=eps, dtype=dtype)
    for i, (k_cache, v_cache) in enumerate(zip(k_caches, v_caches, strict=True)):
        heads = k_cache.shape[2]
        kv = context @ kv_weights[i].to(dtype).T
        k, v = kv.split([heads * cache.shape[3] for cache in (k_cache, v_cache)], dim=1)
        rope_append_kv(
            context[:, None, : k_cache.shape[3]],
            k.unflatten(1, (heads, -1)),
            v.unflatten(1, (heads, -1)),
            k_cache,
            v_cache,
            positions=positions,
            slots=slots[0 if layer_groups is None else layer_groups[i]],
            k_norm=None if k_norms is None else k_norms[i],
            k_scale=None if k_scales is None else k_scales[i],
            v_scale=None if v_scales is None else v_scales[i],
            eps=eps,
            dtype=dtype,
            **rope,  # type: ignore[arg-type]
        )


def compact_kv(
    k_caches: Sequence[Tensor],
    v_caches: Sequence[Tensor],
    *,
    block_tables: Sequence[Tensor],
    layer_groups: Sequence[int] | None = None,
    accepted_rows: Tensor,
    cu_rows: Tensor,
    num_kept: Tensor | None = None,
    ctx_lens: Tensor | None = None,
    kv_lens: Tensor | None = None,
    req_rows: Tensor | None = None,
    table_starts: Sequence[Tensor] | None = None,
    k_scales: Sequence[Tensor] | None = None,
    v_scales: Sequence[Tensor] | None = None,
    null_page: int = -1,
    status: Tensor | None = None,
) -> None:
    """Gathers every path before it writes any of it."""
    batch, layers = len(accepted_rows), len(k_caches)
    status = torch.zeros(batch, dtype=torch.int32) if status is None else status
    group_of = [0] * layers if layer_groups is None else list(layer_groups)
    state_rows = list(range(batch)) if req_rows is None else req_rows.tolist()
    for b, r in enumerate(state_rows):
        if r == -1:
            continue
        if not 0 <= r < len(block_tables[0]):
            status[b] |= Status.OUT_OF_RANGE
            continue
        path = accepted_rows[b].tolist()
        count = [*path, -1].index(-1) if num_kept is None else int(num_kept[b])
        if not 0 <= count <= len(path):
            status[b] |= Status.OUT_OF_RANGE
            continue
        path = path[:count]
        first, last = cu_rows[b : b + 2].tolist()
        lens, new = (kv_lens, last - first) if ctx_lens is None else (ctx_lens, 0)
        assert lens is not None
        before = int(lens[r]) - new
        source = [before + row - first for row in path]
        target = [source[0] + j for j in range(count)]
        faults = [(j, Status.BAD_TREE) for j in range(count) if path[j] <= ([-1, *path])[j]] + [
            (j, Status.OUT_OF_RANGE) for j in range(count) if not 0 <= first <= path[j] < last
        ]

        slots = {}
        for g, table in enumerate(block_tables):
            layer = group_of.index(g) if g in group_of else None
            start = 0 if table_starts is None else int(table_starts[g][r])
            for j, indices in enumerate(zip(source, target, strict=True)):
                for index in set(indices) if indices[0] != indices[1] else ():
                    if layer is None:
                        continue
                    num_pages, page_size = k_caches[layer].shape[:2]
                    entry, offset = divmod(index - start, page_size)
                    page = int(table[r, entry]) if 0 <= entry < table.shape[1] else -1
                    if not 0 <= page < num_pages or page == null_page:
                        faults.append((j, Status.OUT_OF_RANGE))
                    slots[g, index] = (page, offset)
        if faults:
            status[b] |= min(faults)[1]
            continue

        moves = [pair for pair in zip(source, target, strict=True) if pair[0] != pair[1]]
        for i in range(layers):
            tensors = [caches[i] for caches in (k_caches, v_caches, k_scales, v_scales) if caches]
            for tensor in tensors:
                rows = [tensor[slots[group_of[i], s]].clone() for s, _ in moves]
                for (_, t), row in zip(moves, rows, strict=True):
                    tensor[slots[group_of[i], t]] = row
