"""Frequencies of the sampler against the law."""

import math

import pytest
import torch
from sampling_rows import one_request_each

from dflash_ops import sample_logits
from dflash_ops.reference import sample as reference_sample

pytestmark = pytest.mark.statistical


def draw(device, logits, **call):
    call = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in call.items()}
    return sample_logits(logits.to(device), **call).ids.cpu()


def num_draws(device_class):
    """An emulated draw takes long; that it is the CPU's is tested elsewhere."""
    return 400 if device_class == "ptx" else 40_000


def chi_squared(counts, p):
    expected = p * counts.sum()
    rare = expected < 5
    pairs = [(int(c), float(e)) for c, e in zip(counts[~rare], expected[~rare], strict=True)]
    if rare.any():
        pairs.append((int(counts[rare].sum()), float(expected[rare].sum())))
    value = sum((c - e) ** 2 / e for c, e in pairs if e > 0)
    free = len(pairs) - 1
    return (value - free) / math.sqrt(2 * max(free, 1))


@pytest.mark.parametrize(
    ("vocab", "temperature"), [(50, 0.3), (50, 1.0), (50, 5.0), (256, 5.0), (1000, 1.0)]
)
@pytest.mark.parametrize("law", [{}, {"top_k": 20, "top_p": 0.9}])
def test_frequencies_follow_the_law(device, device_class, vocab, temperature, law):
    """Chi-squared over positions and seeds; five standard deviations of a sound sampler."""
    draws = num_draws(device_class)
    z = torch.randn(vocab, generator=torch.Generator().manual_seed(vocab)) * 2
    call = one_request_each(draws, seeds=torch.arange(draws) // 100, temperature=temperature, **law)
    call["positions"] = torch.arange(draws) % 100
    ids = draw(device, z.expand(draws, -1), **call)
    row = reference_sample.row_law(z.double(), **reference_sample.state_law(call, 0))
    p = torch.zeros(vocab, dtype=torch.float64)
    kept = row.order[: row.num_kept]
    p[kept] = (z[kept].double() / temperature).softmax(dim=0)
    counts = torch.bincount(ids, minlength=vocab).double()
    assert counts[p == 0].sum() == 0
    assert chi_squared(counts, p) < 5


def test_neighbouring_positions_are_independent(device, device_class):
    """Chi-squared of pairs: the same seed at the next position, the next seed at the same."""
    n, z = num_draws(device_class), torch.tensor([0.3, 0.0, -1.0])
    p = z.double().softmax(dim=0)
    for step_position, step_seed in ((1, 0), (0, 1)):
        draws = [
            draw(
                device,
                z.expand(n, -1),
                **(
                    one_request_each(
                        n, temperature=1.0, seeds=torch.arange(n) // 200 * 2 + k * step_seed
                    )
                    | {"positions": torch.arange(n) % 200 * 2 + k * step_position}
                ),
            )
            for k in (0, 1)
        ]
        counts = torch.bincount(draws[0] * 3 + draws[1], minlength=9).double()
        assert chi_squared(counts, (p[:, None] * p).flatten()) < 5
