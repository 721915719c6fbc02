"""Every instruction against a scalar model, at the edges of its operands."""

import itertools
import math
import struct

import numpy as np
import ptxrun
import pytest
import torch
from ptxrun_opcode import BITS, run, width


def signed(x, bits):
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def edges(bits):
    top = 1 << (bits - 1)
    return [
        0,
        1,
        2,
        3,
        5,
        31,
        top - 1,
        top,
        top + 1,
        2 * top - 1,
        2 * top - 2,
        0x5A5A5A5A % (2 * top),
    ]


def tensor(values, bits):
    return torch.tensor([signed(v, bits) if bits > 8 else v for v in values], dtype=BITS[bits])


def every(bits, count):
    """All combinations of edges, by operand."""
    columns = zip(*itertools.product(edges(bits), repeat=count), strict=True)
    return [list(c)[:1024] for c in columns]


def divide(a, b):
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def shifted(a, n, bits, left, is_signed):
    if left:
        return a << n if n < bits else 0
    a = signed(a, bits) if is_signed else a
    return a >> min(n, bits - 1 if is_signed else bits)


# name, operands, model of unsigned integers (bits given), may be signed
INTEGER = {
    "add": lambda a, b, bits, s: a + b,
    "sub": lambda a, b, bits, s: a - b,
    "mul.lo": lambda a, b, bits, s: a * b,
    "min": lambda a, b, bits, s: min(s(a), s(b)),
    "max": lambda a, b, bits, s: max(s(a), s(b)),
    "mul.hi": lambda a, b, bits, s: s(a) * s(b) >> bits,
    "div": lambda a, b, bits, s: divide(s(a), s(b)) if b else -1,
    "rem": lambda a, b, bits, s: s(a) - s(b) * divide(s(a), s(b)) if b else a,
}


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("name", INTEGER)
def test_integer_arithmetic(name, kind):
    bits = width(kind)
    a, b = every(bits, 2)
    got = run(f"{name}.{kind} d, a0, a1;", kind, [kind] * 2, [tensor(a, bits), tensor(b, bits)])
    sign = (lambda x: signed(x, bits)) if kind[0] == "s" else (lambda x: x)
    want = [INTEGER[name](x, y, bits, sign) for x, y in zip(a, b, strict=True)]
    assert got.tolist() == [signed(x, bits) for x in want]


@pytest.mark.parametrize("kind", ["s16", "s32", "s64"])
def test_negation_and_absolute_value(kind):
    bits = width(kind)
    (a,) = every(bits, 1)
    for name, model in (("neg", lambda x: -x), ("abs", abs)):
        got = run(f"{name}.{kind} d, a0;", kind, [kind], [tensor(a, bits)])
        assert got.tolist() == [signed(model(signed(x, bits)), bits) for x in a]


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32"])
def test_wide_products(kind):
    bits = width(kind)
    wide = kind[0] + str(2 * bits)
    a, b = every(bits, 2)
    args = [tensor(a, bits), tensor(b, bits)]
    sign = (lambda x: signed(x, bits)) if kind[0] == "s" else (lambda x: x)
    got = run(f"mul.wide.{kind} d, a0, a1;", wide, [kind] * 2, args)
    want = [sign(x) * sign(y) for x, y in zip(a, b, strict=True)]
    assert got.tolist() == [signed(x, 2 * bits) for x in want]
    c = tensor([x * 7919 % (1 << (2 * bits)) for x in range(len(a))], 2 * bits)
    got = run(f"mad.wide.{kind} d, a0, a1, a2;", wide, [kind, kind, wide], [*args, c])
    assert got.tolist() == [signed(x + y, 2 * bits) for x, y in zip(want, c.tolist(), strict=True)]


@pytest.mark.parametrize("kind", ["b16", "b32", "b64", "u16", "s16", "u32", "s32", "u64", "s64"])
def test_shifts_past_the_width(kind):
    bits, left = width(kind), kind[0] == "b"
    pairs = list(itertools.product(edges(bits), [0, 1, bits - 1, bits, bits + 1, 100, 2**31]))
    a, n = zip(*pairs, strict=True)
    name = "shl" if left else "shr"
    got = run(f"{name}.{kind} d, a0, a1;", kind, [kind, "u32"], [tensor(a, bits), tensor(n, 32)])
    want = [shifted(x, y, bits, left, kind[0] == "s") for x, y in pairs]
    assert got.tolist() == [signed(x, bits) for x in want]


