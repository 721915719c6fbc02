"""Products of a few rows with a weight, and the norm before them."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from ._check import FLOATS, Checks, _dtype_name, _shape_name, check_contiguous
from ._quant import check_pair, check_quantised, num_blocks, parse_format

BLOCK = 32
"""Outputs in one block of a packed weight."""


@torch.compiler.assume_constant_result
def workspace_bytes(
    op: str,
    device: str | torch.device,
    *,
    max_rows: int = 0,
    max_requests: int = 0,
    vocab_size: int = 0,
    max_fallback_rows: int = 0,
) -> int:
    """Bytes of workspace that an op needs for any call within these bounds.

    Args:
        op: name of an op that takes a workspace.
        device: ``"cpu"`` or ``"cuda"``, with or without an index.
        max_rows: most rows in a call.
        max_requests: most requests in a call.
        vocab_size: columns of the LM head on this device.
        max_fallback_rows: as the op's argument.

    Raises:
        ValueError: no such op or device, or a negative bound.
    """
    bounds = {
        "max_rows": max_rows,
        "max_requests": max_requests,
        "vocab_size": vocab_size,
        "max_fallback_rows": max_fallback_rows,
    }
    try:
        return torch.ops.dflash.workspace_bytes(op, str(device), **bounds)
    except RuntimeError as error:
        raise ValueError(str(error)) from None


def pack_weight(weight: Tensor, *, pair: bool = False, out: Tensor | None = None) -> Tensor:
    """Lay a weight out as the kernels read it: blocks of 32 outputs, one stream of memory.

    ``packed[b, i, j]`` holds, for output ``32 * b + j``, elements ``2 * i + 1`` and ``2 * i`` in
    this order (the even one in the high half of a 32-bit word); for float32 ``packed[b, k, j]`` is
    element ``k``. Padding is zero. The packed weight takes the original's place: :func:`unpack`
    gives it back. Large ones lie in huge pages where the system has them.

    Args:
        weight: ``[N, K]`` bfloat16, float16 or float32; last dimension contiguous.
        pair: the weight is ``[2 * I, K]``, gate rows and then up rows, for ``act="silu_mul"``:
            block b holds gate rows ``16 * b ..`` as outputs 0 .. 15, their up rows as 16 .. 31.
        out: contiguous tensor to write into.

    Returns:
        ``[ceil(N / 32), ceil(K / 2), 32, 2]``, for float32 ``[ceil(N / 32), K, 32]``; with
        ``pair`` ``ceil(I / 16)`` blocks. ``out`` if given.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape or stride is not as above.

    Reference: :func:`dflash_ops.reference.pack_weight`. Exact: results are equal, not close.
    """
    checks = Checks("pack_weight", weight)
    checks.tensor("weight", weight, FLOATS, "[N, K]", -1, -1)
    num_rows, depth = weight.shape
    _check_weight(checks, weight, weight.dtype, depth, -1, pair)
    if out is None:
        return torch.ops.dflash.pack_weight(weight, pair=pair)
    shape = _packed_shape(weight.dtype, num_rows, depth, pair)
    checks.tensor("out", out, (weight.dtype,), "[blocks, ...]", *shape)
    check_contiguous(checks, "out", out)
    torch.ops.dflash.pack_weight.out(weight, pair=pair, out=out)
    return out


def unpack(
    packed: Tensor,
    shape: tuple[int, int],
    *,
    pair: bool = False,
    format: str | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Undo :func:`pack_weight`, or give the numbers that a quantised weight stands for.

    Args:
        packed: as :func:`pack_weight`, :func:`pack_w8` or :func:`pack_w4` returns it.
        shape: ``(N, K)`` of the plain weight.
        pair: as it was given to the packing function.
        format: of a quantised weight, as its packing function returned it.
        out: ``[N, K]`` tensor of packed's dtype, float32 with ``format``; any strides.

    Returns:
        ``[N, K]``; ``out`` if given.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape or stride is not as above.

    Reference: :func:`dflash_ops.reference.unpack`. Exact: results are equal, not close.
    """
    checks = Checks("unpack", packed)
    if len(shape) != 2:
        raise ValueError(f"unpack: shape must be [N, K], got {_shape_name(shape)}")
    checks.at_least("shape[0]", shape[0], 0)
    checks.at_least("shape[1]", shape[1], 0)
    if format is None:
        _check_packed_rank(checks, packed)
        _check_weight(checks, packed, packed.dtype, shape[1], shape[0], pair, name="packed")
    else:
        quant = parse_format(checks, format)
        check_quantised(checks, packed, quant, shape[1], shape[0], pair, name="packed")
    if out is None:
        return torch.ops.dflash.unpack(packed, shape, pair=pair, format=format)
    dtype = packed.dtype if format is None else torch.float32
    checks.tensor("out", out, (dtype,), "[N, K]", *shape)
    torch.ops.dflash.unpack.out(packed, shape, pair=pair, format=format, out=out)
    return out


