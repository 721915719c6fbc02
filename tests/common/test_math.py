"""The shared fp32 functions against float64: largest error in units of the last place."""

import pytest
import torch
from calls import apply

from dflash_ops import _C

# Every exponent and sign, with mantissas at the ends and a stride that shares no factor with 2.
STRIDE = 4093


def floats(first=0, last=2**32, step=STRIDE):
    words = torch.arange(first, last, step)
    edges = torch.arange(0, 2**32, 2**23)[:, None] + torch.tensor([0, 1, 2, 2**22, 2**23 - 1])
    return torch.cat([words, edges.flatten()]).to(torch.uint32).view(torch.float32)


def worst_ulps(got, want64):
    """Largest |got - want| over the distance of fp32 numbers at want, where both are finite."""
    assert torch.equal(got.isnan(), want64.isnan())
    limit = 2.0**128 - 2.0**103  # from here on float32 rounds to inf
    assert torch.equal(got.isinf(), (want64.abs() >= limit) & ~want64.isnan())
    finite = got.isfinite()
    exponent = torch.frexp(want64[finite].abs().clamp(min=2.0**-126)).exponent - 24
    error = (got.double() - want64)[finite].abs()
    return float(torch.ldexp(error, -exponent).max())


@pytest.mark.parametrize(
    ("name", "function", "limit"), [("exp_f32", torch.exp, 1.01), ("tanh_f32", torch.tanh, 1.34)]
)
def test_error_in_ulps(name, function, limit):
    x = torch.cat([floats(), torch.linspace(-110, 90, 2_000_003), torch.linspace(-2, 2, 1_000_003)])
    assert worst_ulps(apply(getattr(_C.hooks, name), x), function(x.double())) <= limit


def test_exp_at_the_ends():
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([0.0, -0.0, -inf, inf, nan, 88.7228, -103.97, -104.0, -3e38, 3e38])
    got = apply(_C.hooks.exp_f32, x).tolist()
    assert got[:4] == [1, 1, 0, inf] and got[4] != got[4]
    assert 3.39e38 < got[5] < inf and got[6:] == [2.0**-149, 0, 0, inf]


def test_tanh_is_odd_and_bounded():
    x = floats()
    x = x[~x.isnan()]
    got = apply(_C.hooks.tanh_f32, x)
    assert torch.equal(got, -apply(_C.hooks.tanh_f32, -x)) and got.abs().max() == 1
    assert torch.equal(got.signbit(), x.signbit())


def test_log_in_ulps():
    """All arguments that occur: sums of exponentials, and uniform numbers down to 2^-65."""
    x = torch.cat([floats(), torch.linspace(0.3, 3, 3_000_001)])
    x = x[(x >= 2.0**-126) & x.isfinite()]
    assert worst_ulps(apply(_C.hooks.log_f32, x), x.double().log()) <= 1.0


def test_log1m_in_ulps():
    """Exhaustive at a stride in the bits over [0, 1/2]."""
    last = int(torch.tensor(0.5).view(torch.int32)) + 1
    x = torch.cat(
        [
            torch.arange(0, last, 509).to(torch.uint32).view(torch.float32),
            torch.linspace(0.3, 0.5, 1_000_001),
        ]
    )
    assert worst_ulps(apply(_C.hooks.log1m_f32, x), torch.log1p(-x.double())) <= 1.0