def test_bit_operations():
    a, b, c = (
        [int(x) for x in column] for column in np.random.default_rng(0).integers(0, 2**32, (3, 64))
    )
    args = [tensor(x, 32) for x in (a, b, c)]

    def check(body, model, count):
        got = run(body, "b32", ["b32"] * count, args[:count])
        want = [signed(model(*x), 32) for x in list(zip(a, b, c, strict=True))]
        assert got.tolist() == want, body

    check("popc.b32 d, a0;", lambda x, y, z: x.bit_count(), 1)
    check("clz.b32 d, a0;", lambda x, y, z: 32 - x.bit_length(), 1)
    check("brev.b32 d, a0;", lambda x, y, z: int(f"{x:032b}"[::-1], 2), 1)
    check("bfind.u32 d, a0;", lambda x, y, z: x.bit_length() - 1, 1)
    check("lop3.b32 d, a0, a1, a2, 0xE8;", lambda x, y, z: x & y | x & z | y & z, 3)
    check("and.b32 d, a0, a1;", lambda x, y, z: x & y, 2)
    check("not.b32 d, a0;", lambda x, y, z: ~x, 1)
    check("shf.l.wrap.b32 d, a0, a1, a2;", lambda x, y, z: (y << 32 | x) << (z & 31) >> 32, 3)
    check("shf.r.wrap.b32 d, a0, a1, a2;", lambda x, y, z: (y << 32 | x) >> (z & 31), 3)
    check(
        "prmt.b32 d, a0, a1, 0x5140;",
        lambda x, y, z: x & 255 | (y & 255) << 8 | (x >> 8 & 255) << 16 | (y >> 8 & 255) << 24,
        2,
    )
    check(
        "prmt.b32 d, a0, a1, 0x888F;",
        lambda x, y, z: (0xFF if y >> 31 else 0) | (0xFFFFFF00 if x >> 7 & 1 else 0),
        2,
    )
    check("bfe.u32 d, a0, 5, 9;", lambda x, y, z: x >> 5 & 511, 1)
    check("bfe.s32 d, a0, 5, 9;", lambda x, y, z: signed(x >> 5, 9), 1)
    ones = lambda n: (1 << n) - 1  # noqa: E731
    check(
        "bmsk.clamp.b32 d, a0, a1;",
        lambda x, y, z: ones(32) if (x, y) == (0, 32) else 0 if x > 31 else ones(min(y, 32)) << x,
        2,
    )
    check("bmsk.wrap.b32 d, a0, a1;", lambda x, y, z: ones(y & 31) << (x & 31), 2)
    check("sad.u32 d, a0, a1, a2;", lambda x, y, z: z + abs(x - y), 3)
    check("bfi.b32 d, a0, a1, 7, 11;", lambda x, y, z: y & ~(2047 << 7) | (x & 2047) << 7, 2)
    byte = lambda x, i: signed(x >> (8 * i), 8)  # noqa: E731
    check(
        "dp4a.s32.s32 d, a0, a1, a2;",
        lambda x, y, z: z + sum(byte(x, i) * byte(y, i) for i in range(4)),
        3,
    )


@pytest.mark.parametrize("kind", ["u32", "u64"])
def test_sums_with_a_carry(kind):
    bits = width(kind)
    a, b, c, e = every(bits, 4)
    values = [tensor(x, bits) for x in (a, b, c, e)]
    body = f"{{ .reg .{kind} low; %s.cc.{kind} low, a0, a1; %sc.{kind} d, a2, a3; }}"
    got = run(body % ("add", "add"), kind, [kind] * 4, values).tolist()
    assert got == [
        signed(z + u + (x + y >> bits), bits) for x, y, z, u in zip(a, b, c, e, strict=True)
    ]
    got = run(body % ("sub", "sub"), kind, [kind] * 4, values).tolist()
    assert got == [signed(z - u - (x < y), bits) for x, y, z, u in zip(a, b, c, e, strict=True)]


