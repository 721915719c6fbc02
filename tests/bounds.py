"""The one tolerance of the suite: a claim about rounding, not a number that happens to pass.

Per element  |got - ref64| <= 16 * 2^-24 * sum|terms| + `rounding` + 1 ulp of ref64 in got's dtype,
where `terms` are the addends of the exact sum and `rounding` is the documented rounding of
intermediates; per tensor, where torch has the op, also
    max|got - ref64| <= 2 * max|torch - ref64| + 1 ulp of the row maximum.
NaN and infinities must stand at the same places.
"""

import torch
from torch import Tensor

ACCUMULATION = 16 * 2.0**-24  # fp32 sums in any fixed order, with room for a few roundings


def ulp(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Distance from |x| to the next number of `dtype`; that of the smallest normal below it."""
    info = torch.finfo(dtype)
    exponent = torch.frexp(x.abs().double().clamp(min=info.tiny)).exponent - 1
    return torch.ldexp(torch.full_like(exponent, info.eps, dtype=torch.float64), exponent)


def assert_within(
    got: Tensor,
    ref64: Tensor,
    terms: Tensor | float = 0.0,
    rounding: Tensor | float = 0.0,
    from_torch: Tensor | None = None,
) -> None:
    """`terms`: sum of the absolute addends, `rounding`: an absolute error; both broadcast."""
    assert ref64.dtype == torch.float64 and got.shape == ref64.shape, (got.shape, ref64.shape)
    value = got.double()
    finite = ref64.isfinite()
    assert torch.equal(value.isnan(), ref64.isnan()), "NaN at other places"
    infinite = ref64.isinf()
    assert torch.equal(value[infinite], ref64[infinite]), "infinities at other places"
    error = (value - ref64).abs().where(finite, 0)
    allowed = ACCUMULATION * torch.as_tensor(terms, dtype=torch.float64)
    allowed = allowed + rounding + ulp(ref64.where(finite, 0), got.dtype)
    excess = (error - allowed).where(finite, -1)
    if excess.numel() and excess.max() > 0:
        at = tuple(torch.unravel_index(excess.argmax(), excess.shape))
        raise AssertionError(
            f"{int((excess > 0).sum())} of {excess.numel()} outside the bound; worst at "
            f"{tuple(map(int, at))}: got {value[at].item()}, expected {ref64[at].item()}, "
            f"allowed {allowed.broadcast_to(error.shape)[at].item():.3e}"
        )
    if from_torch is not None and error.numel():
        peer = (from_torch.double() - ref64).abs().where(finite, 0).max()
        row_max = ref64.where(finite, 0).abs().amax(dim=-1).max()
        limit = 2 * peer + ulp(row_max, got.dtype)
        assert error.max() <= limit, f"error {error.max()} against torch's {peer}"
