"""Sampling: one token per row, a pure function of the row's logits, its seed and its position."""

from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from ._check import FLOATS, Checks
from ._options import MAX_ID, LogitOptions, SamplingOptions, check_logits, check_sampling

MAX_CANDIDATES = 1024


class Sampled(NamedTuple):
    ids: Tensor
    """``[Tv]`` token ids, int64; -1 for padded rows."""
    logprobs: Tensor
    """``[Tv]`` float32: log-probability under the raw law, the softmax of the shaped and masked
    logits at temperature 1 without a filter; 0 for padded rows."""


class SampledCandidates(NamedTuple):
    ids: Tensor
    """``[Tv]`` token ids, int64; -1 for padded rows and those that are not covered."""
    logprobs: Tensor
    """``[Tv]`` float32, as :class:`Sampled`."""
    covered: Tensor
    """``[Tv]`` bool: the candidates tell the token."""


class _LawOptions(LogitOptions, SamplingOptions, total=False):
    pass


def sample_logits(
    logits: Tensor,
    *,
    positions: Tensor,
    cu_verify: Tensor,
    status: Tensor | None = None,
    out: Sampled | None = None,
    **options: Unpack[_LawOptions],
) -> Sampled:
    """Draw the target's token of each row from logits in memory.

    The token is the argmax over the ids that the filter keeps of ``fmaf(z, 1/T, g)``: z the shaped
    logit, g the Gumbel noise of (seed, position + 1, id) on stream 0 (docs/noise.md). Ties go to
    the lower id. Below T = 1e-5 it is the argmax of z.

    A filter keeps the first candidates in the order (z descending, id ascending): number i while
    ``i < top_k``, ``p[i] >= min_p * p[0]``, and the mass before it is below ``top_p`` of the total.
    At least one stays.

    Args:
        logits: ``[num_rows, V]`` bfloat16, float16 or float32, last dimension contiguous. NaN
            counts as -inf, +inf as the largest float.
        positions: ``[Tv]`` int, sequence index of each row's own token; the drawn one has + 1.
        cu_verify: ``[B + 1]`` int, rows of request b: ``cu_verify[b] .. cu_verify[b + 1]``. Rows
            outside are padded.
        status: ``[Tv]`` int32, :class:`Status` bits are OR-ed in. NO_FINITE_LOGIT: the lowest
            allowed id was returned, with log-probability -inf. OUT_OF_RANGE: the row was not read.
        out: tensors to write into, of any strides.
        options: see :class:`LogitOptions` and :class:`SamplingOptions`.

    Returns:
        A :class:`Sampled`; ``out`` if given.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape, device, stride or option is not as above.

    Reference: :func:`dflash_ops.reference.sample_logits`.
    """
    checks = Checks("sample_logits", logits)
    checks.tensor("logits", logits, FLOATS, "[num_rows, V]", -1, -1)
    checks.last_contiguous("logits", logits)
    rows = check_logits(checks, options, *logits.shape)
    check_sampling(checks, positions, cu_verify, options, rows)
    checks.tensor("status", status, (torch.int32,), "[Tv]", rows)

    args = {"positions": positions, "cu_verify": cu_verify, "status": status, **options}
    if out is None:
        return Sampled(*torch.ops.dflash.sample_logits(logits, **args))
    checks.index("ids", out.ids, "[Tv]", rows)
    checks.tensor("logprobs", out.logprobs, (torch.float32,), "[Tv]", rows)
    torch.ops.dflash.sample_logits.out(logits, **args, **out._asdict())
    return out


def sample_candidates(
    values: Tensor,
    cand_ids: Tensor,
    lse: Tensor,
    *,
    positions: Tensor,
    cu_verify: Tensor,
    vocab_size: int | None = None,
    status: Tensor | None = None,
    out: SampledCandidates | None = None,
    **options: Unpack[SamplingOptions],
) -> SampledCandidates:
    """Draw each row's token from its best candidates: the draw of :func:`sample_logits`, bit for
    bit, wherever the candidates prove which ids the filter keeps.

    They do if the row is greedy; if top_k is at most K; if top_p or min_p ends before them (top_p
    of the whole law: at temperature 1 only, where ``lse`` is that of the law); or if they are all:
    a row's list that ends with id -1 has every finite logit.

    Args:
        values: ``[Tv, K]`` float32, logits in the order (descending, id ascending), as
            :func:`lm_head_topk` gives them. K <= 1024.
        cand_ids: ``[Tv, K]`` int, their ids; -1: absent.
        lse: ``[Tv]`` float32, log-sum-exp of the row at temperature 1.
        positions, cu_verify, options: as :func:`sample_logits`.
        vocab_size: where top_k counts as off. Default: it does not.
        status: ``[Tv]`` int32, :class:`Status` bits are OR-ed in. NO_FINITE_LOGIT as
            :func:`sample_logits`. OUT_OF_RANGE: the row was not read, or an id is out of range.
        out: tensors to write into, of any strides.

    Returns:
        A :class:`SampledCandidates`; ``out`` if given.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape, device or option is not as above.

    Reference: :func:`dflash_ops.reference.sample_candidates`.
    """
    checks = Checks("sample_candidates", values)
    checks.tensor("values", values, (torch.float32,), "[Tv, K]", -1, -1)
    rows, count = values.shape
    checks.at_most("K", count, MAX_CANDIDATES)
    checks.index("cand_ids", cand_ids, "[Tv, K]", rows, count)
    checks.tensor("lse", lse, (torch.float32,), "[Tv]", rows)
    check_sampling(checks, positions, cu_verify, options, rows)
    if vocab_size is not None:
        checks.at_least("vocab_size", vocab_size, 0)
        checks.at_most("vocab_size", vocab_size, MAX_ID)
    checks.tensor("status", status, (torch.int32,), "[Tv]", rows)

    named = {"positions": positions, "cu_verify": cu_verify, "vocab_size": vocab_size}
    args = {**named, "status": status, **options}
    if out is None:
        op = torch.ops.dflash.sample_candidates
        return SampledCandidates(*op(values, cand_ids, lse, **args))
    checks.index("ids", out.ids, "[Tv]", rows)
    checks.tensor("logprobs", out.logprobs, (torch.float32,), "[Tv]", rows)
    checks.tensor("covered", out.covered, (torch.bool,), "[Tv]", rows)
    torch.ops.dflash.sample_candidates.out(values, cand_ids, lse, **args, **out._asdict())
    return out


@torch.library.register_fake("dflash::sample_logits")
def _(logits, *, positions, **options):
    rows = positions.shape[0]
    return logits.new_empty(rows, dtype=torch.int64), logits.new_empty(rows, dtype=torch.float32)


@torch.library.register_fake("dflash::sample_candidates")
def _(values, cand_ids, lse, *, positions, **options):
    dtypes = (torch.int64, torch.float32, torch.bool)
    return tuple(values.new_empty(positions.shape[0], dtype=dtype) for dtype in dtypes)


@torch.library.register_fake("dflash::sample_logits.out")
@torch.library.register_fake("dflash::sample_candidates.out")
def _(*args, **kwargs):
    return None