FLOATS = [0.0, -0.0, 1.0, -1.5, 3.1e-39, -1e-45, 65504.0, 65520.0, 3.4e38, -1e30, 448.0, 0.1, 2.0**-14, math.inf, -math.inf, math.nan]  # fmt: skip


def f32(values):
    return torch.tensor(values, dtype=torch.float32)


def test_float_arithmetic_is_ieee():
    a, b = (f32(c) for c in zip(*itertools.product(FLOATS, repeat=2), strict=True))
    c = f32([FLOATS[(5 * i + 3) % len(FLOATS)] for i in range(len(a))])
    cases = {
        "add.rn.f32 d, a0, a1;": a + b,
        "sub.f32 d, a0, a1;": a - b,
        "mul.f32 d, a0, a1;": a * b,
        "div.rn.f32 d, a0, a1;": a / b,
        "fma.rn.f32 d, a0, a1, a2;": (a.double() * b.double() + c.double()).float(),
        "min.f32 d, a0, a1;": torch.fmin(a, b),
        "max.f32 d, a0, a1;": torch.fmax(a, b),
        "min.NaN.f32 d, a0, a1;": torch.minimum(a, b),
        "sqrt.rn.f32 d, a0;": a.double().sqrt().float(),
        "rcp.rn.f32 d, a0;": 1 / a,
    }
    for body, want in cases.items():
        bits = [x.view(torch.int32) for x in (a, b, c)]
        got = run(body, "f32", ["f32"] * 3, bits).view(torch.float32)
        assert torch.equal(got.isnan(), want.isnan()), body
        assert torch.equal(got[~got.isnan()], want[~want.isnan()]), body
        assert set(got.view(torch.int32)[got.isnan()].tolist()) <= {0x7FFFFFFF}, body


def test_minimum_orders_zeros():
    a, b = f32([0.0, -0.0]).view(torch.int32), f32([-0.0, 0.0]).view(torch.int32)
    assert run("min.f32 d, a0, a1;", "f32", ["f32"] * 2, [a, b]).tolist() == [-(2**31)] * 2
    assert run("max.f32 d, a0, a1;", "f32", ["f32"] * 2, [a, b]).tolist() == [0, 0]


def test_directed_rounding():
    a, b = f32([1.0, -1.0, 1.0]).view(torch.int32), f32([2.0**-30] * 3).view(torch.int32)
    one, ulp = 1.0, 2.0**-23

    def got(mode):
        return (
            run(f"add.{mode}.f32 d, a0, a1;", "f32", ["f32"] * 2, [a, b])
            .view(torch.float32)
            .tolist()
        )

    assert got("rp") == [one + ulp, -one + ulp / 2, one + ulp]
    assert got("rm") == [one, -one, one]
    assert got("rz") == [one, -one + ulp / 2, one]


