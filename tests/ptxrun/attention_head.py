"""The attention head of programs/attention.cu, and what it must give."""

import math
from pathlib import Path

import ptxrun
import torch

ROWS, DIM = 16, 64


def program():
    return ptxrun.Program(Path(__file__).parent / "programs/attention.cu", "sm_80")


def operands(num_keys, heads=1):
    """A random tree of 16 rows behind the other keys."""
    g = torch.Generator().manual_seed(num_keys)
    q = torch.randn(heads, ROWS, DIM, generator=g).bfloat16()
    k, v = (torch.randn(heads, num_keys, DIM, generator=g).bfloat16() for _ in range(2))
    rows = []
    for i in range(ROWS):
        parent = int(torch.randint(i, (1,), generator=g)) if i > 0 else None
        rows.append((rows[parent] if parent is not None else 0) | 1 << i)
    return q, k, v, torch.tensor(rows, dtype=torch.int32)


def launch(program, q, k, v, mask):
    out = torch.zeros(*q.shape, dtype=torch.float32)
    num_keys, scale = k.shape[1], DIM**-0.5 / math.log(2)
    assert program("run", q, k, v, mask, out, len(q), num_keys, num_keys - ROWS, scale) == 0
    return out


def reference(q, k, v, mask):
    """In float64, and the sum of the absolute addends."""
    q, k, v = q.double(), k.double(), v.double()
    scores = q @ k.transpose(1, 2) * DIM**-0.5
    sees = (mask[:, None] >> torch.arange(ROWS) & 1).bool()
    scores[:, :, -ROWS:].masked_fill_(~sees, -math.inf)
    weights = scores.softmax(-1)
    return weights @ v, weights @ v.abs()
