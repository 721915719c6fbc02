"""Floats of 64 and 16 bits, approximations, and the functions of one argument."""

import math
from fractions import Fraction

import ptxrun
import pytest
import torch
from ptxrun_opcode import run

SPECIAL = [0.0, -0.0, 1.0, -1.5, 1e-310, -5e-324, 1e308, -1e308, math.inf, -math.inf, math.nan]


def f32(body, *values):
    bits = [x.float().view(torch.int32) for x in values]
    return run(body, "f32", ["f32"] * len(bits), bits).view(torch.float32)


def same(got, want):
    nan = want.isnan()
    return torch.equal(got.isnan(), nan) and torch.equal(got[~nan], want[~nan])


def test_doubles_are_ieee():
    pairs = torch.cartesian_prod(*[torch.tensor(SPECIAL, dtype=torch.float64)] * 2)
    a, b = pairs[:, 0].contiguous(), pairs[:, 1].contiguous()
    cases = {
        "add.rn.f64 d, a0, a1;": a + b,
        "sub.rn.f64 d, a0, a1;": a - b,
        "mul.rn.f64 d, a0, a1;": a * b,
        "div.rn.f64 d, a0, a1;": a / b,
        "min.f64 d, a0, a1;": torch.fmin(a, b),
        "max.f64 d, a0, a1;": torch.fmax(a, b),
        "fma.rn.f64 d, a0, a1, 0d0000000000000000;": a * b + 0.0,
        "sqrt.rn.f64 d, a0;": a.sqrt(),
        "rcp.rn.f64 d, a0;": 1 / a,
        "neg.f64 d, a0;": -a,
        "abs.f64 d, a0;": a.abs(),
    }
    for body, want in cases.items():
        bits = [x.view(torch.int64) for x in (a, b)]
        got = run(body, "f64", ["f64"] * 2, bits).view(torch.float64)
        assert same(got, want), body
    x = torch.tensor([1 / 3], dtype=torch.float64)
    bits = [y.view(torch.int64) for y in (x, x, -(x * x))]
    got = run("fma.rn.f64 d, a0, a1, a2;", "f64", ["f64"] * 3, bits).view(torch.float64)
    exact = Fraction(1 / 3) ** 2 - Fraction((1 / 3) ** 2)
    assert got.item() == float(exact) != 0


def test_signs_and_classes():
    x = torch.tensor([0.0, -0.0, 1.5, -2.0, 1e-40, -1e-40, math.inf, -math.inf, math.nan])
    assert same(f32("neg.f32 d, a0;", x), -x) and same(f32("abs.f32 d, a0;", x), x.abs())
    y = x.flip(0)
    assert same(f32("copysign.f32 d, a0, a1;", x, y), torch.copysign(y, x))
    tiny = (x != 0) & (x.abs() < 2.0**-126)
    classes = {
        "finite": x.isfinite(),
        "infinite": x.isinf(),
        "number": ~x.isnan(),
        "notanumber": x.isnan(),
        "normal": x.isfinite() & ~tiny & (x != 0),
        "subnormal": tiny,
    }
    for name, want in classes.items():
        got = run(f"testp.{name}.f32 d, a0;", "pred", ["f32"], [x.view(torch.int32)])
        assert torch.equal(got.bool(), want), name


# name, exact, arguments, largest error: absolute and relative
APPROXIMATE = {
    "sin": (torch.sin, (-math.pi, math.pi), 2.0**-20.5, 0),
    "cos": (torch.cos, (-math.pi, math.pi), 2.0**-20.5, 0),
    "lg2": (torch.log2, (0.01, 50.0), 2.0**-22, 2.0**-22),
    "tanh": (torch.tanh, (-4.0, 4.0), 0, 2.0**-11),
    "ex2": (torch.exp2, (-20.0, 20.0), 0, 2.0**-22),
    "rsqrt": (torch.rsqrt, (0.01, 50.0), 0, 2.0**-22),
}


@pytest.mark.parametrize("name", APPROXIMATE)
def test_approximations_move_within_their_error(name):
    function, (low, high), absolute, relative = APPROXIMATE[name]
    x = torch.linspace(low, high, 997)
    want = function(x.double())
    got = f32(f"{name}.approx.f32 d, a0;", x).double()
    with ptxrun.using(perturb_approx=False):
        still = f32(f"{name}.approx.f32 d, a0;", x).double()
    assert ((got - want).abs() <= absolute + relative * want.abs()).all()
    assert torch.equal(still, want.float().double())
    assert (got != still).double().mean() > 0.3
    assert torch.equal(got, f32(f"{name}.approx.f32 d, a0;", x).double())


def test_division_that_is_approximate():
    a, b = torch.randn(1000), torch.randn(1000)
    for mode in ("approx", "full"):
        got = f32(f"div.{mode}.f32 d, a0, a1;", a, b).double()
        want = a.double() / b.double()
        assert ((got - want).abs() <= want.abs() * 2.0**-22).all()


@pytest.mark.parametrize(("kind", "dtype"), [("f16", torch.float16), ("bf16", torch.bfloat16)])
def test_halves(kind, dtype):
    g = torch.Generator().manual_seed(0)
    x = torch.cat([torch.randn(500, generator=g), torch.tensor([0.0, -0.0, math.inf, math.nan])])
    x = x.to(dtype)
    y = x.roll(7)

    def half(body, *values):
        bits = [v.view(torch.int16) for v in values]
        return run(body, "b16", ["b16"] * len(bits), bits, target="sm_90a").view(dtype)

    assert same(half(f"neg.{kind} d, a0;", x), -x)
    assert same(half(f"abs.{kind} d, a0;", x), x.abs())
    assert same(half(f"min.{kind} d, a0, a1;", x, y), torch.fmin(x, y))
    assert same(half(f"max.{kind} d, a0, a1;", x, y), torch.fmax(x, y))
    assert same(half(f"sub.rn.{kind} d, a0, a1;", x, y), (x.double() - y.double()).to(dtype))
    step = torch.finfo(dtype).eps
    for name, function in (("ex2.approx", torch.exp2), ("tanh.approx", torch.tanh)):
        ftz = ".ftz" if kind == "bf16" and name.startswith("ex2") else ""
        got, want = half(f"{name}{ftz}.{kind} d, a0;", x).double(), function(x.double())
        assert torch.equal(got.isnan(), want.isnan())
        ok = (got - want).abs() <= want.abs() * (step + 2.0**-10.9)
        assert (ok | want.isnan() | (got == want)).all(), name


def test_conversions_of_doubles():
    x = torch.tensor([0.1, -1e300, 2.0**-149, 1.0 + 2.0**-24, 3.5, -2.5], dtype=torch.float64)
    bits = [x.view(torch.int64)]
    assert torch.equal(
        run("cvt.rn.f32.f64 d, a0;", "f32", ["f64"], bits).view(torch.float32), x.float()
    )
    whole = torch.tensor([0, 1, -1, 2**53 + 1, -(2**62), 7], dtype=torch.int64)
    got = run("cvt.rn.f64.s64 d, a0;", "f64", ["s64"], [whole]).view(torch.float64)
    assert torch.equal(got, whole.double())
    got = run("cvt.rzi.s32.f64 d, a0;", "s32", ["f64"], bits)
    assert got.tolist() == [0, -(2**31), 0, 1, 3, -2]