def rmsnorm(x: Tensor, weight: Tensor, *, eps: float = 1e-6, out: Tensor | None = None) -> Tensor:
    """Divide each row by its root mean square and scale its elements.

    ``y[m, h] = x[m, h] / sqrt(mean(x[m] ** 2) + eps) * weight[h]``, in float32, rounded once. The
    sum of squares runs in 16 chains (h mod 16) that are added pairwise, so a row has the same bits
    in every call, fused into :func:`verify_gemm` or not.

    Args:
        x: ``[M, H]`` bfloat16, float16 or float32; last dimension contiguous.
        weight: ``[H]`` bfloat16, float16 or float32; contiguous.
        eps: added to the mean square.
        out: ``[M, H]`` floating-point tensor to write into; any strides.

    Returns:
        ``[M, H]`` of x's dtype; ``out`` if given, which takes x's rounding first.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape, device or stride is not as above.

    Source: Zhang and Sennrich 2019 (arXiv:1910.07467).
    Reference: :func:`dflash_ops.reference.rmsnorm`, within the rounding of the fp32 sum and one
    rounding of the output.
    """
    if torch.compiler.is_compiling() or weight.device != x.device:
        _check_rmsnorm(x, weight, eps, out)
    try:
        if out is None:
            return torch.ops.dflash.rmsnorm(x, weight, eps=eps)
        torch.ops.dflash.rmsnorm.out(x, weight, eps=eps, out=out)
        return out
    except RuntimeError:  # checking before takes longer than a small norm
        _check_rmsnorm(x, weight, eps, out)
        raise


def _check_rmsnorm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None) -> None:
    checks = Checks("rmsnorm", x)
    checks.tensor("x", x, FLOATS, "[M, H]", -1, -1)
    checks.last_contiguous("x", x)
    checks.tensor("weight", weight, FLOATS, "[H]", x.shape[1])
    checks.last_contiguous("weight", weight)
    checks.at_least("eps", eps, 0)
    checks.tensor("out", out, FLOATS, "[M, H]", *x.shape)


