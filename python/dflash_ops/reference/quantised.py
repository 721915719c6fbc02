"""Quantised weights: read as their makers write them, laid out, and turned into numbers."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .gemm import rmsnorm, verify_gemm

SCALES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
AWQ_NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)  # which nibble of a word an output has


@dataclass
class Quantised:
    kind: str  # int4, int8 or fp8
    group: int
    codes: Tensor  # [N, K] uint8
    scales: Tensor  # [N, groups]
    offset: str = ""  # zeros or mins
    terms: Tensor | None = None  # [N, groups], in the type of the scales

    def values(self) -> Tensor:
        """fp32: exact, but for one rounding with mins or fp32 scales."""
        scales = self._of_each_k(self.scales)
        if self.kind == "fp8":
            return self.codes.view(torch.float8_e4m3fn).float() * scales
        if self.kind == "int8":
            return self.codes.view(torch.int8).float() * scales
        codes = self.codes.float()
        if self.terms is None:
            return (codes - 8) * scales
        terms = self._of_each_k(self.terms)
        return codes * scales + terms if self.offset == "mins" else (codes - terms) * scales

    def _of_each_k(self, numbers: Tensor) -> Tensor:
        return numbers.float().repeat_interleave(self.group, 1)[:, : self.depth]

    @property
    def depth(self) -> int:
        return self.codes.shape[1]


def _view(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The bits of a copy; of an empty one too, which may be contiguous with any strides."""
    return x.clone(memory_format=torch.contiguous_format).view(dtype)


