"""Paged keys and values: rows into pages, and between them."""

import torch
from torch import Tensor

from ._check import FLOATS, Checks

CACHE_DTYPES = (*FLOATS, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)


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
    out: Tensor | None = None,
) -> Tensor:
    """Norm and rotate the heads of q and k, and write k and v into the pages of a KV cache.

    Of each pair (x, y) of a head, at angle t = position * frequency:
    ``x' = x cos t - y sin t``, ``y' = y cos t + x sin t``. Pairs are ``(i, i + rotary_dim / 2)``
    (neox) or ``(2i, 2i + 1)``; elements from ``rotary_dim`` on are not rotated. Before that, with
    ``q_norm`` or ``k_norm``, each head is RMS-normed and rounded to its dtype: the bits of
    ``rmsnorm``. All else is fp32 with one rounding at the end.

    Args:
        q: ``[T, Hq, Dk]`` bf16, fp16 or fp32. Last dimension contiguous, as for k, v, caches.
        k: ``[T, Hkv, Dk]``, q's dtype.
        v: ``[T, Hkv, Dv]``, q's dtype.
        k_cache: ``[num_pages, page_size, Hkv, Dk]`` bf16, fp16, fp32, float8_e4m3fn, float8_e5m2
            or int8. Written at the rows' slots only.
        v_cache: ``[num_pages, page_size, Hkv, Dv]``, dtypes as k_cache.
        positions: ``[T]`` int, row of ``cos_sin``. -1: a padded row; its out is 0 and it is not
            stored.
        slots: ``[T]`` int, ``page * page_size + offset``; -1: k and v are not stored. Of two rows
            with one slot the higher stays.
        cos_sin: ``[max_positions, rotary_dim]`` fp32: cosines in the first half, sines in the
            second. Default: no rotation.
        neox: which elements make a pair.
        q_norm: ``[Dk]`` float, weight of the norm of q's heads. Default: no norm.
        k_norm: ``[Dk]`` float, likewise for k.
        eps: of both norms.
        k_scale: fp32, for a quantised cache: ``value = scale * stored``. ``[]`` or ``[Hkv]``: read.
            ``[num_pages, page_size, Hkv]``: written beside each row as amax / largest of the dtype,
            over the finite elements, at least 2^-126. Default: 1. Values beyond the dtype's range
            are clamped to it.
        v_scale: likewise for v_cache.
        status: ``[T]`` int32, :class:`Status` bits are OR-ed in. OUT_OF_RANGE: a position or slot
            that does not exist; the row is treated as padded.
        out: ``[T, Hq, Dk]``, q's dtype, any strides.

    int is int32 or int64, any strides.

    Returns:
        ``[T, Hq, Dk]`` the rotated q; ``out`` if given. A row's bits, here and in the cache, depend
        on that row alone.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape, stride, device or range is not as above.

    Source: Su et al. 2021 (arXiv:2104.09864).
    Reference: :func:`dflash_ops.reference.rope_append_kv`, within fp32 rounding.
    """
    checks = Checks("rope_append_kv", q)
    checks.tensor("q", q, FLOATS, "[T, Hq, Dk]", -1, -1, -1)
    num_rows, _, head_dim = q.shape
    checks.tensor("k", k, (q.dtype,), "[T, Hkv, Dk]", num_rows, -1, head_dim)
    heads = k.shape[1]
    checks.tensor("v", v, (q.dtype,), "[T, Hkv, Dv]", num_rows, heads, -1)
    dims = "[num_pages, page_size, Hkv, Dk]"
    checks.tensor("k_cache", k_cache, CACHE_DTYPES, dims, -1, -1, heads, head_dim)
    dims, extents = "[num_pages, page_size, Hkv, Dv]", k_cache.shape[:2]
    checks.tensor("v_cache", v_cache, CACHE_DTYPES, dims, *extents, heads, v.shape[2])
    for name, tensor in (("q", q), ("k", k), ("v", v), ("k_cache", k_cache), ("v_cache", v_cache)):
        checks.last_contiguous(name, tensor)
    checks.index("positions", positions, "[T]", num_rows)
    checks.index("slots", slots, "[T]", num_rows)
    checks.tensor("cos_sin", cos_sin, (torch.float32,), "[max_positions, rotary_dim]", -1, -1)
    checks.last_contiguous("cos_sin", cos_sin)
    if cos_sin is not None and (cos_sin.shape[1] % 2 != 0 or cos_sin.shape[1] > head_dim):
        raise ValueError(
            f"rope_append_kv: rotary_dim must be even and at most Dk = {head_dim}, "
            f"got {cos_sin.shape[1]}"
        )
    for name, weight in (("q_norm", q_norm), ("k_norm", k_norm)):
        checks.tensor(name, weight, FLOATS, "[Dk]", head_dim)
    checks.last_contiguous("q_norm", q_norm)
    checks.last_contiguous("k_norm", k_norm)
    checks.at_least("eps", eps, 0)
    _check_scale(checks, "k", k_scale, k_cache)
    _check_scale(checks, "v", v_scale, v_cache)
    checks.tensor("status", status, (torch.int32,), "[T]", num_rows)

    args = (q, k, v, k_cache, v_cache)
    options = {
        "positions": positions,
        "slots": slots,
        "cos_sin": cos_sin,
        "neox": neox,
        "q_norm": q_norm,
        "k_norm": k_norm,
        "eps": eps,
        "k_scale": k_scale,
        "v_scale": v_scale,
        "status": status,
    }
    if out is None:
        return torch.ops.dflash.rope_append_kv(*args, **options)
    checks.tensor("out", out, (q.dtype,), "[T, Hq, Dk]", *q.shape)
    torch.ops.dflash.rope_append_kv.out(*args, **options, out=out)
    return out


def _check_scale(checks: Checks, name: str, scale: Tensor | None, cache: Tensor) -> None:
    """`name`_scale belongs to `name`_cache, `name` being k or v."""
    if scale is None:
        return
    if cache.dtype in FLOATS:
        dtype = str(cache.dtype).removeprefix("torch.")
        raise ValueError(
            f"{checks.op}: {name}_scale must be absent with a {dtype} {name}_cache, got a tensor"
        )
    shape = cache.shape[:3]
    if scale.dim() == 0:
        checks.tensor(f"{name}_scale", scale, (torch.float32,), "[]")
    elif scale.dim() == 1:
        checks.tensor(f"{name}_scale", scale, (torch.float32,), "[Hkv]", shape[2])
    else:
        dims = "[num_pages, page_size, Hkv]"
        checks.tensor(f"{name}_scale", scale, (torch.float32,), dims, *shape)


@torch.library.register_fake("dflash::rope_append_kv")
def _(q, *args, **kwargs):
    return q.new_empty(q.shape)


@torch.library.register_fake("dflash::rope_append_kv.out")
def _(*args, **kwargs):
    return None
