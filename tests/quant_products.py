"""What the tests of verify_gemm_w8 and verify_gemm_w4 share."""

from dataclasses import dataclass

import torch
from bounds import assert_within
from torch import Tensor

from dflash_ops import reference, rmsnorm
from dflash_ops.reference.quantised import Quantised


def bits(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.int32 if x.dtype == torch.float32 else torch.int16)


def magnitudes(q: Quantised) -> Tensor:
    """Sizes of the terms of each weight: code * scale, and the value of code 8, the offset."""
    if q.kind != "int4":
        return q.values().abs().double()
    codes = Quantised(q.kind, q.group, q.codes, q.scales).values().double()
    offset = q.values().double() - codes
    return codes.abs() + offset.abs()


@dataclass
class Terms:
    """Random options of a product."""

    bias: Tensor | None = None
    addend: Tensor | None = None
    residual: Tensor | None = None
    norm_weight: Tensor | None = None

    @staticmethod
    def random(names: set[str], rows: int, width: int, outputs: int, depth: int, dtype) -> "Terms":
        shapes = {
            "bias": (width,),
            "addend": (rows, width),
            "residual": (rows, outputs),
            "norm_weight": (depth,),
        }
        return Terms(**{name: torch.randn(shapes[name]).to(dtype) for name in sorted(names)})

    def given(self) -> dict[str, Tensor]:
        return {name: t for name, t in vars(self).items() if t is not None}


def assert_product(got: Tensor, x: Tensor, q: Quantised, act: str, terms: Terms) -> None:
    """Within the rounding of the sums; alone, no worse than torch with the same values in fp32."""
    options = terms.given()
    if "norm_weight" in options:  # it has its own test; what it rounds to is the product's input
        x = rmsnorm(x, options.pop("norm_weight"))
    want = reference.verify_gemm(x, q.values(), act=act, **options)
    sizes = {name: t.abs() for name, t in options.items() if name != "residual"}
    size = reference.verify_gemm(x.abs(), magnitudes(q), **sizes)
    if act == "silu_mul":  # |silu'| <= 1.1, |silu(y)| <= |y|
        gate, up = size.chunk(2, dim=-1)
        size = 2.1 * gate * up
    elif act == "silu":
        size = 1.1 * size
    residual = options["residual"].double().abs() if "residual" in options else 0
    peer = None
    if act == "none" and not options:
        peer = torch.nn.functional.linear(x.float(), q.values()).to(got.dtype)
    assert_within(got, want, terms=size + residual, from_torch=peer)
