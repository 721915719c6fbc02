"""Loads, stores, atomics, addresses, moves and hints, one instruction at a time."""

import re
from pathlib import Path

import ptxrun
import pytest
import torch
from ptxrun import _ptxrun
from ptxrun_opcode import run

LANES = 32
ROW = "ld.param.u64 at, [p1]; mad.lo.u64 at, row, 8, at; "  # of a 64-bit operand
BASE = "ld.param.u64 at, [p1]; "


def wrapped(x, bits=32):
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def test_loads_extend():
    words = torch.randint(-(2**63), 2**63 - 1, (LANES,), dtype=torch.int64)
    raw = words.view(torch.uint8).view(LANES, 8)
    wants = {
        "ld.global.u8 d, [at+3];": raw[:, 3].int(),
        "ld.global.s8 d, [at+3];": raw[:, 3].view(torch.int8).int(),
        "ld.global.u16 d, [at+6];": raw.view(torch.int16)[:, 3].int() & 0xFFFF,
        "ld.global.s16 d, [at+6];": raw.view(torch.int16)[:, 3].int(),
        "ld.global.b32 d, [at+4];": raw.view(torch.int32)[:, 1],
        "ld.global.nc.b32 d, [at+4];": raw.view(torch.int32)[:, 1],
        "ld.volatile.global.b32 d, [at+4];": raw.view(torch.int32)[:, 1],
        "ldu.global.b32 d, [at+4];": raw.view(torch.int32)[:, 1],
        "{ .reg .b32 x; ld.global.v2.b32 {x, d}, [at]; }": raw.view(torch.int32)[:, 1],
        "{ .reg .b16 a<4>; .reg .b32 x; ld.global.v4.b16 {a0, a1, a2, a3}, [at]; "
        "mov.b32 d, {a1, a2}; }": (raw.view(torch.int16)[:, 1].int() & 0xFFFF)
        | raw.view(torch.int16)[:, 2].int() << 16,
    }
    for body, want in wants.items():
        assert torch.equal(run(ROW + body, "b32", ["b64"], [words]), want), body


def test_stores_write_their_bytes_only():
    values = torch.arange(LANES, dtype=torch.int64) - 5
    low = values & 0xFF
    for body, want in {
        "st.global.u8 [at+1], a0;": -1 & ~0xFF00 | low << 8,
        "st.global.u16 [at+2], a0;": -1 & ~0xFFFF0000 | (values & 0xFFFF) << 16,
        "st.global.b32 [at+4], a0;": (values << 32) | 0xFFFFFFFF,
        "{ .reg .b32 x; cvt.u32.u64 x, a0; st.global.v2.b32 [at], {x, x}; }": (values << 32)
        | (values & 0xFFFFFFFF),
        "st.relaxed.gpu.global.b64 [at], a0;": values,
    }.items():
        place = torch.full((LANES,), -1, dtype=torch.int64)
        text = "ld.param.u64 at, [p2]; mad.lo.u64 at, row, 8, at; " + body + " mov.b64 d, a0;"
        run(text, "b64", ["b64", "b64"], [values, place])
        assert torch.equal(place, want), body


# Of the old value, two operands, and the mask of the width.
ATOMICS = {
    "add.u": lambda old, b, c, m: old + b,
    "min.s": lambda old, b, c, m: min(old, b),
    "max.s": lambda old, b, c, m: max(old, b),
    "min.u": lambda old, b, c, m: min(old & m, b & m),
    "max.u": lambda old, b, c, m: max(old & m, b & m),
    "inc.u": lambda old, b, c, m: 0 if old & m >= b & m else old + 1,
    "dec.u": lambda old, b, c, m: b if old == 0 or old & m > b & m else old - 1,
    "and.b": lambda old, b, c, m: old & b,
    "or.b": lambda old, b, c, m: old | b,
    "xor.b": lambda old, b, c, m: old ^ b,
    "exch.b": lambda old, b, c, m: b,
    "cas.b": lambda old, b, c, m: c if old == b else old,
}
NARROW = {"inc.u", "dec.u"}  # of 32 bits only


@pytest.mark.parametrize(
    ("name", "bits"), [(n, b) for n in ATOMICS for b in (32, 64) if b == 32 or n not in NARROW]
)
def test_atomics_take_their_turns(name, bits):
    """Lanes come in ascending order; each sees what those before it have left."""
    dtype = torch.int32 if bits == 32 else torch.int64
    g = torch.Generator().manual_seed(1)
    b, c = (torch.randint(-4, 5, (LANES,), generator=g, dtype=dtype) for _ in range(2))
    place = torch.full((LANES,), 3, dtype=dtype)
    old, olds = 3, []
    for x, y in zip(b.tolist(), c.tolist(), strict=True):
        olds.append(old)
        old = wrapped(ATOMICS[name](old, x, y, (1 << bits) - 1), bits)
    operands, values = [f"b{bits}"] * 3, [place, b, c]
    more = ", a2" if name == "cas.b" else ""
    got = run(BASE + f"atom.global.{name}{bits} d, [at], a1{more};", operands[0], operands, values)
    assert got.tolist() == olds and place[0].item() == old
    if name not in ("exch.b", "cas.b"):
        place[0] = 3
        body = BASE + f"red.global.{name}{bits} [at], a1; mov.b{bits} d, a0;"
        run(body, operands[0], operands, values)
        assert place[0].item() == old