def read_w8(weight: Tensor, scales: Tensor | None, block: tuple[int, int] | None) -> Quantised:
    num_rows = len(weight)
    if weight.dtype == torch.uint8:
        blocks = weight.unflatten(1, (-1, 34))
        scales = _view(blocks[..., :2], torch.float16)[..., 0]
        return Quantised("int8", 32, blocks[..., 2:].flatten(1), scales)
    assert scales is not None
    depth = weight.shape[1]
    block_rows, group = block or (1, depth)
    scales = scales[torch.arange(num_rows) // block_rows]
    if group >= depth:
        group, scales = 512, scales.expand(-1, -(-depth // 512))
    kind = "int8" if weight.dtype == torch.int8 else "fp8"
    return Quantised(kind, group, weight.view(torch.uint8), scales)


def _nibbles(words: Tensor) -> Tensor:
    """int32 [.., n] -> [.., n, 8]."""
    return (words[..., None] >> torch.arange(0, 32, 4) & 15).to(torch.uint8)


def read_w4(
    weight: Tensor,
    scales: Tensor | None,
    zeros: Tensor | None,
    source: str,
    group_size: int | None,
) -> Quantised:
    if source in ("q4_0", "q4_1"):
        head = 2 if source == "q4_0" else 4
        blocks = weight.unflatten(1, (-1, head + 16))
        halves = _view(blocks[..., :head], torch.float16)
        codes = torch.cat([blocks[..., head:] & 15, blocks[..., head:] >> 4], -1).flatten(1)
        if source == "q4_0":
            return Quantised("int4", 32, codes, halves[..., 0])
        return Quantised("int4", 32, codes, halves[..., 0], "mins", halves[..., 1])
    assert scales is not None and group_size is not None
    nibbles = _nibbles(weight)
    if source == "awq":
        codes = nibbles[..., AWQ_NIBBLES].flatten(1).T
    else:
        codes = nibbles.transpose(0, 1).flatten(1)
    num_rows, depth = codes.shape
    scales = scales.T
    terms = None
    if zeros is not None:
        nibbles = _nibbles(zeros)
        if source == "awq":
            nibbles = nibbles[..., AWQ_NIBBLES]
        terms = nibbles.flatten(1)[:, :num_rows].T
        terms = ((terms + (source == "gptq")) % 16).to(scales.dtype)
    if group_size < 0:
        group_size, groups = 512, -(-depth // 512)
        scales = scales.expand(-1, groups)
        terms = None if terms is None else terms.expand(-1, groups)
    return Quantised("int4", group_size, codes, scales, "" if zeros is None else "zeros", terms)


def _rows_of_lanes(num_rows: int, pair: bool) -> Tensor:
    """[blocks, 32]: row of every output; num_rows: none."""
    if not pair:
        return F.pad(torch.arange(num_rows), (0, -num_rows % 32), value=num_rows).unflatten(
            0, (-1, 32)
        )
    half = num_rows // 2
    gate = F.pad(torch.arange(half), (0, -half % 16), value=num_rows).unflatten(0, (-1, 16))
    return torch.cat([gate, torch.where(gate < half, gate + half, num_rows)], 1)


def _shifts(kind: str) -> Tensor:
    """Where the codes of a word stand: the even ones in its high half."""
    bits = 4 if kind == "int4" else 8
    i = torch.arange(32 // bits)
    return i // 2 * bits + torch.where(i % 2 == 0, 16, 0)


def _lines(q: Quantised, group: int, lanes: Tensor) -> list[Tensor]:
    """Bytes of a group's scales, and of its zeros or mins."""
    numbers = [n[:, group] for n in (q.scales, q.terms) if n is not None]
    return [_view(F.pad(n, (0, 1))[lanes], torch.uint8) for n in numbers]


def lay_out(q: Quantised, pair: bool, layout: str = "cpu") -> Tensor:
    """`layout`: that of the device class, "cpu" or "cuda"."""
    if layout == "cuda":
        return _lay_out_cuda(q, pair)
    lanes = _rows_of_lanes(len(q.codes), pair)
    shifts = _shifts(q.kind)
    zero = 8 if q.kind == "int4" else 0
    codes = F.pad(q.codes, (0, 0, 0, 1), value=zero)[lanes].long()  # [blocks, 32, K]
    pieces = [torch.empty(len(lanes), 0, dtype=torch.uint8)]
    for group, part in enumerate(codes.split(q.group, -1) if q.depth else ()):
        part = F.pad(part, (0, -part.shape[-1] % len(shifts)), value=zero)
        words = (part.unflatten(-1, (-1, len(shifts))) << shifts).sum(-1)
        pieces.append(_view(words.mT.to(torch.int32), torch.uint8).flatten(1))
        pieces += _lines(q, group, lanes)
    return torch.cat(pieces, 1)


CHUNK_WORDS = 16  # of a row: 64 bytes


def _rows_of_tiles(num_rows: int, pair: bool) -> Tensor:
    """[blocks, 2, 16]: row of every output; of a pair 8 gate rows and their up rows."""
    if not pair:
        return _rows_of_lanes(num_rows, pair).unflatten(1, (2, 16))
    return _rows_of_lanes(num_rows, pair).unflatten(1, (2, 2, 8)).transpose(1, 2).flatten(2)


def _turned(kind: str) -> Tensor:
    """Which word stands at each place of a whole chunk's row: lane t of four has k = 8 t and on of
    every 32."""
    lane, i = torch.arange(CHUNK_WORDS) // 4, torch.arange(CHUNK_WORDS) % 4
    return 4 * i + lane if kind == "int4" else i // 2 * 8 + 2 * lane + i % 2


def _lay_out_cuda(q: Quantised, pair: bool) -> Tensor:
    """Codes of 16 rows in chunks of 64 bytes a row, of the other 16, and the groups' lines."""
    tiles = _rows_of_tiles(len(q.codes), pair)
    shifts = _shifts(q.kind) ^ 16  # the even codes in the low half
    zero = 8 if q.kind == "int4" else 0
    codes = F.pad(q.codes, (0, -q.depth % len(shifts), 0, 1), value=zero)[tiles].long()
    words = (codes.unflatten(-1, (-1, len(shifts))) << shifts).sum(-1)  # [blocks, 2, 16, words]
    pieces = [torch.empty(*tiles.shape[:2], 0, dtype=torch.int64)]
    for chunk in words.split(CHUNK_WORDS, -1):
        whole = chunk.shape[-1] == CHUNK_WORDS
        pieces.append((chunk[..., _turned(q.kind)] if whole else chunk).flatten(2))
    parts = [_view(torch.cat(pieces, 2).flatten(1).to(torch.int32), torch.uint8)]
    for group in range(-(-q.depth // q.group)):
        parts += _lines(q, group, tiles.flatten(1))
    return torch.cat(parts, 1)


class _Reader:
    """Takes a packed weight's bytes in order."""

    def __init__(self, packed: Tensor) -> None:
        self.packed, self.at = packed, 0

    def take(self, count: int, dtype: torch.dtype) -> Tensor:
        begin, self.at = self.at, self.at + count * dtype.itemsize
        return _view(self.packed[:, begin : self.at], dtype)


def parse(
    packed: Tensor, shape: tuple[int, int], pair: bool, format: str, layout: str = "cpu"
) -> Quantised:
    """Undoes :func:`lay_out`."""
    kind, scale_name, group_name, *offset = format.split("_")
    group, scale_dtype = int(group_name[1:]), SCALES[scale_name]
    num_rows, depth = shape
    mask, reader = 15 if kind == "int4" else 255, _Reader(packed)
    lines = []

    def take_lines() -> None:
        lines.append([reader.take(32, scale_dtype) for _ in range(1 + len(offset))])

    if layout == "cuda":
        codes = _codes_cuda(reader, kind, depth)
        for _ in range(0, depth, group):
            take_lines()
        lanes = _rows_of_tiles(num_rows, pair).flatten()
    else:
        shifts = _shifts(kind)
        parts = [torch.empty(len(packed), 32, 0, dtype=torch.uint8)]
        for first in range(0, depth, group):
            num_k = min(group, depth - first)
            num_words = -(-num_k // len(shifts))
            words = reader.take(num_words * 32, torch.int32).unflatten(1, (-1, 32)).mT
            part = words[..., None] >> shifts & mask
            parts.append(part.flatten(2)[..., :num_k].to(torch.uint8))
            take_lines()
        codes = torch.cat(parts, -1)
        lanes = _rows_of_lanes(num_rows, pair).flatten()
    rows = torch.argsort(lanes)[:num_rows]
    empty = torch.empty(num_rows, 0, dtype=scale_dtype)
    scales, *terms = (
        torch.stack(line, -1).flatten(0, 1)[rows] if lines else empty
        for line in (zip(*lines, strict=True) if lines else [()] * (1 + len(offset)))
    )
    return Quantised(kind, group, codes.flatten(0, 1)[rows], scales, "".join(offset), *terms)


def _codes_cuda(reader: _Reader, kind: str, depth: int) -> Tensor:
    """[blocks, 32, K]."""
    if depth == 0:
        return torch.empty(len(reader.packed), 32, 0, dtype=torch.uint8)
    shifts = _shifts(kind) ^ 16
    row_words = -(-depth // len(shifts))
    words = reader.take(32 * row_words, torch.int32).unflatten(1, (2, 16 * row_words))
    parts = []
    for chunk in words.split(16 * CHUNK_WORDS, -1):
        chunk = chunk.unflatten(2, (16, -1))
        whole = chunk.shape[-1] == CHUNK_WORDS
        parts.append(chunk[..., torch.argsort(_turned(kind))] if whole else chunk)
    codes = torch.cat(parts, -1)[..., None] >> shifts & (15 if kind == "int4" else 255)
    return codes.flatten(3)[..., :depth].flatten(1, 2).to(torch.uint8)


def pack_w8(
    weight: Tensor,
    scales: Tensor | None = None,
    *,
    block: tuple[int, int] | None = None,
    pair: bool = False,
    layout: str = "cpu",
) -> Tensor:
    return lay_out(read_w8(weight, scales, block), pair, layout)


def pack_w4(
    weight: Tensor,
    scales: Tensor | None = None,
    zeros: Tensor | None = None,
    *,
    source: str,
    group_size: int | None = None,
    pair: bool = False,
    layout: str = "cpu",
) -> Tensor:
    return lay_out(read_w4(weight, scales, zeros, source, group_size), pair, layout)


def round_to_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and scales [M, K / 32] of rows, as W4A8 rounds them; fp32, as this is a definition."""
    padded = F.pad(x.float(), (0, -x.shape[1] % 32)).unflatten(1, (-1, 32))
    largest = padded.abs().amax(-1)
    most = torch.tensor(127.0)  # a number would become a product with a reciprocal
    inverse = torch.where(largest > 0, most / largest, 0)
    codes = (padded * inverse[..., None]).round().flatten(1)[:, : x.shape[1]]
    scales = torch.where(padded.isfinite().all(-1), largest / most, torch.nan)
    return codes, scales


def verify_gemm_w8(
    x: Tensor,
    weight: Tensor,
    format: str,
    bias: Tensor | None = None,
    *,
    num_outputs: int,
    activations: str = "float",
    layout: str = "cpu",
    **options: Any,
) -> Tensor:
    """:func:`verify_gemm` with the values of a packed weight."""
    pair = options.get("act") == "silu_mul"
    q = parse(weight, (num_outputs * (1 + pair), x.shape[1]), pair, format, layout)
    if activations == "int8":
        norm_weight, eps = options.pop("norm_weight", None), options.pop("eps", 1e-6)
        if norm_weight is not None:
            x = rmsnorm(x, norm_weight, eps=eps).to(x.dtype)
        codes, scales = round_to_int8(x)
        x = codes.double() * scales.double().repeat_interleave(32, 1)[:, : x.shape[1]]
    return verify_gemm(x, q.values(), bias, **options)


def verify_gemm_w4(
    x: Tensor, weight: Tensor, format: str, bias: Tensor | None = None, **options: Any
) -> Tensor:
    return verify_gemm_w8(x, weight, format, bias, **options)
