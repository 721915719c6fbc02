"""Calls of the samplers on independent rows: one request each, unless a test says otherwise."""

import torch

from dflash_ops.reference import noise
from dflash_ops.reference import sample as reference_sample

EPS = 2.0**-24


def one_request_each(num_rows, positions=None, seeds=0, **laws):
    """Arguments of a sampler for rows that are requests of their own; laws: scalars or lists."""
    rows = torch.arange(num_rows + 1, dtype=torch.int32)
    call = {"positions": rows[:-1] * 7 + 3 if positions is None else positions, "cu_verify": rows}
    dtypes = {"temperature": torch.float32, "top_k": torch.int32}
    for name, value in laws.items():
        if name in ("order", "vocab_size"):
            call[name] = value
        else:
            call[name] = torch.as_tensor(value).to(dtypes.get(name, torch.float32)).expand(num_rows)
    if "temperature" in laws:
        call["seeds"] = torch.as_tensor(seeds).long().expand(num_rows)
    return call


def score_error(z, temperature, g):
    """Bound of |fp32 score - exact score|."""
    tempered = (z / temperature).abs()
    return EPS * (2 * tempered + g.abs() + 8 * g.abs().clamp(min=1))


def assert_draw(token, z, law, seed, position, vocab_size=None):
    """`token` is the reference's draw, or rounding cannot tell. Returns whether it could."""
    if law["temperature"] == 0:
        assert token == int(z.argmax())
        return True
    row = reference_sample.row_law(z, **law, vocab_size=vocab_size)
    if row.slack < 1e-5:  # 32 * 2^-24 * the terms of a sum up to 1, and the log-sum-exp's error
        assert token in row.order
        return False
    kept = row.order[: row.num_kept]
    g = noise.gumbel(seed, kept, position + 1)
    scores = z[kept] / law["temperature"] + g
    best = scores.argmax()
    if token == int(kept[best]):
        return True
    assert token in kept.tolist(), (token, kept)
    at = kept.tolist().index(token)
    error = score_error(z[kept], law["temperature"], g)
    assert scores[best] - scores[at] <= error[best] + error[at]
    return False
