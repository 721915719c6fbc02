"""Paged keys and values: rows into pages, and between them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ._check import FLOATS, Checks
from .gemm import _check_weight

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
    cos_sin: Tensor | None = None,
    neox: bool = True,
    eps: float = 1e-6,
    k_scales: Sequence[Tensor] | None = None,
    v_scales: Sequence[Tensor] | None = None,
    status: Tensor | None = None,
) -> None:
    """Write the target's features into the caches of every layer of a DFlash drafter.

    ``context = rmsnorm(features @ fc.T)``; for each layer ``k, v = context @ kv_weights[l].T``,
    then the norm, rotation and scatter of :func:`rope_append_kv`. The bits are those of
    :func:`verify_gemm`, :func:`rmsnorm` and :func:`rope_append_kv` one after the other. Rows that
    are not stored are not computed.

    Args:
        features: ``[T, F * H]`` bf16, fp16 or fp32, hidden states of F target layers side by side.
            Last dimension contiguous.
        fc: ``[H, F * H]``, features' dtype, plain or packed.
        hidden_norm: ``[H]`` float.
        kv_weights: one ``[Hkv * (Dk + Dv), H]`` per layer, features' dtype, plain or packed: the
            rows of the K projection, then those of the V projection. One product reads those that
            are slices of one tensor, in order.
        k_caches: one ``[num_pages, page_size, Hkv, Dk]`` per layer, as for rope_append_kv. Written.
        v_caches: one ``[num_pages, page_size, Hkv, Dv]`` per layer. Written.
        positions: ``[T]`` int, as for rope_append_kv; -1: a padded row.
        slots: ``[G, T]`` int, slot of each row in each layer group; -1: not stored there.
        layer_groups: row of slots for each layer. Default: all 0.
        k_norms: one ``[Dk]`` float per layer. Default: no norm.
        cos_sin: ``[max_positions, rotary_dim]`` fp32. Default: no rotation.
        neox: which elements make a pair.
        eps: of all norms.
        k_scales: one per layer, for quantised caches, as for rope_append_kv.
        v_scales: likewise.
        status: ``[T]`` int32, :class:`Status` bits are OR-ed in. OUT_OF_RANGE: a position or slot
            that does not exist; the row is not stored there.

    int is int32 or int64, any strides.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape, length, stride, device or range is not as above.

    Source: DFlash's KV injection.
    Reference: :func:`dflash_ops.reference.context_kv`, within fp32 rounding.
    """
    checks = Checks("context_kv", features)
    checks.tensor("features", features, FLOATS, "[T, F * H]", -1, -1)
    checks.last_contiguous("features", features)
    rows, depth = features.shape
    checks.tensor("hidden_norm", hidden_norm, FLOATS, "[H]", -1)
    checks.last_contiguous("hidden_norm", hidden_norm)
    hidden = len(hidden_norm)
    _check_weight(checks, fc, features.dtype, depth, hidden, False, "fc")
    checks.index("positions", positions, "[T]", rows)
    checks.index("slots", slots, "[G, T]", -1, rows)
    for name, values in (
        ("k_caches", k_caches),
        ("v_caches", v_caches),
        ("layer_groups", layer_groups),
        ("k_norms", k_norms),
        ("k_scales", k_scales),
        ("v_scales", v_scales),
    ):
        if values is not None and len(values) != len(kv_weights):
            wanted = len(kv_weights)
            raise ValueError(f"context_kv: len({name}) must be {wanted}, got {len(values)}")
    checks.tensor("cos_sin", cos_sin, (torch.float32,), "[max_positions, rotary_dim]", -1, -1)
    checks.last_contiguous("cos_sin", cos_sin)
    rotary_dim = 0 if cos_sin is None else cos_sin.shape[1]
    checks.at_least("eps", eps, 0)
    checks.tensor("status", status, (torch.int32,), "[T]", rows)
    for i, (weight, k_cache, v_cache) in enumerate(
        zip(kv_weights, k_caches, v_caches, strict=True)
    ):
        group = 0 if layer_groups is None else layer_groups[i]
        checks.at_least(f"layer_groups[{i}]", group, 0)
        if group >= len(slots):
            raise ValueError(
                f"context_kv: layer_groups[{i}] must be below len(slots) = {len(slots)}, "
                f"got {group}"
            )
        dims = "[num_pages, page_size, Hkv, Dk]"
        checks.tensor(f"k_caches[{i}]", k_cache, CACHE_DTYPES, dims, -1, -1, -1, -1)
        dims = "[num_pages, page_size, Hkv, Dv]"
        checks.tensor(f"v_caches[{i}]", v_cache, CACHE_DTYPES, dims, *k_cache.shape[:3], -1)
        checks.last_contiguous(f"k_caches[{i}]", k_cache)
        checks.last_contiguous(f"v_caches[{i}]", v_cache)
        k_dim, v_dim = k_cache.shape[3], v_cache.shape[3]
        if rotary_dim % 2 != 0 or rotary_dim > k_dim:
            raise ValueError(
                f"context_kv: rotary_dim must be even and at most Dk = {k_dim}, got {rotary_dim}"
            )
        width = k_cache.shape[2] * (k_dim + v_dim)
        _check_weight(checks, weight, features.dtype, hidden, width, False, f"kv_weights[{i}]")
        if k_norms is not None:
            checks.tensor(f"k_norms[{i}]", k_norms[i], FLOATS, "[Dk]", k_dim)
            checks.last_contiguous(f"k_norms[{i}]", k_norms[i])
        _check_scale(checks, "k", None if k_scales is None else k_scales[i], k_cache)
        _check_scale(checks, "v", None if v_scales is None else v_scales[i], v_cache)

    torch.ops.dflash.context_kv(
        features,
        fc,
        hidden_norm,
        kv_weights,
        k_caches,
        v_caches,
        positions=positions,
        slots=slots,
        layer_groups=layer_groups,
        k_norms=k_norms,
        cos_sin=cos_sin,
        neox=neox,
        eps=eps,
        k_scales=k_scales,
        v_scales=v_scales,
        status=status,
    )


@torch.library.register_fake("dflash::context_kv")
def _(*args, **kwargs):
    return None


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
    """Move the cached rows of every accepted path to contiguous slots, in place, in every layer.

    Entry j of request b's path stands at sequence index
    ``ctx_len + accepted_rows[b, j] - cu_rows[b]`` and goes to that of entry 0, plus j. Rows move as
    bytes, with their scales. A chain's rows are where they belong: nothing moves.

    Args:
        k_caches: one ``[num_pages, page_size, Hkv, Dk]`` per layer, any dtype, last dimension
            contiguous. Written.
        v_caches: likewise, or none at all (caches that hold both in one). Written.
        block_tables: one ``[R, max_pages]`` int per layer group: page of each run of ``page_size``
            sequence indices. The pages of the path belong to this request alone.
        layer_groups: group of each layer; layers of a group have equal pages. Default: all 0.
        accepted_rows: ``[B, P]`` int, packed rows of the anchor and the accepted drafts, rising,
            then -1.
        cu_rows: ``[B + 1]`` int, rows of request b: ``cu_rows[b] .. cu_rows[b + 1]``.
        num_kept: ``[B]`` int, entries that count. Default: all that are not -1.
        ctx_lens: ``[R]`` int, keys before this step's rows: the lengths as they were when the rows
            were stored, not as ``commit`` left them. Either this or kv_lens.
        kv_lens: ``[R]`` int, keys including this step's rows.
        req_rows: ``[B]`` int, state row of request b; -1: padded. Default: the same numbers.
        table_starts: one ``[R]`` int per group, sequence index of the table row's first entry.
        k_scales: one ``[num_pages, page_size, Hkv]`` fp32 per layer. Written. Scales of a head or a
            cache do not move.
        v_scales: likewise.
        null_page: a table entry that holds nothing.
        status: ``[B]`` int32, :class:`Status` bits are OR-ed in. The request is left untouched if
            BAD_TREE: its path does not rise strictly; or OUT_OF_RANGE: a row, state row, page or
            count that does not exist in one of the groups.

    int is int32 or int64, any strides.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape, length, stride or device is not as above.

    Reference: :func:`dflash_ops.reference.compact_kv`. Exact: bytes are moved.
    """
    checks = Checks("compact_kv", accepted_rows)
    checks.index("accepted_rows", accepted_rows, "[B, P]", -1, -1)
    batch = len(accepted_rows)
    checks.index("cu_rows", cu_rows, "[B + 1]", batch + 1)
    checks.index("num_kept", num_kept, "[B]", batch)
    checks.at_least("len(block_tables)", len(block_tables), 1)
    layers, groups = len(k_caches), len(block_tables)
    for name, values, length in (
        ("v_caches", v_caches or None, layers),
        ("layer_groups", layer_groups, layers),
        ("table_starts", table_starts, groups),
        ("k_scales", k_scales, layers),
        ("v_scales", v_scales, layers),
    ):
        if values is not None and len(values) != length:
            raise ValueError(f"compact_kv: len({name}) must be {length}, got {len(values)}")
    state_rows = len(block_tables[0]) if block_tables[0].dim() > 0 else -1
    for g, table in enumerate(block_tables):
        checks.index(f"block_tables[{g}]", table, "[R, max_pages]", state_rows, -1)
        if table_starts is not None:
            checks.index(f"table_starts[{g}]", table_starts[g], "[R]", state_rows)
    if (ctx_lens is None) == (kv_lens is None):
        got = "neither" if ctx_lens is None else "both"
        raise ValueError(f"compact_kv: one of ctx_lens and kv_lens must be given, got {got}")
    checks.index("ctx_lens", ctx_lens, "[R]", state_rows)
    checks.index("kv_lens", kv_lens, "[R]", state_rows)
    checks.index("req_rows", req_rows, "[B]", batch)
    checks.tensor("status", status, (torch.int32,), "[B]", batch)
    pages: dict[int, tuple[int, int]] = {}
    for i, k_cache in enumerate(k_caches):
        group = 0 if layer_groups is None else layer_groups[i]
        checks.at_least(f"layer_groups[{i}]", group, 0)
        if group >= groups:
            raise ValueError(
                f"compact_kv: layer_groups[{i}] must be below len(block_tables) = {groups}, "
                f"got {group}"
            )
        wanted = pages.get(group, (-1, -1))
        dims = "[num_pages, page_size, Hkv, Dk]"
        checks.any_tensor(f"k_caches[{i}]", k_cache, dims, *wanted, -1, -1)
        checks.last_contiguous(f"k_caches[{i}]", k_cache)
        wanted = pages[group] = (k_cache.shape[0], k_cache.shape[1])
        if v_caches:
            dims = "[num_pages, page_size, Hkv, Dv]"
            checks.any_tensor(f"v_caches[{i}]", v_caches[i], dims, *wanted, -1, -1)
            checks.last_contiguous(f"v_caches[{i}]", v_caches[i])
        for name, scales in (("k_scales", k_scales), ("v_scales", v_scales)):
            if scales is not None:
                dims = "[num_pages, page_size, Hkv]"
                checks.tensor(f"{name}[{i}]", scales[i], (torch.float32,), dims, *wanted, -1)

    torch.ops.dflash.compact_kv(
        k_caches,
        v_caches,
        block_tables=block_tables,
        layer_groups=layer_groups,
        accepted_rows=accepted_rows,
        cu_rows=cu_rows,
        num_kept=num_kept,
        ctx_lens=ctx_lens,
        kv_lens=kv_lens,
        req_rows=req_rows,
        table_starts=table_starts,
        k_scales=k_scales,
        v_scales=v_scales,
        null_page=null_page,
        status=status,
    )


@torch.library.register_fake("dflash::compact_kv")
def _(*args, **kwargs):
    return None
