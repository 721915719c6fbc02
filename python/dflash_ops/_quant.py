"""Formats of packed quantised weights, and the check of such an argument: the twin of
csrc/gemm/quant_weight.h, word for word."""

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from ._check import Checks, check_contiguous

GROUPS = (32, 64, 128, 256, 512)
SCALES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
CODES = {torch.int8: "int8", torch.float8_e4m3fn: "fp8"}

_NAME = re.compile(r"(int4|int8|fp8)_(fp16|bf16|fp32)_g(32|64|128|256|512)(?:_(zeros|mins))?")


@dataclass(frozen=True)
class QuantFormat:
    """``int4_fp16_g32_mins``: codes, type of the scales, k that share a scale, and what else the
    value has: ``c * s``, ``(q - z) * s`` with zeros or ``q * s + m`` with mins."""

    codes: str
    scales: str
    group: int
    offset: str = ""

    def __str__(self) -> str:
        suffix = f"_{self.offset}" if self.offset else ""
        return f"{self.codes}_{self.scales}_g{self.group}{suffix}"

    @property
    def bits(self) -> int:
        return 4 if self.codes == "int4" else 8

    def block_bytes(self, depth: int) -> int:
        """Of 32 outputs."""
        code_bytes = -(-depth * self.bits // 32) * 32 * 4
        scale_bytes = 32 * SCALES[self.scales].itemsize * (2 if self.offset else 1)
        return code_bytes + -(-depth // self.group) * scale_bytes


def scales_name(dtype: torch.dtype) -> str:
    return next(name for name, scales in SCALES.items() if scales == dtype)


def parse_format(checks: Checks, text: str, name: str = "format") -> QuantFormat:
    match = _NAME.fullmatch(text)
    codes, scales, group, offset = match.groups() if match else ("", "", "0", "")
    if not match or (offset and codes != "int4") or (offset == "mins" and scales != "fp16"):
        raise ValueError(
            f"{checks.op}: {name} must be as pack_w8 or pack_w4 names it, like "
            f"int4_fp16_g32_mins, got {text}"
        )
    return QuantFormat(codes, scales, int(group), offset or "")


def num_blocks(num_rows: int, pair: bool) -> int:
    return -(-num_rows // 2 // 16) if pair else -(-num_rows // 32)


def check_pair(checks: Checks, name: str, num_rows: int, pair: bool) -> None:
    if pair and num_rows % 2:
        raise ValueError(f"{checks.op}: {name} must have an even number of rows, got {num_rows}")


def check_quantised(
    checks: Checks,
    weight: Tensor,
    quant: QuantFormat,
    depth: int,
    num_rows: int,
    pair: bool,
    name: str = "weight",
) -> int:
    """`num_rows` -1: as many as it holds. Returns how many."""
    blocks = -1 if num_rows < 0 else num_blocks(num_rows, pair)
    shape = (blocks, quant.block_bytes(depth))
    checks.tensor(name, weight, (torch.uint8,), "[blocks, block_bytes]", *shape)
    check_contiguous(checks, name, weight)
    num_rows = weight.shape[0] * 32 if num_rows < 0 else num_rows
    check_pair(checks, name, num_rows, pair)
    return num_rows