@pytest.mark.parametrize("comparison", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons_with_nan(comparison):
    a, b = (f32(c) for c in zip(*itertools.product(FLOATS, repeat=2), strict=True))
    model = getattr(torch, comparison)(a, b)
    nan = a.isnan() | b.isnan()
    bits = [a.view(torch.int32), b.view(torch.int32)]
    ordered = run(f"setp.{comparison}.f32 d, a0, a1;", "pred", ["f32"] * 2, bits)
    assert torch.equal(ordered.bool(), model & ~nan)
    unordered = run(f"setp.{comparison}u.f32 d, a0, a1;", "pred", ["f32"] * 2, bits)
    assert torch.equal(unordered.bool(), model | nan)


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64", "u16", "s16", "u8", "s8"])
def test_float_to_integer_saturates(kind):
    bits, is_signed = int(kind[1:]), kind[0] == "s"
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if is_signed else (0, 2**bits - 1)
    values = [*FLOATS, 2.5, 3.5, -2.5, 1e10, -1e10, 1e20, -1e20, 127.6, 255.4]
    a = f32(values).view(torch.int32)
    for mode, rounding in (
        ("rni", np.rint),
        ("rzi", np.trunc),
        ("rmi", np.floor),
        ("rpi", np.ceil),
    ):
        result = f"{kind[0]}{max(bits, 32)}"
        got = run(f"cvt.{mode}.{kind}.f32 d, a0;", result, ["f32"], [a]).tolist()
        for value, x in zip(f32(values).tolist(), got, strict=True):
            if math.isnan(value):
                want = -(2**63) if bits == 64 else 0
            elif math.isinf(value):
                want = high if value > 0 else low
            else:
                want = min(max(int(rounding(value)), low), high)
            assert signed(x, max(bits, 32)) == signed(want, max(bits, 32)), (mode, value)


def test_integer_conversions_extend_and_saturate():
    values = [0, 1, 127, 128, 255, 256, -1, -128, -129, 32767, 40000, -40000, 2**31 - 1, -(2**31)]
    a = torch.tensor(values, dtype=torch.int32)
    s8 = run("cvt.s32.s8 d, a0;", "s32", ["s32"], [a])
    assert s8.tolist() == [signed(v, 8) for v in values]
    u8 = run("cvt.u32.u8 d, a0;", "u32", ["s32"], [a])
    assert u8.tolist() == [v & 255 for v in values]
    sat = run("cvt.sat.s8.s32 d, a0;", "s32", ["s32"], [a])
    assert sat.tolist() == [min(max(v, -128), 127) for v in values]
    sat = run("cvt.sat.u8.s32 d, a0;", "u32", ["s32"], [a])
    assert sat.tolist() == [min(max(v, 0), 255) for v in values]
    wide = run("cvt.s64.s32 d, a0;", "s64", ["s32"], [a])
    assert wide.tolist() == values


def test_narrow_floats_round_as_torch_does():
    g = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31 - 1, (1000,), generator=g, dtype=torch.int32)
    a = bits.view(torch.float32)
    for name, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16)):
        got = run(f"cvt.rn.{name}.f32 d, a0;", "b16", ["f32"], [bits]).view(dtype)
        want = a.to(dtype)
        nan = want.isnan()
        assert torch.equal(got.isnan(), nan) and torch.equal(got[~nan], want[~nan]), name
        back = run(f"cvt.f32.{name} d, a0;", "f32", ["b16"], [want.view(torch.int16)])
        assert torch.equal(back.view(torch.float32)[~nan], want.float()[~nan]), name
        # Two at a time: the first operand is the upper half.
        pair = run(f"cvt.rn.{name}x2.f32 d, a0, a1;", "b32", ["f32"] * 2, [bits, bits.flip(0)])
        high, low = ((pair >> shift).to(torch.int16).view(dtype) for shift in (16, 0))
        assert torch.equal(high[~nan], want[~nan]), name
        assert torch.equal(low[~nan.flip(0)], want.flip(0)[~nan.flip(0)]), name


