"""The LM head and what is asked of its logits, in one pass: no logits in memory."""

from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from ._check import FLOATS, Checks
from ._options import LogitOptions, SamplingOptions, check_logits, check_sampling
from ._quant import check_quantised, parse_format
from .gemm import _check_weight
from .sample import Sampled

MAX_TOPK = 64
_OPS = torch.ops.dflash


class TopK(NamedTuple):
    values: Tensor
    """``[Tv, k]`` float32 logits in the order (descending, id ascending); -inf: absent."""
    ids: Tensor
    """``[Tv, k]`` int64; -1: absent. A row without a finite logit has its lowest allowed id."""
    lse: Tensor
    """``[Tv]`` float32 log-sum-exp of the whole row at temperature 1."""


class Gathered(NamedTuple):
    logprobs: Tensor
    """``[Tv, K]`` float32 log-probabilities at temperature 1; -inf for an id that has none."""
    tempered: Tensor
    """``[Tv, K]`` float32, the same at the request's temperature: of the one token if greedy."""
    ranks: Tensor
    """``[Tv, K]`` int64: ids before it in the order (logit descending, id ascending); -1: none."""
    lse: Tensor
    """``[Tv]`` float32 log-sum-exp at temperature 1."""


class HeadRecord(NamedTuple):
    """What rejection verification with a sparse q needs of each row."""

    values: Tensor
    """``[Tv, K]`` float32: logits of the given ids; -inf: none."""
    lse: Tensor
    """``[Tv]`` float32 log-sum-exp at temperature 1."""
    tempered_lse: Tensor
    """``[Tv]`` float32, at the request's temperature."""
    rest_ids: Tensor
    """``[Tv]`` int64: the best of the ids that were not given, with the residual's noise; of a row
    with a filter that is not covered, of all that it keeps. -1: none."""
    rest_values: Tensor
    """``[Tv]`` float32: its logit."""
    rest_keys: Tensor
    """``[Tv]`` float32: its score ``fmaf(z, 1/T, g)``."""
    top_values: Tensor
    """``[Tv, 64]`` float32: the best logits of a row with a filter, of a greedy one its best."""
    top_ids: Tensor
    """``[Tv, 64]`` int64; -1: absent."""
    covered: Tensor
    """``[Tv]`` bool: the filtered law is inside ``top_ids``. Never on a shard of the vocabulary."""


class HeadOptions(LogitOptions, total=False):
    """What a logit of the head is: ``h @ weight.T + bias``, then as :class:`LogitOptions`."""

    weight_format: str | None
    """Of a weight packed by :func:`pack_w8` or :func:`pack_w4`, as it was returned with it.
    Default: the weight has h's dtype."""
    norm_weight: Tensor | None
    """``[H]``: rows are RMS-normed first, as :func:`rmsnorm` does."""
    eps: float
    round_logits: bool
    """Round ``h @ weight.T + bias`` to ``h``'s dtype first, as engines with bf16 logits do."""


class _LawOptions(HeadOptions, SamplingOptions, total=False):
    pass


def _check_head(
    checks: Checks,
    h: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    options: HeadOptions,
    status: Tensor | None,
) -> tuple[int, int]:
    """Checks what all lm_head ops take; returns Tv and the columns."""
    checks.tensor("h", h, FLOATS, "[num_rows, H]", -1, -1)
    checks.last_contiguous("h", h)
    depth = h.shape[1]
    norm_weight = options.get("norm_weight")
    checks.tensor("norm_weight", norm_weight, FLOATS, "[H]", depth)
    checks.last_contiguous("norm_weight", norm_weight)
    checks.at_least("eps", options.get("eps", 1e-6), 0)
    format = options.get("weight_format")
    columns = _check_head_weight(checks, weight, format, h, depth)
    is_packed = format is not None or weight.dim() != 2
    if is_packed and (size := options.get("vocab_size")) is not None:
        columns = min(max(size - options.get("vocab_start", 0), 0), columns)  # without padding
    checks.tensor("bias", bias, FLOATS, "[V]", columns)
    checks.last_contiguous("bias", bias)
    rows = check_logits(checks, options, h.shape[0], columns)
    checks.tensor("status", status, (torch.int32,), "[Tv]", rows)
    return rows, columns


def _check_head_weight(
    checks: Checks, weight: Tensor, format: str | None, h: Tensor, depth: int
) -> int:
    if format is None:
        return _check_weight(checks, weight, h.dtype, depth, -1, False)
    quant = parse_format(checks, format, "weight_format")
    return check_quantised(checks, weight, quant, depth, -1, False)


