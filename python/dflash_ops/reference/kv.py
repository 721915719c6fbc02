import math

import torch
from torch import Tensor

from dflash_ops import Status


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
