"""Matrices of a model, plain or quantised as a file stores them, and the products with them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .. import QuantisedWeight, pack_w4, pack_w8, pack_weight, unpack

# The ops themselves, looked up once: what the public functions check first holds here.
_verify_gemm = torch.ops.dflash.verify_gemm.out
_verify_gemm_w4 = torch.ops.dflash.verify_gemm_w4.out
_verify_gemm_w8 = torch.ops.dflash.verify_gemm_w8.out

BLOCK_BYTES = {"q4_0": 18, "q4_1": 20, "q8_0": 34}  # GGUF: 32 numbers


@dataclass(frozen=True)
class QuantisedMatrix:
    """[outputs, inputs] in GGUF blocks."""

    source: str  # of BLOCK_BYTES
    weight: Tensor  # [outputs, bytes] uint8

    @property
    def shape(self) -> tuple[int, int]:
        outputs, row_bytes = self.weight.shape
        return outputs, row_bytes // BLOCK_BYTES[self.source] * 32

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes

    def pack(self, pair: bool = False) -> QuantisedWeight:
        if self.source == "q8_0":
            return pack_w8(self.weight, pair=pair)
        return pack_w4(self.weight, source=self.source, pair=pair)

    def values(self) -> Tensor:
        """The fp32 numbers that it stands for."""
        packed, format = self.pack()
        return unpack(packed, self.shape, format=format)


Matrix = Tensor | QuantisedMatrix


def plain(matrix: Matrix, dtype: torch.dtype) -> Tensor:
    return (matrix if isinstance(matrix, Tensor) else matrix.values()).to(dtype)


def stack(parts: Sequence[Matrix], dtype: torch.dtype) -> Matrix:
    """One below the other: quantised if all are alike, else plain in `dtype`."""
    first, quantised = parts[0], [part for part in parts if isinstance(part, QuantisedMatrix)]
    if isinstance(first, QuantisedMatrix) and len(quantised) == len(parts):
        if all(part.source == first.source for part in quantised):
            return replace(first, weight=torch.cat([part.weight for part in quantised]))
    return torch.cat([plain(part, dtype) for part in parts])


class Linear:
    """A packed matrix with the op that multiplies by it.

    Args:
        matrix: [outputs, inputs].
        pair: its rows are those of gate, then of up, for ``act="silu_mul"``.
    """

    def __init__(self, matrix: Matrix, pair: bool = False) -> None:
        self.num_outputs = matrix.shape[0] // (2 if pair else 1)
        self.format: str | None = None  # as the ops take it; None: of the activations' dtype
        self._weight: tuple[Any, ...]
        if isinstance(matrix, Tensor):
            self.packed = pack_weight(matrix, pair=pair)
            self._op, self._weight = _verify_gemm, (self.packed,)
        else:
            self.packed, self.format = matrix.pack(pair)
            self._op = _verify_gemm_w4 if self.format.startswith("int4") else _verify_gemm_w8
            self._weight = (self.packed, self.format)

    def __call__(self, x: Tensor, bias: Tensor | None = None, **options: Any) -> None:
        """The arguments of ``verify_gemm``, with `out`."""
        self._op(x, *self._weight, bias, num_outputs=self.num_outputs, **options)