def verify_gemm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    num_outputs: int | None = None,
    norm_weight: Tensor | None = None,
    eps: float = 1e-6,
    addend: Tensor | None = None,
    act: str = "none",
    residual: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Multiply rows by a weight, with the norm before and the activation after.

    ``y = act(rmsnorm(x) @ weight.T + bias + addend) + residual``; what is not given is left out.
    A row has the same bits whatever other rows are in the call, for any M and number of threads,
    with a plain and a packed weight. Each weight is read once for up to 64 rows.

    Sums run in float32 (k in order, in chunks of 512); from them on everything is float32 and
    rounded once, to ``out_dtype``. A fused norm is rounded to x's dtype first, as
    :func:`rmsnorm` does.

    Args:
        x: ``[M, K]`` bfloat16, float16 or float32; last dimension contiguous.
        weight: of x's dtype; ``[N, K]`` with its last dimension contiguous, or packed by
            :func:`pack_weight`. For ``silu_mul`` the gate rows and then the up rows; packed with
            ``pair=True``.
        bias: ``[N]`` floating-point; contiguous.
        num_outputs: columns of the output: N, or ``N / 2`` for ``silu_mul``. Default: as many as
            the weight has, with its padding where it is packed.
        norm_weight: ``[K]`` floating-point; x is RMS-normed first.
        eps: of the norm.
        addend: ``[M, N]`` floating-point, added before the activation; last dimension contiguous.
        act: ``"none"``, ``"silu"``, or ``"silu_mul"``: silu(gate) * up.
        residual: ``[M, num_outputs]`` floating-point, added last; last dimension contiguous. May
            be ``out``.
        out_dtype: bfloat16, float16 or float32. Default: x's, or that of ``out``.
        out: ``[M, num_outputs]`` floating-point tensor to write into; any strides.

    Returns:
        ``[M, num_outputs]``; ``out`` if given.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape, device, stride or option is not as above.

    Reference: :func:`dflash_ops.reference.verify_gemm`, within the rounding of the fp32 sums and
    one rounding of the output.
    """
    options: dict[str, Any] = {
        "num_outputs": num_outputs,
        "norm_weight": norm_weight,
        "eps": eps,
        "addend": addend,
        "act": act,
        "residual": residual,
    }
    return call_verify_gemm("verify_gemm", x, (weight,), bias, options, out_dtype, out)


def call_verify_gemm(
    name: str,
    x: Tensor,
    weight: tuple[Any, ...],
    bias: Tensor | None,
    options: dict[str, Any],
    out_dtype: torch.dtype | None,
    out: Tensor | None,
) -> Tensor:
    """Of all verify_gemm ops; `weight`: the tensor, and of a quantised one the format."""

    def check() -> None:
        checked = options | {"out_dtype": out_dtype, "out": out, "op": name}
        _check_verify_gemm(x, weight[0], bias, **checked, format=(*weight, None)[1])

    tensors = (weight[0], bias, options["norm_weight"], options["addend"], options["residual"], out)
    is_mixed = any(t is not None and t.device != x.device for t in tensors)
    if is_mixed or torch.compiler.is_compiling() or (out is not None and out_dtype is not None):
        check()
    op = getattr(torch.ops.dflash, name)
    try:
        if out is None:
            result: Tensor = op(x, *weight, bias, **options, out_dtype=out_dtype)
            return result
        op.out(x, *weight, bias, **options, out=out)
        return out
    except RuntimeError:  # checking before takes twice as long as a small product
        check()
        raise


def _check_verify_gemm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    num_outputs: int | None,
    norm_weight: Tensor | None,
    eps: float,
    addend: Tensor | None,
    act: str,
    residual: Tensor | None,
    out_dtype: torch.dtype | None,
    out: Tensor | None,
    op: str = "verify_gemm",
    format: str | None = None,
    activations: str = "float",
) -> None:
    """Of all verify_gemm ops; `format`: of a quantised weight."""
    checks = Checks(op, x)
    checks.tensor("x", x, FLOATS, "[M, K]", -1, -1)
    checks.last_contiguous("x", x)
    checks.one_of("act", act, "none", "silu", "silu_mul")
    pair = act == "silu_mul"
    if num_outputs is not None:
        checks.at_least("num_outputs", num_outputs, 0)
    rows, depth = x.shape
    wanted = -1 if num_outputs is None else num_outputs * (1 + pair)
    if format is None:
        width = _check_weight(checks, weight, x.dtype, depth, wanted, pair)
    else:
        quant = parse_format(checks, format)
        pack = "pack_" + op[-2:]
        if quant.bits != int(op[-1]):
            raise ValueError(f"{op}: format must be one of {pack}, got {format}")
        checks.one_of("activations", activations, "float", "int8")
        if activations == "int8" and quant.codes == "fp8":
            raise ValueError(f"{op}: activations must be float with fp8 weights, got int8")
        width = check_quantised(checks, weight, quant, depth, wanted, pair)
    outputs = width // (1 + pair)
    if out_dtype is not None and out_dtype not in FLOATS:
        wanted_name = " or ".join(_dtype_name(dtype) for dtype in FLOATS)
        raise TypeError(f"{op}: out_dtype must be {wanted_name}, got {_dtype_name(out_dtype)}")
    checks.tensor("bias", bias, FLOATS, "[N]", width)
    checks.last_contiguous("bias", bias)
    checks.tensor("norm_weight", norm_weight, FLOATS, "[K]", depth)
    checks.last_contiguous("norm_weight", norm_weight)
    checks.at_least("eps", eps, 0)
    checks.tensor("addend", addend, FLOATS, "[M, N]", rows, width)
    checks.last_contiguous("addend", addend)
    checks.tensor("residual", residual, FLOATS, "[M, num_outputs]", rows, outputs)
    checks.last_contiguous("residual", residual)
    dtypes = FLOATS if out_dtype is None else (out_dtype,)
    checks.tensor("out", out, dtypes, "[M, num_outputs]", rows, outputs)


def _packed_shape(dtype: torch.dtype, num_rows: int, depth: int, pair: bool) -> tuple[int, ...]:
    blocks = num_blocks(num_rows, pair)
    if dtype == torch.float32:
        return blocks, depth, BLOCK
    return blocks, (depth + 1) // 2, BLOCK, 2


def _check_packed_rank(checks: Checks, packed: Tensor) -> None:
    if packed.dim() == 2:
        raise ValueError(f"{checks.op}: packed must have 3 or 4 dimensions, got 2")
    if packed.dtype not in FLOATS:
        checks.tensor("packed", packed, FLOATS, "")


def _check_weight(
    checks: Checks,
    weight: Tensor,
    dtype: torch.dtype,
    depth: int,
    num_rows: int,
    pair: bool,
    name: str = "weight",
) -> int:
    """The twin of csrc/gemm/weight.h. `num_rows` -1: as many as it holds. Returns how many."""
    if weight.dim() == 2:
        checks.tensor(name, weight, (dtype,), "[N, K]", num_rows, depth)
        checks.last_contiguous(name, weight)
        num_rows = weight.shape[0]
    else:
        shape = _packed_shape(dtype, num_rows, depth, pair)
        if num_rows < 0:
            shape = (-1, *shape[1:])
        dims = "[blocks, K, 32]" if dtype == torch.float32 else "[blocks, K / 2, 32, 2]"
        checks.tensor(name, weight, (dtype,), f"[N, K] or packed {dims}", *shape)
        check_contiguous(checks, name, weight)
        num_rows = weight.shape[0] * BLOCK if num_rows < 0 else num_rows
    check_pair(checks, name, num_rows, pair)
    return num_rows


@torch.library.register_fake("dflash::pack_weight")
def _(weight, *, pair=False):
    num_rows, depth = weight.shape
    return weight.new_empty(_packed_shape(weight.dtype, num_rows, depth, pair))


@torch.library.register_fake("dflash::unpack")
def _(packed, shape, *, pair=False, format=None):
    return packed.new_empty(shape, dtype=packed.dtype if format is None else torch.float32)


@torch.library.register_fake("dflash::rmsnorm")
def _(x, weight, *, eps=1e-6):
    return x.new_empty(x.shape)


@torch.library.register_fake("dflash::verify_gemm")
def _(
    x,
    weight,
    bias=None,
    *,
    num_outputs=None,
    norm_weight=None,
    eps=1e-6,
    addend=None,
    act="none",
    residual=None,
    out_dtype=None,
):
    if num_outputs is None:
        rows = weight.shape[0] * (1 if weight.dim() == 2 else BLOCK)
        num_outputs = rows // 2 if act == "silu_mul" else rows
    return x.new_empty((x.shape[0], num_outputs), dtype=out_dtype or x.dtype)


@torch.library.register_fake("dflash::pack_weight.out")
@torch.library.register_fake("dflash::unpack.out")
@torch.library.register_fake("dflash::rmsnorm.out")
@torch.library.register_fake("dflash::verify_gemm.out")
def _(*args, **kwargs):
    return None


@torch.library.register_fake("dflash::workspace_bytes")
def _(op, device, **bounds):
    with _disable_current_modes():  # there is nothing to fake
        return torch.ops.dflash.workspace_bytes(op, device, **bounds)
