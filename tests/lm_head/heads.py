"""Heads and rows for the lm_head ops' tests."""

import torch

from dflash_ops import pack_weight, verify_gemm

# Both sides of a packed block, a block of the sum, a span; not multiples of any.
EDGES = [1, 2, 31, 32, 33, 63, 64, 65, 511, 512, 513, 1500]


def random_head(seed, rows, vocab, hidden, dtype=torch.float32, exact=False, scale=1.0):
    """h, weight, bias. exact: entries in {-1, 0, 1}, so that sums are exact and ties abound."""
    g = torch.Generator().manual_seed(seed)
    if exact:
        h, weight = (torch.randint(-1, 2, (n, hidden), generator=g) for n in (rows, vocab))
        bias = torch.randint(-1, 2, (vocab,), generator=g)
    else:
        h = torch.randn(rows, hidden, generator=g) * scale
        weight = torch.randn(vocab, hidden, generator=g) / hidden**0.5
        bias = torch.randn(vocab, generator=g)
    return h.to(dtype), weight.to(dtype), bias.to(dtype)


def fp32_logits(h, weight, bias=None, norm_weight=None, eps=1e-6):
    return verify_gemm(h, weight, bias, norm_weight=norm_weight, eps=eps, out_dtype=torch.float32)


def both_layouts(weight):
    return weight, pack_weight(weight)


def gemm_terms(h, weight):
    """Sum of the absolute addends of each logit, float64."""
    return h.double().abs() @ weight.double().abs().T
