"""wgmma from its issue to its wait: when it lands, and what must be left alone until then."""

import re

import ptxrun
import pytest
import torch
from ptxrun import KernelError, Landing

LANDINGS = [Landing.LATEST, Landing.EARLIEST, Landing.RANDOM]
M, N, K = 64, 8, 16

# Operands lie in shared memory as cores of 8 rows of 16 bytes, b behind a; `{steps}` multiplies.
KERNEL = """
.version 8.8
.target sm_90a
.address_size 64
.visible .entry one(.param .u64 pa, .param .u64 pb, .param .u64 pd) {{
  .reg .b32 tid, x, zero, w<4>;
  .reg .f32 d<4>, e<4>;
  .reg .b64 at, row, matrix_a, matrix_b;
  .reg .pred p, adds;
  .shared .align 128 .b8 s[2304];
  mov.u32 tid, %tid.x;
  mov.b32 zero, 0;
  setp.eq.u32 adds, zero, 0;
  cvt.u64.u32 row, tid;
  ld.param.u64 at, [pa];
  mad.lo.u64 at, row, 16, at;
  ld.global.v4.b32 {{w0, w1, w2, w3}}, [at];
  shl.b32 x, tid, 4;
  st.shared.v4.b32 [x], {{w0, w1, w2, w3}};
  setp.lt.u32 p, tid, 16;
  ld.param.u64 at, [pb];
  mad.lo.u64 at, row, 16, at;
  @p ld.global.v4.b32 {{w0, w1, w2, w3}}, [at];
  @p st.shared.v4.b32 [x+2048], {{w0, w1, w2, w3}};
  fence.proxy.async;
  bar.sync 0;
  mov.b64 matrix_a, {a};
  mov.b64 matrix_b, {b};
  and.b32 x, tid, 31;
  shr.u32 w0, tid, 5;
  shl.b32 w0, w0, 9;
  shl.b32 x, x, 2;
  add.u32 x, x, w0;
  ld.shared.b32 w0, [x];
  ld.shared.b32 w1, [x+256];
  ld.shared.b32 w2, [x+128];
  ld.shared.b32 w3, [x+384];
  mov.f32 d0, 0f3F800000;
  mov.f32 d1, 0f3F800000;
  mov.f32 d2, 0f3F800000;
  mov.f32 d3, 0f3F800000;
{steps}
  ld.param.u64 at, [pd];
  mad.lo.u64 at, row, 16, at;
{result}
  ret;
}}"""
STORE = "st.global.v4.f32 [at], {{{0}0, {0}1, {0}2, {0}3}};"
FENCE, COMMIT = "wgmma.fence.sync.aligned;", "wgmma.commit_group.sync.aligned;"


def matrix(start):
    """Cores one behind the other along k, then along rows."""
    return start >> 4 | 128 >> 4 << 16 | 256 >> 4 << 32


def product(sums="d", a="matrix_a", adds="adds"):
    transposes = "0" if a != "matrix_a" else "0, 0"
    return (
        f"wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
        f"{{{sums}0, {sums}1, {sums}2, {sums}3}}, {a}, matrix_b, {adds}, 1, 1, {transposes};"
    )


def wait(groups=0):
    return f"wgmma.wait_group.sync.aligned {groups};"


def renamed(new, old):
    return [f"mov.f32 {new}{i}, {old}{i};" for i in range(4)]


