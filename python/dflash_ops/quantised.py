"""Weights of 8 and 4 bits: packing them, and products with them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._check import FLOATS, Checks, _shape_name, check_contiguous
from ._quant import CODES, GROUPS, QuantFormat, check_pair, num_blocks, scales_name
from .gemm import call_verify_gemm


class QuantisedWeight(NamedTuple):
    """A packed weight and the name of its format, which every op that reads it is told."""

    packed: Tensor
    """``[blocks, block_bytes]`` uint8."""
    format: str
    """Like ``"int4_fp16_g32_mins"``: codes, type of the scales, k that share one, offsets."""


def pack_w8(
    weight: Tensor,
    scales: Tensor | None = None,
    *,
    block: tuple[int, int] | None = None,
    pair: bool = False,
    out: Tensor | None = None,
) -> QuantisedWeight:
    """Lay a weight of 8-bit numbers out as the kernels read it: codes and scales in one stream.

    The value of element (n, k) is ``weight[n, k] * scales[n // block[0], k // block[1]]``. A block
    of 32 outputs is one stream of memory: the codes of a group of k, then its scales. Nothing is
    rounded; :func:`unpack` gives the values.

    Args:
        weight: ``[N, K]`` int8 or float8_e4m3fn, or uint8 ``[N, K / 32 * 34]``: rows of GGUF Q8_0
            blocks, whose scales are in them; last dimension contiguous.
        scales: ``[ceil(N / block[0]), ceil(K / block[1])]`` bfloat16, float16 or float32; any
            strides. None with Q8_0.
        block: elements that share a scale, (outputs, k). The second is 32, 64, 128, 256 or 512, or
            at least K. Default: ``(1, K)``, a scale per output. None with Q8_0.
        pair: as for :func:`pack_weight`.
        out: ``[blocks, block_bytes]`` contiguous uint8 tensor to write into.

    Returns:
        The packed weight (``out`` if given) and the name of its format. One scale for all of k is
        stored as groups of 512 with the same scale.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape, stride or option is not as above.

    Reference: :func:`dflash_ops.reference.pack_w8`. Exact: results are equal, not close.
    """
    checks = Checks("pack_w8", weight)
    quant, num_rows, depth = _pack_w8_format(checks, weight, scales, block)
    check_pair(checks, "weight", num_rows, pair)
    sizes = None if block is None else list(block)

    def run(**outputs: Tensor) -> Tensor:
        op = torch.ops.dflash.pack_w8
        return (op.out if outputs else op)(weight, scales, block=sizes, pair=pair, **outputs)

    return _packed(checks, run, quant, num_rows, depth, pair, out)


def pack_w4(
    weight: Tensor,
    scales: Tensor | None = None,
    zeros: Tensor | None = None,
    g_idx: Tensor | None = None,
    *,
    source: str,
    group_size: int | None = None,
    pair: bool = False,
    out: Tensor | None = None,
) -> QuantisedWeight:
    """Lay a 4-bit weight out as the kernels read it: codes, scales and offsets in one stream.

    The value of a code q is ``(q - zero) * scale``, without ``zeros`` ``(q - 8) * scale``; for
    Q4_1 ``q * scale + minimum``. Nothing is rounded; :func:`unpack` gives the values.

    Args:
        weight: int32 ``[K / 8, N]`` (``"gptq"``, ``"gptq_v2"``: qweight), int32 ``[K, N / 8]``
            (``"awq"``: qweight), or uint8 rows of GGUF blocks, ``[N, K / 32 * 18]`` (``"q4_0"``)
            or ``[N, K / 32 * 20]`` (``"q4_1"``); last dimension contiguous.
        scales: ``[groups, N]`` bfloat16, float16 or float32; any strides. None with GGUF.
        zeros: ``[groups, ceil(N / 8)]`` int32 (qzeros), in the order of the weight's outputs; any
            strides. Default: all zeros are 8. None with GGUF.
        g_idx: ``[K]`` int: group of each k, which must be ``k // group_size``. A weight in
            act-order has another; it is not supported.
        source: who wrote the weight. ``"gptq"`` stores zeros less one (modulo 16), ``"gptq_v2"``
            (``checkpoint_format: gptq_v2``) as they are.
        group_size: k that share a scale: 32, 64, 128, 256 or 512; -1: all. None with GGUF (32).
        pair: as for :func:`pack_weight`.
        out: ``[blocks, block_bytes]`` contiguous uint8 tensor to write into.

    Returns:
        The packed weight (``out`` if given) and the name of its format.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape, stride or option is not as above, or ``g_idx`` has other groups.

    Source: Frantar et al. 2022 (arXiv:2210.17323), Lin et al. 2023 (arXiv:2306.00978), ggml.
    Reference: :func:`dflash_ops.reference.pack_w4`. Exact: results are equal, not close.
    """
    checks = Checks("pack_w4", weight)
    quant, num_rows, depth = _pack_w4_format(
        checks, weight, scales, zeros, g_idx, source, group_size
    )
    check_pair(checks, "weight", num_rows, pair)

    options = {"source": source, "group_size": group_size, "pair": pair}

    def run(**outputs: Tensor) -> Tensor:
        op = torch.ops.dflash.pack_w4
        run_op = op.out if outputs else op
        return run_op(weight, scales, zeros, g_idx, **options, **outputs)

    return _packed(checks, run, quant, num_rows, depth, pair, out)


def _packed(
    checks: Checks,
    run: Callable[..., Tensor],
    quant: QuantFormat,
    num_rows: int,
    depth: int,
    pair: bool,
    out: Tensor | None,
) -> QuantisedWeight:
    if out is not None:
        shape = num_blocks(num_rows, pair), quant.block_bytes(depth)
        checks.tensor("out", out, (torch.uint8,), "[blocks, block_bytes]", *shape)
        check_contiguous(checks, "out", out)
    try:
        packed = run() if out is None else run(out=out)
    except RuntimeError as error:  # what g_idx holds is for the op to see
        raise ValueError(str(error)) from None
    return QuantisedWeight(packed if out is None else out, str(quant))


def _check_group(checks: Checks, name: str, group: int) -> int:
    """-1: one scale for all of k. Returns the size of the packed groups."""
    if group >= 0 and group not in GROUPS:
        raise ValueError(
            f"{checks.op}: {name} must be 32, 64, 128, 256 or 512 or all of k, got {group}"
        )
    return GROUPS[-1] if group < 0 else group


def _check_absent(checks: Checks, source: str, **options: object) -> None:
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"{checks.op}: {name} must be None with {source}")


def _check_gguf(checks: Checks, weight: Tensor, block_bytes: int) -> tuple[int, int]:
    checks.tensor("weight", weight, (torch.uint8,), "[N, bytes]", -1, -1)
    checks.last_contiguous("weight", weight)
    if weight.shape[1] % block_bytes:
        raise ValueError(
            f"{checks.op}: weight must have rows of whole blocks of {block_bytes} bytes, got "
            f"{weight.shape[1]}"
        )
    return weight.shape[0], weight.shape[1] // block_bytes * 32


def _pack_w8_format(
    checks: Checks, weight: Tensor, scales: Tensor | None, block: tuple[int, int] | None
) -> tuple[QuantFormat, int, int]:
    if weight.dtype == torch.uint8:
        _check_absent(checks, "a uint8 weight, which is Q8_0 blocks", scales=scales, block=block)
        return QuantFormat("int8", "fp16", 32), *_check_gguf(checks, weight, 34)
    checks.tensor("weight", weight, (*CODES, torch.uint8), "[N, K]", -1, -1)
    checks.last_contiguous("weight", weight)
    num_rows, depth = weight.shape
    if block is not None and len(block) != 2:
        raise ValueError(f"{checks.op}: block must be [rows, k], got {_shape_name(block)}")
    block_rows, block_k = block or (1, depth)
    checks.at_least("block[0]", block_rows, 1)
    checks.at_least("block[1]", block_k, 0)
    group = _check_group(checks, "block[1]", -1 if block_k >= depth else block_k)
    if scales is None:
        raise ValueError(f"{checks.op}: scales must be given with an int8 or fp8 weight, got None")
    groups = 1 if block_k >= depth else -(-depth // group)
    shape = -(-num_rows // block_rows), groups
    dims = "[ceil(N / block[0]), ceil(K / block[1])]"
    checks.tensor("scales", scales, FLOATS, dims, *shape)
    return QuantFormat(CODES[weight.dtype], scales_name(scales.dtype), group), num_rows, depth


def _pack_w4_format(
    checks: Checks,
    weight: Tensor,
    scales: Tensor | None,
    zeros: Tensor | None,
    g_idx: Tensor | None,
    source: str,
    group_size: int | None,
) -> tuple[QuantFormat, int, int]:
    checks.one_of("source", source, "gptq", "gptq_v2", "awq", "q4_0", "q4_1")
    if source.startswith("q4"):
        _check_absent(
            checks, "GGUF blocks", scales=scales, zeros=zeros, g_idx=g_idx, group_size=group_size
        )
        has_mins = source == "q4_1"
        sizes = _check_gguf(checks, weight, 20 if has_mins else 18)
        return QuantFormat("int4", "fp16", 32, "mins" if has_mins else ""), *sizes
    is_awq = source == "awq"
    dims = "[K, N / 8]" if is_awq else "[K / 8, N]"
    checks.tensor("weight", weight, (torch.int32,), dims, -1, -1)
    checks.last_contiguous("weight", weight)
    depth = weight.shape[0] * (1 if is_awq else 8)
    num_rows = weight.shape[1] * (8 if is_awq else 1)
    if scales is None or group_size is None:
        name = "scales" if scales is None else "group_size"
        raise ValueError(f"{checks.op}: {name} must be given with gptq and awq, got None")
    group = _check_group(checks, "group_size", group_size)
    groups = 1 if group_size < 0 else -(-depth // group)
    checks.tensor("scales", scales, FLOATS, "[groups, N]", groups, num_rows)
    dims = "[groups, ceil(N / 8)]"
    checks.tensor("zeros", zeros, (torch.int32,), dims, groups, -(-num_rows // 8))
    checks.index("g_idx", g_idx, "[K]", depth)
    offset = "" if zeros is None else "zeros"
    return QuantFormat("int4", scales_name(scales.dtype), group, offset), num_rows, depth


def verify_gemm_w8(
    x: Tensor,
    weight: Tensor,
    format: str,
    bias: Tensor | None = None,
    *,
    num_outputs: int | None = None,
    norm_weight: Tensor | None = None,
    eps: float = 1e-6,
    addend: Tensor | None = None,
    act: str = "none",
    residual: Tensor | None = None,
    activations: str = "float",
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """:func:`verify_gemm` with a weight packed by :func:`pack_w8`.

    ``y = act(rmsnorm(x) @ W.T + bias + addend) + residual`` with exactly the values W that
    :func:`unpack` gives: they are not rounded to x's dtype. A row has the same bits whatever other
    rows are in the call. Per group of k, the product of the codes with x is a float32 chain with k
    in order; it is scaled and added with one rounding.

    Args:
        x: ``[M, K]`` bfloat16, float16 or float32; last dimension contiguous.
        weight: as :func:`pack_w8` returns it; with ``pair=True`` for ``silu_mul``.
        format: the name that :func:`pack_w8` returned with it.
        activations: ``"float"``, or ``"int8"``: x (after the norm) is rounded to int8 first, 32 k
            with a scale of their largest magnitude / 127. Faster for several rows; the product is
            exact for the rounded x, whose error is at most half a scale per element. Not with fp8.
        bias, num_outputs, norm_weight, eps, addend, act, residual, out_dtype, out: as for
            :func:`verify_gemm`.

    Returns:
        ``[M, num_outputs]``; ``out`` if given.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape, device, stride or option is not as above.

    Reference: :func:`dflash_ops.reference.verify_gemm_w8`, within the rounding of the fp32 sums
    and one rounding of the output.
    """
    options: dict[str, Any] = {
        "num_outputs": num_outputs,
        "norm_weight": norm_weight,
        "eps": eps,
        "addend": addend,
        "act": act,
        "residual": residual,
        "activations": activations,
    }
    weights = weight, format
    return call_verify_gemm("verify_gemm_w8", x, weights, bias, options, out_dtype, out)


def verify_gemm_w4(
    x: Tensor,
    weight: Tensor,
    format: str,
    bias: Tensor | None = None,
    *,
    num_outputs: int | None = None,
    norm_weight: Tensor | None = None,
    eps: float = 1e-6,
    addend: Tensor | None = None,
    act: str = "none",
    residual: Tensor | None = None,
    activations: str = "float",
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """:func:`verify_gemm` with a weight packed by :func:`pack_w4`.

    ``y = act(rmsnorm(x) @ W.T + bias + addend) + residual`` with exactly the values W that
    :func:`unpack` gives: they are not rounded to x's dtype. A row has the same bits whatever other
    rows are in the call. Per group of k, the product of the codes (less 8) with x is a float32
    chain with k in order; it is scaled and added with one rounding. The value of code 8, where it
    is not 0, is multiplied with the sum of the group's x and added with one more.

    Args:
        x: ``[M, K]`` bfloat16, float16 or float32; last dimension contiguous.
        weight: as :func:`pack_w4` returns it; with ``pair=True`` for ``silu_mul``.
        format: the name that :func:`pack_w4` returned with it.
        activations: ``"float"``, or ``"int8"``: x (after the norm) is rounded to int8 first, 32 k
            with a scale of their largest magnitude / 127. Faster for several rows; the product is
            exact for the rounded x, whose error is at most half a scale per element.
        bias, num_outputs, norm_weight, eps, addend, act, residual, out_dtype, out: as for
            :func:`verify_gemm`.

    Returns:
        ``[M, num_outputs]``; ``out`` if given.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape, device, stride or option is not as above.

    Reference: :func:`dflash_ops.reference.verify_gemm_w4`, within the rounding of the fp32 sums
    and one rounding of the output.
    """
    options: dict[str, Any] = {
        "num_outputs": num_outputs,
        "norm_weight": norm_weight,
        "eps": eps,
        "addend": addend,
        "act": act,
        "residual": residual,
        "activations": activations,
    }
    weights = weight, format
    return call_verify_gemm("verify_gemm_w4", x, weights, bias, options, out_dtype, out)


@torch.library.register_fake("dflash::pack_w8")
def _(weight, scales=None, *, block=None, pair=False):
    quant, num_rows, depth = _pack_w8_format(Checks("pack_w8", weight), weight, scales, block)
    shape = num_blocks(num_rows, pair), quant.block_bytes(depth)
    return weight.new_empty(shape, dtype=torch.uint8)


@torch.library.register_fake("dflash::pack_w4")
def _(weight, scales=None, zeros=None, g_idx=None, *, source, group_size=None, pair=False):
    quant, num_rows, depth = _pack_w4_format(
        Checks("pack_w4", weight), weight, scales, zeros, g_idx, source, group_size
    )
    shape = num_blocks(num_rows, pair), quant.block_bytes(depth)
    return weight.new_empty(shape, dtype=torch.uint8)


@torch.library.register_fake("dflash::verify_gemm_w8")
@torch.library.register_fake("dflash::verify_gemm_w4")
def _(
    x,
    weight,
    format,
    bias=None,
    *,
    num_outputs=None,
    norm_weight=None,
    eps=1e-6,
    addend=None,
    act="none",
    residual=None,
    activations="float",
    out_dtype=None,
):
    if num_outputs is None:
        num_outputs = weight.shape[0] * (16 if act == "silu_mul" else 32)
    return x.new_empty((x.shape[0], num_outputs), dtype=out_dtype or x.dtype)


@torch.library.register_fake("dflash::pack_w8.out")
@torch.library.register_fake("dflash::pack_w4.out")
@torch.library.register_fake("dflash::verify_gemm_w8.out")
@torch.library.register_fake("dflash::verify_gemm_w4.out")
def _(*args, **kwargs):
    return None
