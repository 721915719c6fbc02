"""The noise of every sampler in float64: Philox words, Gumbel noise and coins (docs/noise.md)."""

import torch
from torch import Tensor

TARGET, DRAFT, COIN, RESIDUAL = range(4)  # streams
_MASK = 0xFFFFFFFF
_EXTEND_BELOW = 2**24


def philox(key: Tensor, counter: Tensor) -> Tensor:
    """Philox4x32-10. key: int64 [...], counter: int64 [..., 4] of 32 bits; words [..., 4]."""
    c0, c1, c2, c3 = counter.unbind(-1)
    k0, k1 = key & _MASK, (key >> 32) & _MASK
    for _ in range(10):
        # The products are 64 bits wide: int64 wraps, and the shifts below take its bits.
        p0, p2 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = ((p2 >> 32) & _MASK) ^ c1 ^ k0, p2 & _MASK
        c2, c3 = ((p0 >> 32) & _MASK) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return torch.stack((c0, c1, c2, c3), dim=-1)


def purpose(stream: int, ordinal: int = 0, parent_row: int = 0) -> int:
    return stream | ordinal << 3 | parent_row << 12


def _words(
    seed: int, groups: Tensor, token_idx: int, purpose: int, anchor_idx: int
) -> tuple[Tensor, Tensor]:
    """The words [..., 4] of each group, and the 32 bits below them."""
    key = torch.full_like(groups, seed)
    rest = [torch.full_like(groups, x & _MASK) for x in (token_idx, purpose, anchor_idx)]
    counter = torch.stack((groups & _MASK, *rest), dim=-1)
    extended = counter.clone()
    extended[..., 2] |= 4
    return philox(key, counter), philox(key, extended)


def gumbel_of(word: Tensor, low: Tensor) -> Tensor:
    """-log(-log(1 - x)), x = (word + 1/2) 2^-32; below 2^24, of the 64 bits (word, low)."""
    word, low = word.double(), low.double()
    x = torch.where(
        word < _EXTEND_BELOW, (word * 2**32 + low + 0.5) / 2.0**64, (word + 0.5) / 2.0**32
    )
    above = (2.0**32 - word - 0.5) / 2.0**32  # 1 - x without cancellation
    return -torch.where(word < 2**31, -torch.log1p(-x), -torch.log(above)).log()


def gumbel(
    seed: int,
    ids: Tensor,
    token_idx: int,
    purpose: int = TARGET,
    anchor_idx: int = 0,
) -> Tensor:
    """Noise of the given ids, float64."""
    words, low = _words(seed, ids >> 2, token_idx, purpose, anchor_idx)
    column = (ids & 3)[..., None]
    return gumbel_of(words.gather(-1, column)[..., 0], low.gather(-1, column)[..., 0])


def coin_of(word: int, low: int) -> float:
    """(word + 1/2) 2^-32, or of 64 bits, cut to the 24 bits of a float32."""
    is_wide = word < _EXTEND_BELOW
    odd, scale = (2 * (word << 32 | low) + 1, 65) if is_wide else (2 * word + 1, 33)
    cut = max(odd.bit_length() - 24, 0)
    return float(odd >> cut << cut) / 2.0**scale


def coin(seed: int, local_row: int, token_idx: int, anchor_idx: int, parent_row: int) -> float:
    """The coin that tests the node in `local_row`."""
    row = torch.tensor(local_row)
    words, low = _words(seed, row, token_idx, purpose(COIN, 0, parent_row), anchor_idx)
    return coin_of(int(words[0]), int(low[0]))
