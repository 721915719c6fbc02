"""Conversions and the .approx functions, an element a thread."""

from collections.abc import Iterator

import numpy as np

from .case import Case, Compare, kernel, words
from .values import any_bits, generator

COUNT = 1024
BLOCK = 256

# instruction, of registers d and a (both 32 bits: 16-bit results and operands through h); target
CONVERSIONS = {
    **{
        f"cvt.{mode}.{kind}.f32": "sm_80"
        for mode in ("rni", "rzi", "rmi", "rpi")
        for kind in ("s32", "u32")
    },
    **{f"cvt.{mode}.f32.f32": "sm_80" for mode in ("rni", "rzi", "rmi", "rpi")},
    **{f"cvt.{mode}.f32.{kind}": "sm_80" for mode in ("rn", "rz") for kind in ("s32", "u32")},
    **{f"cvt.{mode}.f16.f32": "sm_80" for mode in ("rn", "rz")},
    **{f"cvt.{mode}.bf16.f32": "sm_80" for mode in ("rn", "rz")},
    "cvt.f32.f16": "sm_80",
    "cvt.f32.bf16": "sm_80",
    "cvt.rna.tf32.f32": "sm_80",
    "cvt.sat.f32.f32": "sm_80",
    "cvt.ftz.f32.f32": "sm_80",
    "cvt.rn.relu.f16.f32": "sm_80",
    "cvt.sat.s8.s32": "sm_80",
    "cvt.sat.u8.s32": "sm_80",
    **{f"cvt.rn.{kind}x2.f32": "sm_80" for kind in ("f16", "bf16")},
    **{f"cvt.rn.satfinite.{kind}x2.f32": "sm_89" for kind in ("e4m3", "e5m2")},
    **{f"cvt.rn.f16x2.{kind}x2": "sm_89" for kind in ("e4m3", "e5m2")},
}
_APPROX = ("ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos")
APPROX = {f"{name}.approx{ftz}.f32": "sm_80" for name in _APPROX for ftz in ("", ".ftz")}
APPROX |= {"tanh.approx.f32": "sm_80", "div.approx.f32": "sm_80"}


def _statement(name: str) -> tuple[str, int]:
    """The instruction on registers d, a and b, and how many of a and b it reads."""
    result, *_, operand = name.split(".")[-2:]
    if name.endswith("x2.f32"):
        narrow = result in ("e4m3x2", "e5m2x2")
        return f"{name} h, a, b;\n  cvt.u32.u16 d, h;" if narrow else f"{name} d, a, b;", 2
    if result == "f16x2":
        return f"cvt.u16.u32 h, a;\n  {name} d, h;", 1
    if operand in ("f16", "bf16"):
        return f"cvt.u16.u32 h, a;\n  {name} d, h;", 1
    if result in ("f16", "bf16"):
        return f"{name} h, a;\n  cvt.u32.u16 d, h;", 1
    return (f"{name} d, a, b;", 2) if name.startswith("div") else (f"{name} d, a;", 1)


def scalar_cases() -> Iterator[Case]:
    for name, target in (CONVERSIONS | APPROX).items():
        statement, count = _statement(name)
        params = "\n".join(words("ld", ["ab"[i]], i, BLOCK) for i in range(count))
        body = f"{params}\n  {statement}\n" + words("st", ["d"], count, BLOCK)
        text = kernel(body, count + 1, ".reg .b32 a, b, d; .reg .b16 h;", target)
        shape = (COUNT // BLOCK, 1, BLOCK)
        full_name = ("approx/" if name in APPROX else "convert/") + name
        rng = generator(full_name)
        inputs = [any_bits(rng, COUNT).reshape(shape) for _ in range(count)]
        if name.startswith(("sin", "cos")):  # the documented range
            inputs = [rng.uniform(-np.pi, np.pi, shape).astype(np.float32).view(np.uint32)]
        compare = Compare.APPROX if name in APPROX else Compare.EQUAL
        yield Case(full_name, text, inputs, shape, compare, COUNT // BLOCK, BLOCK)
