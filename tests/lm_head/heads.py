"""Heads and rows for the lm_head ops' tests."""

import torch

from dflash_ops import (
    lm_head_gather,
    lm_head_sample,
    lm_head_topk,
    lm_head_verify,
    pack_weight,
    verify_gemm,
)

# Both sides of a packed block, a block of the sum, a span; not multiples of any.
EDGES = [1, 2, 31, 32, 33, 63, 64, 65, 511, 512, 513, 1500]
# Greedy, unfiltered, filtered by a set of at most 64 ids, and by a larger one.
LAWS = {"temperature": [0.0, 0.8, 1.0, 1.3], "top_k": [0, 0, 7, 0], "top_p": [1.0, 1.0, 0.9, 0.97]}


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


def sampling(rows):
    """Rows are requests of their own; a row keeps its law in every call."""
    state = {
        name: torch.tensor(values).to(torch.int64 if name == "top_k" else torch.float32)
        for name, values in LAWS.items()
    }
    return state | {
        "positions": rows * 5 + 2,
        "cu_verify": torch.arange(len(rows) + 1),
        "req_rows": rows % 4,
        "seeds": torch.arange(4) + 3,
    }


def all_ops(h, weight, bias, rows, **options):
    """Every result of every op, for these rows of h."""
    ids = (rows[:, None] * 37 + torch.arange(3) * 91) % len(bias)
    ids = (ids + options.get("vocab_start", 0)).to(h.device)
    call = {"verify_rows": rows.to(h.device), **options}
    law = {name: t.to(h.device) for name, t in sampling(rows).items()}
    some = {name: law[name] for name in ("cu_verify", "req_rows", "temperature")}
    many = {"max_fallback_rows": max(len(rows), 1)}
    return (
        *lm_head_topk(h, weight, bias, k=1, **call),
        *lm_head_topk(h, weight, bias, k=9, **call),
        *lm_head_sample(h, weight, bias, **law, **many, **call),
        *lm_head_gather(h, weight, ids, bias, **some, **call),
        *lm_head_verify(h, weight, ids, bias, **law, **many, **call),
    )
