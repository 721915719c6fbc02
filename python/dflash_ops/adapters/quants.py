"""GGUF block formats: bytes of blocks -> fp32 values.

A value is q * d, (q - z) * d or q * d + m with the stored scales d, m. The products are exact in
fp32 (at most 24 significant bits), so there is at most one rounding: that of the last addition, or
for Q6_K that of the last product.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Blocks = np.ndarray  # [count, bytes] uint8


def _halves(blocks: Blocks, begin: int) -> np.ndarray:
    """The fp16 number at byte `begin` of each block, as fp32 [count, 1]."""
    return np.ascontiguousarray(blocks[:, begin : begin + 2]).view(np.float16).astype(np.float32)


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """[.., n] bytes -> [.., 2n]: all low halves, then all high halves."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _f32(blocks: Blocks) -> np.ndarray:
    return np.ascontiguousarray(blocks).view(np.float32)


def _f16(blocks: Blocks) -> np.ndarray:
    return _halves(blocks, 0)


def _bf16(blocks: Blocks) -> np.ndarray:
    upper = np.ascontiguousarray(blocks).view(np.uint16).astype(np.uint32) << 16
    return upper.view(np.float32)


def _q8_0(blocks: Blocks) -> np.ndarray:
    return _halves(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _q4_0(blocks: Blocks) -> np.ndarray:
    return _halves(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _q4_1(blocks: Blocks) -> np.ndarray:
    return _halves(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + _halves(blocks, 2)


def _q5_0(blocks: Blocks) -> np.ndarray:
    fifth = np.unpackbits(blocks[:, 2:6], axis=1, bitorder="little")
    values = _nibbles(blocks[:, 6:]) | fifth << 4
    return _halves(blocks, 0) * (values.astype(np.float32) - 16)


def _q4_k(blocks: Blocks) -> np.ndarray:
    """Eight groups of 32 with 6-bit scales and minima: q * (d * scale) - (dmin * minimum)."""
    packed = blocks[:, 4:16]
    low, high = packed[:, 0:8], packed[:, 8:12]
    scale = np.concatenate([low[:, :4] & 63, (high & 15) | low[:, :4] >> 6 << 4], axis=1)
    minimum = np.concatenate([low[:, 4:] & 63, high >> 4 | low[:, 4:] >> 6 << 4], axis=1)
    scale = _halves(blocks, 0) * scale.astype(np.float32)
    minimum = _halves(blocks, 2) * minimum.astype(np.float32)
    values = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32).astype(np.float32)
    return values * scale[:, :, None] - minimum[:, :, None]


def _q6_k(blocks: Blocks) -> np.ndarray:
    """Sixteen groups of 16 with int8 scales: (q - 32) * (d * scale)."""
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64))  # [count, 2, 128]
    pairs = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6])[:, None] & 3
    values = low | pairs.astype(np.uint8).reshape(-1, 2, 128) << 4
    scale = _halves(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return (values.astype(np.float32).reshape(-1, 16, 16) - 32) * scale[:, :, None]


@dataclass(frozen=True)
class Format:
    name: str
    values: int  # in a block
    bytes: int
    dequantise: Callable[[Blocks], np.ndarray]


FORMATS = {  # by ggml's type number
    0: Format("F32", 1, 4, _f32),
    1: Format("F16", 1, 2, _f16),
    2: Format("Q4_0", 32, 18, _q4_0),
    3: Format("Q4_1", 32, 20, _q4_1),
    6: Format("Q5_0", 32, 22, _q5_0),
    8: Format("Q8_0", 32, 34, _q8_0),
    12: Format("Q4_K", 256, 144, _q4_k),
    14: Format("Q6_K", 256, 210, _q6_k),
    30: Format("BF16", 1, 2, _bf16),
}