@pytest.mark.parametrize(
    ("name", "dtype"), [("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)]
)
def test_fp8_pairs(name, dtype):
    every_byte = torch.arange(256, dtype=torch.uint8)
    pairs = every_byte.to(torch.int16) | every_byte.flip(0).to(torch.int16) << 8
    got = run(f"cvt.rn.f16x2.{name}x2 d, a0;", "b32", ["b16"], [pairs], target="sm_90a")
    low, high = (
        got.to(torch.int16).view(torch.float16),
        (got >> 16).to(torch.int16).view(torch.float16),
    )
    for half, byte in ((low, every_byte), (high, every_byte.flip(0))):
        want = byte.view(dtype).float()
        assert torch.equal(half.isnan(), want.isnan())
        assert torch.equal(half.float()[~want.isnan()], want[~want.isnan()])
    g = torch.Generator().manual_seed(1)
    limit = torch.finfo(dtype).max
    x = (torch.randn(1000, generator=g) * torch.exp(torch.randn(1000, generator=g) * 4)).clamp(
        -limit, limit
    )
    bits = x.view(torch.int32)
    got = run(
        f"cvt.rn.satfinite.{name}x2.f32 d, a0, a1;",
        "b16",
        ["f32"] * 2,
        [bits, bits],
        target="sm_90a",
    )
    assert torch.equal((got & 255).to(torch.uint8), x.to(dtype).view(torch.uint8))


@pytest.mark.parametrize(("name", "dtype"), [("f16x2", torch.float16), ("bf16x2", torch.bfloat16)])
def test_packed_arithmetic_rounds_once(name, dtype):
    g = torch.Generator().manual_seed(2)
    a, b, c = (torch.randn(2000, generator=g).to(dtype) for _ in range(3))
    words = [x.view(torch.int16).view(torch.int32) for x in (a, b, c)]
    d = [x.double() for x in (a, b, c)]
    cases = {
        "add": d[0] + d[1],
        "mul": d[0] * d[1],
        "fma": d[0] * d[1] + d[2],
        "max": torch.maximum(d[0], d[1]),
    }
    for op, exact in cases.items():
        mode = "" if op == "max" else ".rn"
        sources = "a0, a1, a2" if op == "fma" else "a0, a1"
        got = (
            run(f"{op}{mode}.{name} d, {sources};", "b32", ["b32"] * 3, words)
            .view(torch.int16)
            .view(dtype)
        )
        near = exact.to(dtype).double()
        assert ((got.double() - exact).abs() <= (near - exact).abs()).all(), op


@pytest.mark.parametrize(
    ("name", "exact", "ulps"),
    [
        ("ex2", np.exp2, 2.5),
        ("rcp", lambda x: 1 / x, 1.5),
        ("rsqrt", lambda x: 1 / np.sqrt(x), 2.5),
        ("sqrt", np.sqrt, 2.5),
    ],
)
def test_approximations_move_within_their_error(name, exact, ulps):
    x = torch.linspace(0.01, 30, 1000)
    got = run(f"{name}.approx.f32 d, a0;", "f32", ["f32"], [x.view(torch.int32)]).view(
        torch.float32
    )
    want = exact(x.double().numpy())
    error = np.abs(got.double().numpy() - want) / (2.0 ** (np.floor(np.log2(want)) - 23))
    assert 0.5 < error.max() <= ulps
    with ptxrun.using(perturb_approx=False):
        still = run(f"{name}.approx.f32 d, a0;", "f32", ["f32"], [x.view(torch.int32)])
    assert (
        np.abs(still.view(torch.float32).double().numpy() - want).max()
        <= np.abs(want).max() * 2.0**-24
    )


def test_unknown_instructions_name_their_line():
    with pytest.raises(ptxrun.Error, match=r"PTX line \d+: unknown instruction: frob\.b32"):
        run("frob.b32 d, a0;", "b32", ["b32"], [torch.zeros(1, dtype=torch.int32)])
    with pytest.raises(ptxrun.Error, match=r"unsupported form: shfl\.idx\.b32"):
        run("shfl.idx.b32 d, a0, 0, 31;", "b32", ["b32"], [torch.zeros(1, dtype=torch.int32)])


def bits_of(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def test_shuffles_votes_and_reductions():
    a = torch.arange(32, dtype=torch.int32) * 3 % 32

    def got(body):
        return run(body, "b32", ["b32"], [a]).tolist()

    values = a.tolist()
    assert got("shfl.sync.bfly.b32 d, a0, 5, 31, -1;") == [values[i ^ 5] for i in range(32)]
    assert got("shfl.sync.up.b32 d, a0, 3, 0, -1;") == [
        values[i - 3 if i >= 3 else i] for i in range(32)
    ]
    assert got("shfl.sync.down.b32 d, a0, 2, 0x181f, -1;") == [
        values[i + 2 if i % 8 + 2 < 8 else i] for i in range(32)
    ]
    assert got("shfl.sync.idx.b32 d, a0, 6, 0x181f, -1;") == [
        values[i // 8 * 8 + 6] for i in range(32)
    ]
    assert got("redux.sync.add.s32 d, a0, -1;") == [sum(values)] * 32
    assert got("redux.sync.max.u32 d, a0, -1;") == [31] * 32
    assert (
        got("{ .reg .pred p; setp.gt.s32 p, a0, 15; vote.sync.ballot.b32 d, p, -1; }")
        == [signed(sum(1 << i for i in range(32) if values[i] > 15), 32)] * 32
    )
    assert got("{ .reg .b32 k; and.b32 k, a0, 3; match.any.sync.b32 d, k, -1; }") == [
        signed(sum(1 << j for j in range(32) if values[j] % 4 == values[i] % 4), 32)
        for i in range(32)
    ]
    assert got("activemask.b32 d;") == [-1] * 32
