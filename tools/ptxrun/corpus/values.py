"""Operands: random ones, and those at which sums and conversions differ; the same everywhere."""

import hashlib

import numpy as np
from numpy.typing import NDArray

from .case import Words


def generator(name: str) -> np.random.Generator:
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return np.random.Generator(np.random.PCG64(seed))


def _float_bits(x: NDArray, kind: str) -> NDArray:
    """The nearest below in magnitude: bits of a narrower format, cut off."""
    bits = x.astype(np.float32).view(np.uint32)
    if kind == "f32":
        return bits
    if kind == "tf32":
        return bits & np.uint32(0xFFFFE000)
    if kind == "bf16":
        return (bits >> 16).astype(np.uint16)
    half = x.astype(np.float16).view(np.uint16)
    if kind == "f16":
        return half
    # e5m2 is the upper byte of f16; e4m3 has three bits of mantissa and another bias.
    if kind == "e5m2":
        return (half >> 8).astype(np.uint8)
    return _e4m3(x)


def _e4m3(x: NDArray) -> NDArray:
    bits = np.arange(127)  # 0x7f is NaN
    table = np.where(bits < 8, bits * 2.0**-9, (1 + bits % 8 / 8) * 2.0 ** (bits // 8 - 7.0))
    place = np.searchsorted(table, np.abs(x), side="right") - 1
    return (place + np.where(np.signbit(x), 128, 0)).astype(np.uint8)


# Largest exponent of the random spread, by format: products of two stay finite.
SPREAD = {"f32": 30, "tf32": 30, "bf16": 30, "f16": 6, "e5m2": 6, "e4m3": 4}


def floats(rng: np.random.Generator, shape: tuple[int, ...], how: str) -> NDArray:
    """`how`: normal, exact (small integers), spread:FORMAT (exponents far apart), cancel (pairs
    that nearly add up to nothing), special (NaN, infinities, zeros, the smallest numbers)."""
    x = rng.standard_normal(shape)
    if how == "exact":
        return rng.integers(-2, 3, shape).astype(np.float64)
    if how.startswith("spread"):
        most = SPREAD[how.partition(":")[2]]
        return x * 2.0 ** rng.integers(-most, most + 1, shape)
    if how == "cancel":
        big = rng.choice([-1.0, 1.0], shape) * 2.0 ** rng.integers(0, 4, shape)
        return np.where(rng.random(shape) < 0.5, big, x * 2.0**-9)
    if how == "special":
        odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 2.0**-14, 2.0**-133, 448.0])
        return np.where(rng.random(shape) < 0.02, rng.choice(odd, shape), x)
    return x


def words_of(rng: np.random.Generator, shape: tuple[int, ...], kind: str, how: str) -> Words:
    """Words full of elements of a format, whatever their layout."""
    per_word = {"f32": 1, "tf32": 1, "s32": 1, "bf16": 2, "f16": 2}.get(kind, 4)
    whole = (*shape, per_word)
    if kind in ("s8", "u8"):
        return rng.integers(0, 256, whole, dtype=np.uint8).view(np.uint32)[..., 0]
    if kind == "s32":
        return rng.integers(-(2**20), 2**20, shape, dtype=np.int32).view(np.uint32)
    how = f"spread:{kind}" if how == "spread" else how
    with np.errstate(over="ignore", invalid="ignore"):
        bits = _float_bits(floats(rng, whole, how), kind)
    return np.ascontiguousarray(bits).view(np.uint32)[..., 0]


def any_bits(rng: np.random.Generator, count: int) -> Words:
    """Words as fp32: all exponents, ties of the narrower formats, integers and their halves."""
    bits = rng.integers(0, 2**32, count, dtype=np.uint32)
    bits[: count // 4] = rng.standard_normal(count // 4).astype(np.float32).view(np.uint32)
    ties = bits[count // 4 : count // 2]
    ties &= np.uint32(0xFFFF0000)
    ties |= np.uint32(0x8000)  # half way between two bf16
    whole = rng.integers(-(2**17), 2**17, count // 8) / 2
    bits[count // 2 : count // 2 + count // 8] = whole.astype(np.float32).view(np.uint32)
    edges = [0, 1 << 31, 0x7F800000, 0xFF800000, 0x7FC00000, 0x3F800000, 0x00800000, 0x007FFFFF, 1]
    edges += [0x477FE000, 0x477FF000, 0x43E00000, 0x43E80000, 0x47600000, 0x4F000000, 0xCF000000]
    bits[-len(edges) :] = edges
    return bits
