"""mma.sync of every kind, in fragments as they lie in registers; wgmma, from raw shared memory."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from .case import (
    SHARED_REGISTERS,
    Case,
    Compare,
    fill_shared,
    kernel,
    registers,
    words,
)
from .values import generator, words_of

# shape, sums, a, b, target
HALVES = [("f32", "bf16"), ("f32", "f16"), ("f16", "f16")]
BYTES = [(a, b) for a in ("s8", "u8") for b in ("s8", "u8")]
MMA = [(f"m16n8k{k}", d, t, t, "sm_80") for k in (16, 8) for d, t in HALVES]
MMA += [(f"m16n8k{k}", "f32", "tf32", "tf32", "sm_80") for k in (8, 4)]
MMA += [(f"m16n8k{k}", "s32", a, b, "sm_80") for k in (32, 16) for a, b in BYTES]
MMA += [("m16n8k32", "f32", a, b, "sm_89") for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")]
BITS = {"bf16": 16, "f16": 16, "tf32": 32, "f32": 32, "s32": 32}
HOW = ("normal", "spread", "cancel", "special")
TILES = 12


def mma_cases() -> Iterator[Case]:
    for shape, d, a, b, target in MMA:
        k = int(shape.rpartition("k")[2])
        counts = {"a": 16 * k, "b": 8 * k, "c": 128, "d": 128}
        kinds = {"a": a, "b": b, "c": d, "d": d}
        regs = {x: registers(x, n * BITS.get(kinds[x], 8) // 1024) for x, n in counts.items()}
        lists = [f"{{{', '.join(regs[x])}}}" for x in "dabc"]
        body = "\n".join(words("ld", regs[x], i) for i, x in enumerate("abc"))
        body += f"\n  mma.sync.aligned.{shape}.row.col.{d}.{a}.{b}.{d} {', '.join(lists)};\n"
        declared = " ".join(f".reg .b32 {', '.join(regs[x])};" for x in "abcd")
        text = kernel(body + words("st", regs["d"], 3), 4, declared, target)
        for how in HOW if d != "s32" else HOW[:1]:
            name = f"mma/{shape}.{d}.{a}.{b}.{d}/{how}"
            rng = generator(name)
            inputs = [words_of(rng, (TILES, len(regs[x]), 32), kinds[x], how) for x in "abc"]
            compare = Compare.EQUAL if d == "s32" else Compare.SUMS
            yield Case(name, text, inputs, (TILES, len(regs["d"]), 32), compare, TILES)


# operands, sums
WGMMA = [("bf16", "f32"), ("f16", "f32"), ("f16", "f16"), ("tf32", "f32"), ("e4m3", "f32")]
WGMMA += [("e5m2", "f32"), ("s8", "s32"), ("u8", "s32")]
IMAGE = 16 << 10  # bytes of each operand in shared memory


def _descriptor(offset: int, swizzle: int, is_row_major: bool) -> str:
    """64 bits of a matrix at base + offset. Atoms lie one after another: of 8 rows of the swizzle's
    width; without a swizzle, of 8 rows of 16 bytes."""
    width = 16 << swizzle
    if swizzle == 0:
        leading, stride = 128, 256
    else:
        leading, stride = (16 * width, 8 * width) if is_row_major else (16, 8 * width)
    high = stride >> 4 | ((4 - swizzle) % 4) << 30
    return f"""
  add.u32 place, base, {offset};
  bfe.u32 place, place, 4, 14;
  or.b32 place, place, {leading >> 4 << 16};
  mov.b32 value, {high};
  mov.b64 %s, {{place, value}};"""


class Form(NamedTuple):
    """Of a wgmma: what its operands are and where."""

    kind: str = "bf16"
    sums: str = "f32"
    n: int = 16
    swizzle: int = 3
    majors: str = "kk"
    a_in_registers: bool = False


def _wgmma(name: str, how: str, form: Form) -> Case:
    kind, d, n, swizzle, majors, a_in_registers = form
    k = 256 // BITS.get(kind, 8)
    sums = registers("d", n // 4 if d == "f16" else n // 2)
    a = registers("a", 4)
    scale = ", 1, 1" if d != "s32" else ""
    if kind in ("bf16", "f16"):  # the others are K-major only
        bits = [major == "m" for major in majors]
        scale += ", " + ", ".join(str(int(x)) for x in (bits[1:] if a_in_registers else bits))
    first = f"{{{', '.join(a)}}}" if a_in_registers else "desc_a"
    body = fill_shared(0, IMAGE // 4, 128) + fill_shared(1, IMAGE // 4, 128, IMAGE)
    body += _descriptor(0, swizzle, majors[0] == "m") % "desc_a"
    body += _descriptor(IMAGE, swizzle, majors[1] == "m") % "desc_b"
    body += "\n" + words("ld", a, 0, 128) + "\n" + words("ld", sums, 2, 128)
    body += f"""
  setp.eq.u32 more, lane, lane;
  fence.proxy.async.shared::cta;
  bar.sync 0;
  wgmma.fence.sync.aligned;
  wgmma.mma_async.sync.aligned.m64n{n}k{k}.{d}.{kind}.{kind}
    {{{", ".join(sums)}}}, {first}, desc_b, more{scale};
  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned 0;
"""
    body += words("st", sums, 3, 128)
    declared = f"{SHARED_REGISTERS} .reg .b64 desc_a, desc_b; .reg .b32 {', '.join(sums + a)};"
    rng = generator(name)
    inputs = [words_of(rng, (IMAGE // 4,), kind, how) for _ in range(2)]
    inputs.append(words_of(rng, (1, len(sums), 128), d, how))
    text = kernel(body, 4, declared, "sm_90a")
    compare = Compare.SUMS if d != "s32" and how != "exact" else Compare.EQUAL
    return Case(name, text, inputs, (1, len(sums), 128), compare, 1, 128, 2 * IMAGE)


def wgmma_cases() -> Iterator[Case]:
    for kind, sums in WGMMA:
        for how in HOW if sums != "s32" else HOW[:1]:
            for place in ("shared", "registers"):
                form = Form(kind, sums, a_in_registers=place == "registers")
                yield _wgmma(f"wgmma/{sums}.{kind}/{how}/{place}", how, form)
    for swizzle in range(4):
        for majors in ("kk", "mk", "km", "mm"):
            name = f"wgmma/layout/swizzle{16 << swizzle}/{majors}"
            yield _wgmma(name, "exact", Form(n=32, swizzle=swizzle, majors=majors))
    for n in (8, 64, 128):
        yield _wgmma(f"wgmma/layout/n{n}", "exact", Form(n=n))


def operands_as_magnitudes(case: Case) -> Case:
    """The same products of absolute values: what the error of a sum is measured by."""
    kinds = case.name.split("/")[1].split(".")
    kinds = kinds[2:] if case.name.startswith("mma") else [kinds[1], kinds[1], kinds[0]]
    signs = {"bf16": 0x80008000, "f16": 0x80008000, "e4m3": 0x80808080, "e5m2": 0x80808080}
    masks = [np.uint32(~signs.get(kind, 0x80000000) & 0xFFFFFFFF) for kind in kinds]
    return case._replace(inputs=[x & m for x, m in zip(case.inputs, masks, strict=True)])
