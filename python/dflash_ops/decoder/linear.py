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
    """[outputs, inputs] as a file stores it: what pack_w8 (q8_0) and pack_w4 take."""

    source: str
    weight: Tensor
    scales: Tensor | None = None  # GPTQ, AWQ
    zeros: Tensor | None = None
    group_size: int | None = None

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.weight.shape
        if self.source in BLOCK_BYTES:
            return rows, columns // BLOCK_BYTES[self.source] * 32
        return (columns * 8, rows) if self.source == "awq" else (columns, rows * 8)

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in (self.weight, self.scales, self.zeros) if t is not None)

    def pack(self, pair: bool = False) -> QuantisedWeight:
        if self.source == "q8_0":
            return pack_w8(self.weight, pair=pair)
        return pack_w4(
            self.weight,
            self.scales,
            self.zeros,
            source=self.source,
            group_size=self.group_size,
            pair=pair,
        )

    def values(self) -> Tensor:
        """The fp32 numbers that it stands for."""
        packed, format = self.pack()
        return unpack(packed, self.shape, format=format)

    def is_like(self, other: "QuantisedMatrix") -> bool:
        """Whether the two can stand one below the other: zeros are in words of eight outputs."""

        def layout(m: QuantisedMatrix) -> tuple[Any, ...]:
            scales = None if m.scales is None else m.scales.dtype
            return m.source, m.group_size, scales, m.zeros is None

        words = self.zeros is None or self.shape[0] % 8 == other.shape[0] % 8 == 0
        return words and layout(self) == layout(other)

    def above(self, others: Sequence["QuantisedMatrix"]) -> "QuantisedMatrix":
        def join(name: str) -> Tensor | None:
            parts = [getattr(m, name) for m in (self, *others)]
            dim = 0 if self.source in BLOCK_BYTES else 1
            return None if parts[0] is None else torch.cat(parts, dim)

        weight = join("weight")
        assert weight is not None
        return replace(self, weight=weight, scales=join("scales"), zeros=join("zeros"))


Matrix = Tensor | QuantisedMatrix


def plain(matrix: Matrix, dtype: torch.dtype) -> Tensor:
    return (matrix if isinstance(matrix, Tensor) else matrix.values()).to(dtype)


def stack(parts: Sequence[Matrix], dtype: torch.dtype) -> Matrix:
    """One below the other: quantised if all are alike, else plain in `dtype`."""
    quantised = [part for part in parts if isinstance(part, QuantisedMatrix)]
    if len(quantised) == len(parts) and all(part.is_like(quantised[0]) for part in quantised):
        return quantised[0].above(quantised[1:])
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