def cores(x):
    """As KERNEL lays out an operand."""
    return x.view(-1, 8, K // 8, 8).transpose(1, 2).contiguous()


def launch(steps, sums="d"):
    """What the steps have left in `sums`, and the product."""
    g = torch.Generator().manual_seed(0)
    a, b = (torch.randn(s, K, generator=g).bfloat16() for s in (M, N))
    d = torch.zeros(M // 16, 8, 4, 4)  # warp, row, pair of columns, [row or 8 below][column]
    text = KERNEL.format(
        a=matrix(0), b=matrix(2048), steps="\n".join(steps), result=STORE.format(sums)
    )
    error = ""
    try:
        ptxrun.Module(text).launch("one", [cores(a), cores(b), d], [1], [128])
    except KernelError as e:
        error = str(e)
    got = d.view(4, 8, 4, 2, 2).permute(0, 3, 1, 2, 4).reshape(M, N)
    return got.double(), a.double() @ b.double().T, error


def close(got, want):
    return ((got - want).abs() <= 2.0**-14).all()  # 16 products of size 10 at most, in float


A_IN_REGISTERS = "{w0, w1, w2, w3}"
TWICE = [FENCE, product(), COMMIT, *renamed("e", "d"), product("e"), COMMIT]
TWICE += [*renamed("d", "e"), wait()]
OLDER = [FENCE, *renamed("e", "d"), product(), COMMIT, product("e"), product("e"), COMMIT]
OLDER += [wait(1), *renamed("w", "d"), wait()]
# Steps, the sums that are looked at, and what they are: a start and a number of products.
RIGHT = {
    "one": ([FENCE, product(), COMMIT, wait()], "d", 1, 1),
    "adds nothing": ([FENCE, "setp.ne.u32 adds, zero, 0;", product(), COMMIT, wait()], "d", 0, 1),
    "two in a group": ([FENCE, product(), product(), COMMIT, wait()], "d", 1, 2),
    "a in registers": ([FENCE, product(a=A_IN_REGISTERS), COMMIT, wait()], "d", 1, 1),
    "renamed": ([FENCE, product(), COMMIT, *renamed("e", "d"), wait()], "e", 1, 1),
    "renamed twice": (TWICE, "d", 1, 2),
    "the older of two": (OLDER, "w", 1, 1),
}


@pytest.mark.parametrize("landing", LANDINGS)
@pytest.mark.parametrize("name", RIGHT)
def test_right_steps_are_silent(name, landing):
    steps, sums, start, count = RIGHT[name]
    for seed in range(3):
        with ptxrun.using(landing=landing, seed=seed):
            got, want, error = launch(steps, sums)
        assert error == "" and close(got, start + count * want)


ZERO_B = "st.shared.b32 [x+2048], zero;"
TOUCHED = "wgmma not waited for .* a sum under way is read or written"
FAULTS = {
    "b overwritten": (
        [FENCE, product(), COMMIT, "bar.sync 0;", f"@p {ZERO_B}", wait()],
        "race: write after read .* read by the async proxy for warp",
    ),
    "a overwritten": (
        [FENCE, product(a=A_IN_REGISTERS), COMMIT, "mov.b32 w1, zero;", wait()],
        "wgmma not waited for .* an operand in a register is written",
    ),
    "a is a sum": (
        [FENCE, *renamed("e", "d"), product(), product("e", a="{d0, d1, d2, d3}"), COMMIT, wait()],
        "wgmma not waited for .* an operand is a sum under way",
    ),
    "sums read": ([FENCE, product(), COMMIT, "add.f32 e0, d0, d0;", wait()], TOUCHED),
    "sums overwritten": ([FENCE, product(), COMMIT, "mov.f32 d0, 0f00000000;", wait()], TOUCHED),
    "no wait": ([FENCE, product(), COMMIT], TOUCHED),
    "no commit": ([FENCE, product(), wait()], TOUCHED),
    "a younger group": ([FENCE, product(), COMMIT, product(), COMMIT, wait(1)], TOUCHED),
    "left behind": (
        [FENCE, *renamed("e", "d"), product("e"), COMMIT],
        "wgmma not waited for .* the warp ends while sums are under way",
    ),
    "no fence": ([product(), COMMIT, wait()], "no wgmma.fence"),
}


@pytest.mark.parametrize("landing", LANDINGS)
@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_named(name, landing):
    steps, text = FAULTS[name]
    with ptxrun.using(landing=landing):
        _, _, error = launch(steps)
    assert re.search(text, error), error


@pytest.mark.parametrize("name", ["b overwritten", "a overwritten"])
def test_operands_are_read_when_the_product_lands(name):
    steps, _ = FAULTS[name]
    with ptxrun.using(checks=False, landing=Landing.EARLIEST):
        got, want, _ = launch(steps)
    assert close(got, 1 + want)
    with ptxrun.using(checks=False, landing=Landing.LATEST):
        got, _, _ = launch(steps)
    assert not close(got, 1 + want)


def test_sums_are_written_when_the_product_lands():
    """Without a wait the registers still hold what they were."""
    with ptxrun.using(landing=Landing.LATEST):
        got, _, _ = launch(FAULTS["no wait"][0])
    assert (got == 1).all()
    with ptxrun.using(landing=Landing.EARLIEST):
        got, want, _ = launch(FAULTS["no wait"][0])
    assert close(got, 1 + want)
