"""DFlash 2's own parts: its block convolution and its candidate selector."""

from typing import NamedTuple

import torch
from torch import Tensor

from ._check import FLOATS, Checks, status_or_scratch


def block_conv(
    x: Tensor,
    delta: Tensor,
    base: Tensor,
    *,
    cu_rows: Tensor | None = None,
    block_size: int | None = None,
    residual: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    status: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Grouped dynamic depthwise convolution over the rows of each block.

    ``out[i, c] = sum_t (base[t, c] + delta[i, t, c // (H / G)]) * x[i - t, c] + residual[i, c]``,
    where rows before the block's first count as 0. fp32 throughout, one rounding at the end.

    Args:
        x: ``[T, H]`` bf16, fp16 or fp32. Last dimension contiguous, as for base and residual.
        delta: ``[T, taps, G]`` float, any strides: one side of the projection's output viewed as
            ``[T, 2, taps, G]``. G divides H.
        base: ``[taps, H]`` float, one side of ``base_kernel``.
        cu_rows: ``[B + 1]`` int, rows of block b: ``cu_rows[b] .. cu_rows[b + 1]``. Rows of no
            block come out as 0. Either this or block_size.
        block_size: rows of each block, the last perhaps fewer.
        residual: ``[T, H]`` float, added before the rounding. Default: none.
        out_dtype: default: x's. fp16: finite results beyond 65504 saturate.
        status: ``[B]`` int32, :class:`Status` bits are OR-ed in. OUT_OF_RANGE: cu_rows leaves the
            rows; the block was skipped.
        out: ``[T, H]``, out_dtype, any strides.

    int is int32 or int64, any strides.

    Returns:
        ``[T, H]``; ``out`` if given.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape, stride, device or bound is not as above.

    Source: DFlash 2's ``attention_conv`` and ``mlp_conv``.
    Reference: :func:`dflash_ops.reference.block_conv`, within fp32 rounding.
    """
    checks = Checks("block_conv", x)
    dtype = x.dtype if out_dtype is None else out_dtype
    if dtype not in FLOATS and out is None:
        name = str(dtype).removeprefix("torch.")
        raise TypeError(f"block_conv: out_dtype must be bfloat16 or float16 or float32, got {name}")
    checks.tensor("x", x, FLOATS, "[T, H]", -1, -1)
    rows, channels = x.shape
    checks.tensor("delta", delta, FLOATS, "[T, taps, G]", rows, -1, -1)
    taps, groups = delta.shape[1:]
    if channels % groups != 0 if groups else channels != 0:
        raise ValueError(f"block_conv: G must divide H = {channels}, got {groups}")
    checks.tensor("base", base, FLOATS, "[taps, H]", taps, channels)
    checks.tensor("residual", residual, FLOATS, "[T, H]", rows, channels)
    for name, tensor in (("x", x), ("base", base), ("residual", residual)):
        checks.last_contiguous(name, tensor)
    if (cu_rows is None) == (block_size is None):
        got = "neither" if cu_rows is None else "both"
        raise ValueError(f"block_conv: one of cu_rows and block_size must be given, got {got}")
    if block_size is not None:
        checks.at_least("block_size", block_size, 1)
        blocks = (rows + block_size - 1) // block_size
    elif cu_rows is not None:
        checks.index("cu_rows", cu_rows, "[B + 1]", -1)
        checks.at_least("len(cu_rows)", len(cu_rows), 1)
        blocks = len(cu_rows) - 1
    checks.tensor("status", status, (torch.int32,), "[B]", blocks)

    status = status_or_scratch(status, x, blocks)
    options = {
        "cu_rows": cu_rows,
        "block_size": block_size,
        "residual": residual,
        "out_dtype": out_dtype,
        "status": status,
    }
    if out is None:
        return torch.ops.dflash.block_conv(x, delta, base, **options)
    checks.tensor("out", out, (dtype,), "[T, H]", rows, channels)
    torch.ops.dflash.block_conv.out(x, delta, base, **options, out=out)
    return out


class Selected(NamedTuple):
    """The drafts of B requests, and the law that each was drawn from."""

    tokens: Tensor
    """``[B, D]`` int64, drafted tokens; -1 where there is none."""
    q: Tensor
    """``[B, D, K]`` fp32, probability of each candidate; one-hot where the choice was greedy."""


def select_path(
    values: Tensor,
    cand_ids: Tensor,
    hidden: Tensor,
    anchors: Tensor,
    predecessor: Tensor,
    successor: Tensor,
    *,
    ctx_lens: Tensor | None = None,
    req_rows: Tensor | None = None,
    num_drafts: Tensor | None = None,
    temperature: Tensor | None = None,
    seeds: Tensor | None = None,
    coupled: bool = False,
    status: Tensor | None = None,
    out: Selected | None = None,
) -> Selected:
    """Walk DFlash 2's candidates slot by slot, each choice conditional on the one before.

    In slot j, with predecessor a (the anchor, then the token chosen last), candidate k scores
    ``values[b, j, k] + sum_i predecessor[a, i] * hidden[b, j, i] * successor[id_k, i]``. Greedy:
    the highest score. Sampled: one draw from ``q = softmax(score / T)``, as the highest
    ``score / T + noise``. Ties go to the lower token id.

    Args:
        values: ``[B, D, K]`` fp32, the head's values of each slot's candidates.
        cand_ids: ``[B, D, K]`` int, their token ids; below 0: absent.
        hidden: ``[B, D, r]`` float, the slots' hidden states after ``hidden_projection``.
        anchors: ``[B]`` int, token before the first slot.
        predecessor: ``[V, r]`` float codebook. Last dimension contiguous, as for hidden, successor.
        successor: ``[V, r]``, predecessor's dtype.
        ctx_lens: ``[R]`` int, sequence index of the anchor; slot j is drawn for index
            ``ctx_len + 1 + j``. Needed with temperature.
        req_rows: ``[B]`` int, state row of request b; -1: padded. Default: the same numbers.
        num_drafts: ``[B]`` int, slots that count. Default: D.
        temperature: ``[R]`` fp32; below 1e-5: greedy. Default: greedy everywhere.
        seeds: ``[R]`` int64. Needed with temperature.
        coupled: draw with the target's own noise (stream 0): the draft is then likelier to be the
            target's token. For match verification only.
        status: ``[B]`` int32, :class:`Status` bits are OR-ed in. BAD_DRAFT_ID: an anchor outside
            the codebook, which then adds nothing to a score, or a candidate, which is not chosen.
            NO_FINITE_LOGIT: a slot without a finite score; its lowest id was taken. OUT_OF_RANGE: a
            state row that does not exist; no drafts. BOUND_TOO_SMALL: num_drafts exceeds D.
        out: tensors to write into: int tokens, fp32 q.

    int is int32 or int64. Tensors may have any strides where nothing else is said.

    Returns:
        A :class:`Selected`; ``out`` if given. The walk ends before a slot without candidates; from
        there on tokens are -1 and q is 0. ``cand_ids`` and q are the sparse proposal that rejection
        verification takes.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape, stride or device is not as above.

    Source: DFlash 2's candidate selector.
    Reference: :func:`dflash_ops.reference.select_path`: the same tokens where scores are not within
    fp32 rounding of each other.
    """
    checks = Checks("select_path", values)
    fp32 = (torch.float32,)
    checks.tensor("values", values, fp32, "[B, D, K]", -1, -1, -1)
    batch, slots, _ = values.shape
    checks.index("cand_ids", cand_ids, "[B, D, K]", *values.shape)
    checks.tensor("hidden", hidden, FLOATS, "[B, D, r]", batch, slots, -1)
    rank = hidden.shape[2]
    checks.index("anchors", anchors, "[B]", batch)
    checks.tensor("predecessor", predecessor, FLOATS, "[V, r]", -1, rank)
    shape = predecessor.shape
    checks.tensor("successor", successor, (predecessor.dtype,), "[V, r]", *shape)
    checks.last_contiguous("hidden", hidden)
    checks.last_contiguous("predecessor", predecessor)
    checks.last_contiguous("successor", successor)
    if temperature is not None:
        if ctx_lens is None or seeds is None:
            got = "no ctx_lens" if ctx_lens is None else "no seeds"
            raise ValueError(
                f"select_path: ctx_lens and seeds must be given with temperature, got {got}"
            )
        checks.tensor("temperature", temperature, fp32, "[R]", -1)
        checks.index("ctx_lens", ctx_lens, "[R]", len(temperature))
        checks.tensor("seeds", seeds, (torch.int64,), "[R]", len(temperature))
    checks.index("req_rows", req_rows, "[B]", batch)
    checks.index("num_drafts", num_drafts, "[B]", batch)
    checks.tensor("status", status, (torch.int32,), "[B]", batch)

    args = (values, cand_ids, hidden, anchors, predecessor, successor)
    options = {
        "ctx_lens": ctx_lens,
        "req_rows": req_rows,
        "num_drafts": num_drafts,
        "temperature": temperature,
        "seeds": seeds,
        "coupled": coupled,
        "status": status,
    }
    if out is None:
        return Selected(*torch.ops.dflash.select_path(*args, **options))
    checks.index("tokens", out.tokens, "[B, D]", batch, slots)
    checks.tensor("q", out.q, fp32, "[B, D, K]", *values.shape)
    torch.ops.dflash.select_path.out(*args, **options, **out._asdict())
    return out


@torch.library.register_fake("dflash::block_conv")
def _(x, delta, base, *, out_dtype=None, **_):
    return x.new_empty(x.shape, dtype=out_dtype or x.dtype)


@torch.library.register_fake("dflash::select_path")
def _(values, *args, **kwargs):
    return values.new_empty(values.shape[:2], dtype=torch.int64), values.new_empty(values.shape)


for _name in ("block_conv", "select_path"):
    torch.library.register_fake(f"dflash::{_name}.out", lambda *args, **kwargs: None)