def _check_fallback(checks: Checks, max_rows: int, workspace: Tensor | None, columns: int) -> None:
    checks.at_least("max_fallback_rows", max_rows, 1)
    checks.tensor("workspace", workspace, (torch.uint8,), "[bytes]", -1)
    if workspace is not None:
        checks.at_least("len(workspace)", len(workspace), 4 * max_rows * (columns // 512 + 2) * 512)
        checks.last_contiguous("workspace", workspace)


def lm_head_topk(
    h: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    k: int,
    status: Tensor | None = None,
    out: TopK | None = None,
    **options: Unpack[HeadOptions],
) -> TopK:
    """Find the best k logits of each row and its log-sum-exp.

    Args:
        h: ``[num_rows, H]`` bfloat16, float16 or float32, last dimension contiguous.
        weight: ``[V, H]`` of h's dtype, plain or packed by :func:`pack_weight`; with
            ``weight_format`` as :func:`pack_w8` or :func:`pack_w4` packed it. Column j is token
            ``vocab_start + j``. A packed weight's padding counts unless ``vocab_size`` excludes it.
        bias: ``[V]``.
        k: 1 .. 64. k = 1 is the argmax.
        status: ``[Tv]`` int32, :class:`Status` bits are OR-ed in. NO_FINITE_LOGIT: the lowest
            allowed id stands first, with -inf. OUT_OF_RANGE: the row was not read.
        out: tensors to write into, of any strides.
        options: see :class:`HeadOptions`.

    Returns:
        A :class:`TopK`; ``out`` if given. Padded rows: -inf, id -1, lse -inf.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape, device, stride or option is not as above.

    Reference: :func:`dflash_ops.reference.lm_head_topk`.
    """
    checks = Checks("lm_head_topk", h)
    rows, _ = _check_head(checks, h, weight, bias, options, status)
    checks.at_least("k", k, 1)
    checks.at_most("k", k, MAX_TOPK)
    args = {"k": k, "status": status, **options}
    if out is None:
        return TopK(*_OPS.lm_head_topk(h, weight, bias, **args))
    checks.tensor("values", out.values, (torch.float32,), "[Tv, k]", rows, k)
    checks.index("ids", out.ids, "[Tv, k]", rows, k)
    checks.tensor("lse", out.lse, (torch.float32,), "[Tv]", rows)
    _OPS.lm_head_topk.out(h, weight, bias, **args, **out._asdict())
    return out


def lm_head_sample(
    h: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    positions: Tensor,
    cu_verify: Tensor,
    max_fallback_rows: int = 1,
    workspace: Tensor | None = None,
    status: Tensor | None = None,
    out: Sampled | None = None,
    **options: Unpack[_LawOptions],
) -> Sampled:
    """Draw the target's token of each row: :func:`sample_logits` without the logits.

    Greedy and unfiltered rows, and filtered ones whose kept set is among the best 64, take one
    pass over the head. The others take a second one that writes their logits to the workspace.

    Args:
        h, weight, bias: as :func:`lm_head_topk`.
        positions, cu_verify: as :func:`sample_logits`.
        max_fallback_rows: rows that share the second pass. Those beyond take a pass each.
        workspace: uint8, at least ``workspace_bytes("lm_head_sample", ..)``. Default: allocated.
        status: ``[Tv]`` int32, as :func:`sample_logits`. BOUND_TOO_SMALL: the row was beyond
            ``max_fallback_rows``; its result is right.
        out: tensors to write into, of any strides.
        options: see :class:`HeadOptions` and :class:`SamplingOptions`.

    Returns:
        A :class:`Sampled`; ``out`` if given.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape, device, stride or option is not as above.

    Reference: :func:`dflash_ops.reference.lm_head_sample`; the bits of :func:`sample_logits` on the
    float32 logits of :func:`verify_gemm`, or of the op that has the weight's format.
    """
    checks = Checks("lm_head_sample", h)
    rows, columns = _check_head(checks, h, weight, bias, options, status)
    check_sampling(checks, positions, cu_verify, options, rows)
    _check_fallback(checks, max_fallback_rows, workspace, columns)
    named = {"positions": positions, "cu_verify": cu_verify, "workspace": workspace}
    args = {**named, "max_fallback_rows": max_fallback_rows, "status": status, **options}
    if out is None:
        return Sampled(*_OPS.lm_head_sample(h, weight, bias, **args))
    checks.index("ids", out.ids, "[Tv]", rows)
    checks.tensor("logprobs", out.logprobs, (torch.float32,), "[Tv]", rows)
    _OPS.lm_head_sample.out(h, weight, bias, **args, **out._asdict())
    return out


def lm_head_gather(
    h: Tensor,
    weight: Tensor,
    ids: Tensor,
    bias: Tensor | None = None,
    *,
    cu_verify: Tensor | None = None,
    req_rows: Tensor | None = None,
    temperature: Tensor | None = None,
    status: Tensor | None = None,
    out: Gathered | None = None,
    **options: Unpack[HeadOptions],
) -> Gathered:
    """Look up log-probabilities and ranks of given ids.

    Args:
        h, weight, bias: as :func:`lm_head_topk`.
        ids: ``[Tv, K]`` int, K <= 64; -1: none.
        cu_verify: ``[B + 1]`` int, rows of each request; needed with the next two.
        req_rows: ``[B]`` int, state row of each request; -1: padded.
        temperature: ``[R]`` float32; below 1e-5: greedy. Default: 1.
        status: ``[Tv]`` int32, :class:`Status` bits are OR-ed in. BAD_DRAFT_ID: an id outside the
            vocabulary. NO_FINITE_LOGIT, OUT_OF_RANGE as :func:`lm_head_topk`.
        out: tensors to write into, of any strides.
        options: see :class:`HeadOptions`.

    Returns:
        A :class:`Gathered`; ``out`` if given. Padded rows and absent ids: -inf, rank -1.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape, device, stride or option is not as above.

    Reference: :func:`dflash_ops.reference.lm_head_gather`.
    """
    checks = Checks("lm_head_gather", h)
    rows, _ = _check_head(checks, h, weight, bias, options, status)
    checks.index("ids", ids, "[Tv, K]", rows, -1)
    count = ids.shape[1]
    checks.at_most("K", count, MAX_TOPK)
    checks.given("cu_verify", cu_verify, "temperature", temperature)
    checks.given("cu_verify", cu_verify, "req_rows", req_rows)
    if cu_verify is not None:
        checks.index("cu_verify", cu_verify, "[B + 1]", -1)
        checks.at_least("len(cu_verify)", len(cu_verify), 1)
        checks.index("req_rows", req_rows, "[B]", len(cu_verify) - 1)
        checks.tensor("temperature", temperature, (torch.float32,), "[R]", -1)
    named = {"cu_verify": cu_verify, "req_rows": req_rows, "temperature": temperature}
    args = {**named, "status": status, **options}
    if out is None:
        return Gathered(*_OPS.lm_head_gather(h, weight, ids, bias, **args))
    checks.tensor("logprobs", out.logprobs, (torch.float32,), "[Tv, K]", rows, count)
    checks.tensor("tempered", out.tempered, (torch.float32,), "[Tv, K]", rows, count)
    checks.index("ranks", out.ranks, "[Tv, K]", rows, count)
    checks.tensor("lse", out.lse, (torch.float32,), "[Tv]", rows)
    _OPS.lm_head_gather.out(h, weight, ids, bias, **args, **out._asdict())
    return out


def lm_head_verify(
    h: Tensor,
    weight: Tensor,
    ids: Tensor,
    bias: Tensor | None = None,
    *,
    positions: Tensor,
    cu_verify: Tensor,
    max_fallback_rows: int = 1,
    workspace: Tensor | None = None,
    status: Tensor | None = None,
    out: HeadRecord | None = None,
    **options: Unpack[_LawOptions],
) -> HeadRecord:
    """Record what rejection verification needs of the target's laws.

    A residual ``max(p - q, 0)`` is p where q is 0. So with the logits of the ids where it is not,
    the log-sum-exp, and the best of all others under the residual's noise, nothing else of the row
    is needed. With a filter the law is the kept part of the best 64 candidates; rows where the
    filter keeps more (not ``covered``) take a second pass over the head, which draws their token.

    Args:
        h, weight, bias: as :func:`lm_head_topk`.
        ids: ``[Tv, K]`` int, K <= 64, the ids where q is not 0 and the draft after each row; -1:
            none.
        positions: ``[Tv]`` int, sequence index of each row's own token.
        cu_verify: ``[B + 1]`` int, verify rows of each request, the anchor first.
        max_fallback_rows, workspace: as :func:`lm_head_sample`.
        status: ``[Tv]`` int32, :class:`Status` bits are OR-ed in. BAD_DRAFT_ID: an id outside the
            vocabulary. NO_FINITE_LOGIT, OUT_OF_RANGE, BOUND_TOO_SMALL as :func:`lm_head_sample`.
        out: tensors to write into, of any strides.
        options: see :class:`HeadOptions` and :class:`SamplingOptions`.

    Returns:
        A :class:`HeadRecord`; ``out`` if given.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape, device, stride or option is not as above.

    Reference: :func:`dflash_ops.reference.lm_head_verify`.
    """
    checks = Checks("lm_head_verify", h)
    rows, columns = _check_head(checks, h, weight, bias, options, status)
    checks.index("ids", ids, "[Tv, K]", rows, -1)
    count = ids.shape[1]
    checks.at_most("K", count, MAX_TOPK)
    check_sampling(checks, positions, cu_verify, options, rows)
    _check_fallback(checks, max_fallback_rows, workspace, columns)
    named = {"positions": positions, "cu_verify": cu_verify, "workspace": workspace}
    args = {**named, "max_fallback_rows": max_fallback_rows, "status": status, **options}
    if out is None:
        return HeadRecord(*_OPS.lm_head_verify(h, weight, ids, bias, **args))
    fp32 = (torch.float32,)
    checks.tensor("values", out.values, fp32, "[Tv, K]", rows, count)
    checks.tensor("lse", out.lse, fp32, "[Tv]", rows)
    checks.tensor("tempered_lse", out.tempered_lse, fp32, "[Tv]", rows)
    checks.index("rest_ids", out.rest_ids, "[Tv]", rows)
    checks.tensor("rest_values", out.rest_values, fp32, "[Tv]", rows)
    checks.tensor("rest_keys", out.rest_keys, fp32, "[Tv]", rows)
    checks.tensor("top_values", out.top_values, fp32, "[Tv, 64]", rows, MAX_TOPK)
    checks.index("top_ids", out.top_ids, "[Tv, 64]", rows, MAX_TOPK)
    checks.tensor("covered", out.covered, (torch.bool,), "[Tv]", rows)
    _OPS.lm_head_verify.out(h, weight, ids, bias, **args, **out._asdict())
    return out


def _num_rows(h, verify_rows):
    return h.shape[0] if verify_rows is None else verify_rows.shape[0]


@torch.library.register_fake("dflash::lm_head_topk")
def _(h, weight, bias=None, *, k, verify_rows=None, **options):
    rows = _num_rows(h, verify_rows)
    values, ids = (h.new_empty((rows, k), dtype=x) for x in (torch.float32, torch.int64))
    return values, ids, h.new_empty(rows, dtype=torch.float32)


@torch.library.register_fake("dflash::lm_head_sample")
def _(h, weight, bias=None, *, verify_rows=None, **options):
    rows = _num_rows(h, verify_rows)
    return h.new_empty(rows, dtype=torch.int64), h.new_empty(rows, dtype=torch.float32)


@torch.library.register_fake("dflash::lm_head_gather")
def _(h, weight, ids, bias=None, *, verify_rows=None, **options):
    shape = _num_rows(h, verify_rows), ids.shape[1]
    dtypes = torch.float32, torch.float32, torch.int64
    return *(h.new_empty(shape, dtype=x) for x in dtypes), h.new_empty(
        shape[0], dtype=torch.float32
    )


@torch.library.register_fake("dflash::lm_head_verify")
def _(h, weight, ids, bias=None, *, verify_rows=None, **options):
    rows = _num_rows(h, verify_rows)
    floats = h.new_empty(rows, dtype=torch.float32)
    ints = h.new_empty(rows, dtype=torch.int64)
    return (
        h.new_empty((rows, ids.shape[1]), dtype=torch.float32),
        floats,
        torch.empty_like(floats),
        ints,
        torch.empty_like(floats),
        torch.empty_like(floats),
        h.new_empty((rows, MAX_TOPK), dtype=torch.float32),
        h.new_empty((rows, MAX_TOPK), dtype=torch.int64),
        h.new_empty(rows, dtype=torch.bool),
    )


@torch.library.register_fake("dflash::lm_head_verify.out")
@torch.library.register_fake("dflash::lm_head_topk.out")
@torch.library.register_fake("dflash::lm_head_sample.out")
@torch.library.register_fake("dflash::lm_head_gather.out")
def _(*args, **kwargs):
    return None
