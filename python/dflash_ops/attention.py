"""Attention: packed rows over paged keys and values."""

from typing import NamedTuple

import torch
from torch import Tensor

from ._check import FLOATS, Checks
from .kv import CACHE_DTYPES, _check_scale

MAX_HEAD_DIM = 256


class Attended(NamedTuple):
    """What attention over some keys says of T rows; two of them merge."""

    out: Tensor
    """``[T, Hq, Dv]`` softmax-weighted values; 0 without a visible key."""
    lse: Tensor
    """``[T, Hq]`` float32, natural log of the sum of exp(score); -inf without a visible key."""


def tree_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    block_table: Tensor,
    cu_rows: Tensor,
    ctx_lens: Tensor | None = None,
    kv_lens: Tensor | None = None,
    req_rows: Tensor | None = None,
    table_start: Tensor | None = None,
    kv_start: Tensor | None = None,
    tree_nodes: Tensor | None = None,
    mask_bits: Tensor | None = None,
    depth: Tensor | None = None,
    causal: bool = True,
    window_left: int = -1,
    window_right: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    null_page: int = -1,
    status: Tensor | None = None,
    out: Attended | None = None,
) -> Attended:
    """Attend from packed rows to paged keys: prefill chunks, plain rows, chains and trees at once.

    ``out[i, h] = sum_p w_p v_p / sum_p w_p`` with ``w_p = exp(cap(scale * q[i, h] . k_p))`` over
    the visible positions p, ``cap(x) = softcap * tanh(x / softcap)`` if softcap > 0. Row r of a
    request stands at position ``ctx_len + depth[r]`` (chains: ``ctx_len + r``); its own key is in
    sequence slot ``ctx_len + r``, so write K and V to the pages first. The bits of a row are a
    function of its query and its visible keys by position alone: a tree node has those of the same
    token in a chain, in a prefill chunk, or decoded one by one.

    Args:
        q: ``[T, Hq, Dk]`` bf16, fp16 or fp32; Hq a multiple of Hkv, Dk and Dv multiples of 8, at
            most 256. Last dimension contiguous.
        k_cache: ``[num_pages, page_size, Hkv, Dk]`` bf16, fp16, fp32, fp8 (e4m3fn, e5m2) or int8,
            any page size, strides with a contiguous last dimension.
        v_cache: ``[num_pages, page_size, Hkv, Dv]`` likewise.
        block_table: ``[R, max_pages]`` int, page of each table entry.
        cu_rows: ``[B + 1]`` int, packed rows of request b: ``cu_rows[b] .. cu_rows[b + 1]``.
        ctx_lens: ``[R]`` int, keys in the cache before this step's rows.
        kv_lens: ``[R]`` int, keys including this step's rows. Exactly one of the two is given.
        req_rows: ``[B]`` int, state row (of the ``[R]`` tensors) of each request; -1: padded, its
            rows come out as 0 and -inf. Default: the same numbers.
        table_start: ``[R]`` int, sequence index of the first table entry. Default: 0.
        kv_start: ``[R]`` int, first valid key. Default: 0.
        tree_nodes: ``[B]`` int, > 0: the request's rows are nodes. Default: all, with mask_bits.
        mask_bits: ``[T, W]`` int32, bit j of the row: it may see row j of its request.
        depth: ``[T]`` int, 0 .. 65535. Needed with mask_bits. A request has at most 256 nodes.
        causal: whether a row of a chain sees no later row. Trees follow their mask.
        window_left: keys at most this far before the row are visible; -1: any.
        window_right: keys at most this far after the row are visible; -1: any.
        scale: factor of the scores. Default: ``Dk ** -0.5``.
        softcap: bound of the scores; 0: none.
        sinks: ``[Hq]`` float, logit of a key without a value; not counted in lse.
        k_scale: float32 ``[]``, ``[Hkv]`` or ``[num_pages, page_size, Hkv]``, factor of stored
            fp8 or int8 keys. Default: 1.
        v_scale: the same for values.
        null_page: a table entry of this value holds nothing.
        status: ``[B]`` int32, :class:`Status` bits are OR-ed in. OUT_OF_RANGE: rows, lengths or a
            state row are impossible and the request was left out, or a key that should be visible
            has no page and was left out. BAD_TREE: a depth below 0 or too large, or more than 256
            nodes: dropped from there on; or two visible rows at one position: the later counts.
        out: tensors to write into, any strides.

    int is int32 or int64, of any stride.

    Returns:
        An :class:`Attended`; ``out`` if given.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape, device, stride or bound is not as above.

    Reference: :func:`dflash_ops.reference.tree_attention`; the error is that of fp32 sums.
    """
    checks = Checks("tree_attention", q)
    checks.tensor("q", q, FLOATS, "[T, Hq, Dk]", -1, -1, -1)
    num_rows, num_heads, k_dim = q.shape
    _check_head_dim(checks, "Dk", k_dim)
    dims = "[num_pages, page_size, Hkv, Dk]"
    checks.tensor("k_cache", k_cache, CACHE_DTYPES, dims, -1, -1, -1, k_dim)
    num_kv_heads = k_cache.shape[2]
    checks.at_least("page_size", k_cache.shape[1], 1)
    checks.at_least("Hkv", num_kv_heads, 1)
    if num_heads % num_kv_heads != 0:
        raise ValueError(
            f"tree_attention: Hq must be a multiple of Hkv = {num_kv_heads}, got {num_heads}"
        )
    dims = "[num_pages, page_size, Hkv, Dv]"
    checks.tensor("v_cache", v_cache, CACHE_DTYPES, dims, *k_cache.shape[:3], -1)
    v_dim = v_cache.shape[3]
    _check_head_dim(checks, "Dv", v_dim)
    for name, tensor in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache)):
        checks.last_contiguous(name, tensor)

    checks.index("cu_rows", cu_rows, "[B + 1]", -1)
    checks.at_least("len(cu_rows)", len(cu_rows), 1)
    batch = len(cu_rows) - 1
    checks.index("block_table", block_table, "[R, max_pages]", -1, -1)
    num_state_rows = block_table.shape[0]
    checks.index("table_start", table_start, "[R]", num_state_rows)
    checks.index("req_rows", req_rows, "[B]", batch)
    if (ctx_lens is None) == (kv_lens is None):
        got = "neither" if ctx_lens is None else "both"
        raise ValueError(f"tree_attention: one of ctx_lens and kv_lens must be given, got {got}")
    checks.index("ctx_lens", ctx_lens, "[R]", num_state_rows)
    checks.index("kv_lens", kv_lens, "[R]", num_state_rows)
    checks.index("kv_start", kv_start, "[R]", num_state_rows)
    if (mask_bits is None) != (depth is None):
        got = "depth" if mask_bits is None else "mask_bits"
        raise ValueError(
            f"tree_attention: mask_bits and depth must be given together, got {got} alone"
        )
    checks.tensor("mask_bits", mask_bits, (torch.int32,), "[T, W]", num_rows, -1)
    checks.index("depth", depth, "[T]", num_rows)
    checks.index("tree_nodes", tree_nodes, "[B]", batch)
    checks.at_least("window_left", window_left, -1)
    checks.at_least("window_right", window_right, -1)
    checks.at_least("softcap", softcap, 0)
    checks.tensor("sinks", sinks, FLOATS, "[Hq]", num_heads)
    _check_scale(checks, "k", k_scale, k_cache)
    _check_scale(checks, "v", v_scale, v_cache)
    checks.tensor("status", status, (torch.int32,), "[B]", batch)

    options = {
        "block_table": block_table,
        "cu_rows": cu_rows,
        "ctx_lens": ctx_lens,
        "kv_lens": kv_lens,
        "req_rows": req_rows,
        "table_start": table_start,
        "kv_start": kv_start,
        "tree_nodes": tree_nodes,
        "mask_bits": mask_bits,
        "depth": depth,
        "causal": causal,
        "window_left": window_left,
        "window_right": window_right,
        "scale": scale,
        "softcap": softcap,
        "sinks": sinks,
        "k_scale": k_scale,
        "v_scale": v_scale,
        "null_page": null_page,
        "status": status,
    }
    if out is None:
        return Attended(*torch.ops.dflash.tree_attention(q, k_cache, v_cache, **options))
    checks.tensor("out", out.out, (q.dtype,), "[T, Hq, Dv]", num_rows, num_heads, v_dim)
    checks.tensor("lse", out.lse, (torch.float32,), "[T, Hq]", num_rows, num_heads)
    torch.ops.dflash.tree_attention.out(q, k_cache, v_cache, **options, **out._asdict())
    return out