def test_float_atomics():
    x = torch.randn(LANES)
    place = torch.zeros(LANES)
    bits = [t.view(torch.int32) for t in (place, x)]
    run(BASE + "atom.global.add.f32 d, [at], a1;", "b32", ["b32"] * 2, bits)
    total = torch.zeros(())
    for value in x:
        total = total + value
    assert torch.equal(place[0], total)
    halves = torch.randn(LANES, 2).half()
    place = torch.zeros(LANES, 2).half()
    bits = [t.view(torch.int32).view(-1) for t in (place, halves)]
    run(BASE + "red.global.add.noftz.f16x2 [at], a1; mov.b32 d, a0;", "b32", ["b32"] * 2, bits)
    total = torch.zeros(2).half()
    for value in halves:
        total = total + value
    assert torch.equal(place[0], total)


def test_moves_pack_and_unpack():
    a, b = (torch.randint(-(2**31), 2**31 - 1, (LANES,), dtype=torch.int32) for _ in range(2))
    got = run("mov.b64 d, {a0, a1};", "b64", ["b32"] * 2, [a, b])
    assert torch.equal(got.view(torch.int32).view(-1, 2), torch.stack([a, b], 1))
    got = run("{ .reg .b16 x, y; mov.b32 {x, y}, a0; mov.b32 d, {y, x}; }", "b32", ["b32"], [a])
    assert torch.equal(got.view(torch.int16).view(-1, 2), a.view(torch.int16).view(-1, 2).flip(1))


def test_selections():
    a, b = torch.tensor([1, 2, 3, 4] * 2, dtype=torch.int32), torch.arange(8, dtype=torch.int32)
    c = torch.tensor([-(2**31), -1, 0, 1, 5, -5, 7, 0], dtype=torch.int32)
    args = [a, b, c]
    want = torch.where(c >= 0, a, b)
    assert torch.equal(run("slct.b32.s32 d, a0, a1, a2;", "b32", ["b32"] * 3, args), want)
    f = torch.tensor([-1.0, -0.0, 0.0, 1e-40, float("nan"), float("-inf"), 2.0, float("inf")])
    got = run("slct.b32.f32 d, a0, a1, a2;", "b32", ["b32"] * 3, [a, b, f.view(torch.int32)])
    assert torch.equal(got, torch.where(f >= 0, a, b))
    got = run("set.lt.u32.s32 d, a0, a1;", "b32", ["b32"] * 2, [a, b])
    assert torch.equal(got, -(a < b).int())
    got = run("set.lt.f32.s32 d, a0, a1;", "b32", ["b32"] * 2, [a, b])
    assert torch.equal(got.view(torch.float32), (a < b).float())
    for body, want in (("and", a & b), ("or", a | b), ("xor", a ^ b)):
        assert torch.equal(run(f"{body}.b32 d, a0, a1;", "b32", ["b32"] * 2, [a, b]), want)
    body = "{ .reg .pred p, q; setp.lt.s32 p, a0, a1; setp.gt.s32 q, a2, 0; %s.pred p, p, q; selp.b32 d, 1, 0, p; }"
    for name, want in (
        ("and", (a < b) & (c > 0)),
        ("or", (a < b) | (c > 0)),
        ("xor", (a < b) ^ (c > 0)),
    ):
        assert torch.equal(run(body % name, "b32", ["b32"] * 3, args), want.int())


def test_carries():
    a = torch.tensor([-1, 0, -1, 5], dtype=torch.int32)
    b = torch.tensor([1, 0, -1, -5], dtype=torch.int32)
    carry = [1, 0, 1, 1]
    got = run("add.cc.u32 d, a0, a1; addc.u32 d, 0, 0;", "b32", ["b32"] * 2, [a, b])
    assert got.tolist() == carry
    got = run("sub.cc.u32 d, a0, a1; subc.u32 d, 0, 0;", "b32", ["b32"] * 2, [a, b])
    assert got.tolist() == [0, 0, 0, -1]


def test_addresses_of_every_space():
    body = """{ .shared .align 4 .b32 s; .local .align 4 .b32 l; .reg .b64 g; .reg .pred p; .reg .b32 x;
    mov.u64 g, s; cvta.shared.u64 g, g; isspacep.shared p, g; selp.b32 d, 1, 0, p;
    isspacep.global p, g; selp.b32 x, 2, 0, p; or.b32 d, d, x;
    st.u32 [g], 7; cvta.to.shared.u64 g, g; ld.shared.u32 x, [g]; shl.b32 x, x, 4; or.b32 d, d, x;
    mov.u64 g, l; cvta.local.u64 g, g; isspacep.local p, g; selp.b32 x, 256, 0, p; or.b32 d, d, x;
    ld.param.u64 g, [p1]; isspacep.global p, g; selp.b32 x, 512, 0, p; or.b32 d, d, x; }"""
    got = run(body, "b32", ["b32"], [torch.zeros(1, dtype=torch.int32)])
    assert got.tolist() == [1 | 7 << 4 | 256 | 512]


