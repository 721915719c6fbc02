"""csrc/common/dtype.h against torch: every small pattern to float, every boundary from float."""

import pytest
import torch
from calls import apply

from dflash_ops import _C

DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
}


def patterns(dtype):
    bits = torch.arange(2 ** (8 * dtype.itemsize), dtype=torch.int32)
    return bits.to(torch.uint8 if dtype.itemsize == 1 else torch.uint16).view(dtype)


def boundaries(dtype):
    """Each number of `dtype`, each midpoint between neighbours, and the floats beside them."""
    finite = patterns(dtype).float()
    finite = finite[finite.isfinite()].double().unique()
    beyond = 2 * finite[-1] - finite[-2]
    grid = torch.cat([-beyond[None], finite, beyond[None]])
    exact = torch.cat([grid, (grid[1:] + grid[:-1]) / 2]).float()
    bits = exact.view(torch.int32)
    near = torch.cat([bits - 1, bits, bits + 1]).view(torch.float32)
    inf = float("inf")
    return torch.cat([near, torch.tensor([0.0, -0.0, inf, -inf, 1e-45, -1e-45, 3.4e38, -3.4e38])])


@pytest.mark.parametrize("name", DTYPES)
def test_to_float_of_every_pattern(name):
    x = patterns(DTYPES[name])
    got, want = apply(getattr(_C.hooks, f"{name}_to_float"), x), x.float()
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.view(torch.int32)[~got.isnan()], want.view(torch.int32)[~got.isnan()])


@pytest.mark.parametrize("name", DTYPES)
def test_from_float_at_every_boundary(name):
    dtype = DTYPES[name]
    x = boundaries(dtype)
    x = x[~x.isnan()]
    got = apply(getattr(_C.hooks, f"{name}_from_float"), x, dtype)
    want = x.to(dtype)
    if dtype == torch.float8_e4m3fn:  # saturates, where torch overflows to NaN
        want = x.clamp(-448, 448).to(dtype)
    int_type = torch.uint8 if dtype.itemsize == 1 else torch.int16
    assert torch.equal(got.view(int_type), want.view(int_type))


@pytest.mark.parametrize("name", DTYPES)
def test_nan_stays_nan(name):
    x = torch.tensor([0x7FC00000, 0x7F800001, 0x7FFFFFFF]).int().view(torch.float32)
    got = apply(getattr(_C.hooks, f"{name}_from_float"), torch.cat([x, -x]), DTYPES[name])
    assert got.float().isnan().all()


def test_int8():
    x = torch.cat([torch.arange(-130, 130.0, 0.125), torch.tensor([1e30, -1e30, float("inf")])])
    got = apply(_C.hooks.int8_from_float, x, torch.int8)
    assert torch.equal(got, x.round().clamp(-128, 127).to(torch.int8))
    assert apply(_C.hooks.int8_from_float, torch.tensor([float("nan")]), torch.int8).item() == 0
    every = torch.arange(-128, 128).to(torch.int8)
    assert torch.equal(apply(_C.hooks.int8_to_float, every), every.float())