def _check_head_dim(checks: Checks, name: str, dim: int) -> None:
    if not 8 <= dim <= MAX_HEAD_DIM or dim % 8 != 0:
        raise ValueError(
            f"{checks.op}: {name} must be a multiple of 8 from 8 to {MAX_HEAD_DIM}, got {dim}"
        )


@torch.library.register_fake("dflash::tree_attention")
def _(q, k_cache, v_cache, **kwargs):
    shape = q.shape[:2]
    return q.new_empty(*shape, v_cache.shape[3]), q.new_empty(shape, dtype=torch.float32)


@torch.library.register_fake("dflash::tree_attention.out")
def _(*args, **kwargs):
    return None


def merge_states(
    out_a: Tensor,
    lse_a: Tensor,
    out_b: Tensor,
    lse_b: Tensor,
    *,
    sinks: Tensor | None = None,
    out: Attended | None = None,
) -> Attended:
    """Merge attention over some keys with attention over others: attention over all of them.

    ``lse = log(exp(lse_a) + exp(lse_b))``, ``out = exp(lse_a - lse) out_a + exp(lse_b - lse)
    out_b``. A side whose lse is -inf has no keys: its out is ignored and the other's bits are the
    result; if both have none, out is 0 and lse -inf.

    Args:
        out_a: ``[T, Hq, Dv]`` bf16, fp16 or fp32, of attention without a sink.
        lse_a: ``[T, Hq]`` float32, natural log.
        out_b: as out_a, of its dtype.
        lse_b: as lse_a.
        sinks: ``[Hq]`` float, logit of a key without a value: out is scaled by
            ``exp(lse) / (exp(lse) + exp(sink))``; lse does not count it.
        out: tensors to write into; they may be the inputs of one side.

    Every tensor may have any strides.

    Returns:
        An :class:`Attended`; ``out`` if given.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape or device is not as above.

    Reference: :func:`dflash_ops.reference.merge_states`; a few roundings in fp32.
    """
    checks = Checks("merge_states", out_a)
    checks.tensor("out_a", out_a, FLOATS, "[T, Hq, Dv]", -1, -1, -1)
    shape, pairs = out_a.shape, out_a.shape[:2]
    checks.tensor("lse_a", lse_a, (torch.float32,), "[T, Hq]", *pairs)
    checks.tensor("out_b", out_b, (out_a.dtype,), "[T, Hq, Dv]", *shape)
    checks.tensor("lse_b", lse_b, (torch.float32,), "[T, Hq]", *pairs)
    checks.tensor("sinks", sinks, FLOATS, "[Hq]", shape[1])
    args = (out_a, lse_a, out_b, lse_b)
    if out is None:
        return Attended(*torch.ops.dflash.merge_states(*args, sinks=sinks))
    checks.tensor("out", out.out, (out_a.dtype,), "[T, Hq, Dv]", *shape)
    checks.tensor("lse", out.lse, (torch.float32,), "[T, Hq]", *pairs)
    torch.ops.dflash.merge_states.out(*args, sinks=sinks, **out._asdict())
    return out


@torch.library.register_fake("dflash::merge_states")
def _(out_a, lse_a, out_b, lse_b, *, sinks=None):
    return out_a.new_empty(out_a.shape), lse_a.new_empty(lse_a.shape)


@torch.library.register_fake("dflash::merge_states.out")
def _(*args, **kwargs):
    return None