def test_branches_by_index():
    body = """ts: .branchtargets L0, L1, L2; brx.idx a0, ts; L0: mov.b32 d, 10; bra E;
    L1: mov.b32 d, 11; bra E; L2: mov.b32 d, 12; E: add.u32 d, d, a0;"""
    index = torch.arange(LANES, dtype=torch.int32) % 3
    assert torch.equal(run(body, "b32", ["b32"], [index]), 10 + 2 * index)


def test_hints_do_nothing():
    for hint in (
        "prefetch.global.L2 [at];",
        "prefetchu.L1 [at];",
        "discard.global.L2 [at], 128;",
        "applypriority.global.L2::evict_normal [at], 128;",
        "nanosleep.u32 20;",
        "pmevent 1;",
        "setmaxnreg.inc.sync.aligned.u32 232;",
        "membar.gl;",
        "fence.acq_rel.gpu;",
        "griddepcontrol.wait;",
    ):
        x = torch.arange(LANES, dtype=torch.int32)
        body = BASE + hint + " mov.b32 d, a0;"
        assert torch.equal(run(body, "b32", ["b32"], [x], target="sm_90a"), x), hint


def test_early_ends():
    x = torch.arange(1, LANES + 1, dtype=torch.int32)
    body = "{{ .reg .pred p; setp.gt.s32 p, a0, 7; @p {0}; mov.b32 d, a0; }}"
    for end in ("exit", "ret"):
        assert torch.equal(run(body.format(end), "b32", ["b32"], [x]), x * (x <= 7))
    for end in ("trap", "brkpt"):
        with pytest.raises(ptxrun.KernelError, match="trap"):
            run(body.format(end), "b32", ["b32"], [x])


def test_one_lane_is_elected():
    body = "{ .reg .pred p; .reg .b32 x; elect.sync x|p, -1; selp.b32 d, 1, 0, p; }"
    got = run(body, "b32", ["b32"], [torch.zeros(LANES, dtype=torch.int32)], target="sm_90a")
    assert got.tolist() == [1] + [0] * (LANES - 1)
    body = "{ .shared .align 4 .b32 s; .reg .b32 x; mov.u32 x, s; getctarank.shared::cluster.u32 d, x; }"
    got = run(body, "b32", ["b32"], [torch.ones(LANES, dtype=torch.int32)], target="sm_90a")
    assert got.tolist() == [0] * LANES


def test_matrices_are_stored_and_transposed():
    words = torch.randint(-(2**31), 2**31 - 1, (LANES,), dtype=torch.int32)
    matrix = words.view(torch.int16).view(8, 8)
    got = run("movmatrix.sync.aligned.m8n8.trans.b16 d, a0;", "b32", ["b32"], [words])
    assert torch.equal(got.view(torch.int16).view(8, 8), matrix.T)
    body = """{{ .shared .align 16 .b8 s[128]; .reg .b32 x, y; mov.u32 x, s; and.b32 y, tid, 7;
    shl.b32 y, y, 4; add.u32 y, x, y; stmatrix.sync.aligned.m8n8.x1{0}.shared.b16 [y], {{a0}};
    bar.warp.sync -1; shl.b32 y, tid, 2; add.u32 y, x, y; ld.shared.b32 d, [y]; }}"""
    for trans, want in (("", matrix), (".trans", matrix.T)):
        got = run(body.format(trans), "b32", ["b32"], [words], target="sm_90a")
        assert torch.equal(got.view(torch.int16).view(8, 8), want), trans


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [2, 4])
def test_several_matrices_are_stored(count, trans):
    """Lane i has the address of row i % 8 of matrix i / 8; rows lie 16 bytes apart."""
    words = torch.randint(-(2**31), 2**31 - 1, (count, LANES), dtype=torch.int32)
    registers = ", ".join(f"a{i}" for i in range(count))
    for i in range(count):
        body = f"""{{ .shared .align 16 .b8 s[512]; .reg .b32 x, y; mov.u32 x, s;
        and.b32 y, tid, {8 * count - 1}; shl.b32 y, y, 4; add.u32 y, x, y;
        stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [y], {{{registers}}};
        bar.warp.sync -1; shl.b32 y, tid, 2; add.u32 y, x, y; ld.shared.b32 d, [y+{128 * i}]; }}"""
        got = run(body, "b32", ["b32"] * count, list(words), target="sm_90a")
        matrix = words[i].view(torch.int16).view(8, 8)
        assert torch.equal(got.view(torch.int16).view(8, 8), matrix.T if trans else matrix)


def test_every_instruction_has_a_test():
    tests = "".join(
        p.read_text() for p in Path(__file__).parent.rglob("*") if p.suffix in (".py", ".cu")
    )
    names = {name.split(".")[0] for name in _ptxrun.instructions()}
    assert len(names) > 80
    assert {name for name in names if not re.search(rf'[\s;"{{]{name}[.;"\s]', tests)} == set()
