"""CUTLASS's kernels with one instruction fewer, or one that is off: a check speaks or numbers are
wrong. Those that may go are listed with the reason.

Shapes use every stage again, within the sums of one tile for sm_80, and for sm_90a from tile to
tile: a CTA that waits within a tile would hide that it does not between tiles."""

import pytest
from cutlass_gemm import BF16, COOPERATIVE, PINGPONG, run_sm80, run_sm90
from dropped import assert_each_matters, drop, granted, move_box, shift

long = pytest.mark.long
TAIL = "the producer's last waits, for the other CTAs of a cluster"
FENCED = "another stands behind it, or no copy signals there; and the cluster is one CTA"
ORDER = "which warps go first: speed alone"
FIRST = "of the first of several in order, who waits for nobody"
UNUSED = "orders loads of an epilogue; this one loads by itself"
READ = "between a read and the copy that overwrites: ptxrun asks for one before a copy reads"
EVERY = "of a prefetch, of the last waits, or of nothing: every lane may"

SM80 = [
    (
        r"bar\.sync",
        drop,
        {(2, 3): "one ends the main loop, one starts the epilogue: either will do"},
    ),
    (r"cp\.async\.wait_group", drop, {}),
    (r"cp\.async\.commit_group", drop, {(3,): "of an empty group, behind the last copies"}),
    (r"cp\.async\.cg", drop, {}),
    (r"cp\.async\.cg", shift(0), {}),
    (r"cp\.async\.cg", shift(1), {}),
    (r"ldmatrix", drop, {}),
    (r"ldmatrix", shift(0), {}),
    (r"mma\.sync", drop, {}),
    (r"(?:ld|st)\.shared", shift(0), {}),
    (r"ld\.global", shift(0), {}),
    (r"st\.global", shift(0), {}),
]
LOAD = r"cp\.async\.bulk\.tensor[^;]*complete_tx"
STORE = r"cp\.async\.bulk\.tensor[^;]*bulk_group"
SM90 = [
    (r"wgmma\.", drop, {}),
    (r"mbarrier\.(?:arrive\.)?expect_tx", drop, {}),
    (r"bar\.sync", drop, {}),
    (LOAD, drop, {}),
    (LOAD, shift(0, 128), {}),
    (LOAD, shift(2, 8), {}),
    (LOAD, move_box(0, 8), {}),
    (LOAD, move_box(1, 1), {}),
]
# One CTA, three tiles of five steps of k, nine stages; two groups of warps take turns.
PINGPONG_ONLY = [
    (r"mbarrier\.init", drop, {(18,): FIRST}),
    (r"mbarrier\.init", shift(0, 8), {}),
    (r"mbarrier\.arrive\.shared", drop, {(4,): UNUSED}),
    (r"mbarrier\.arrive", shift(0, 8), {}),
    (r"mbarrier\.try_wait", granted, {(0, 5): ORDER, range(7, 16): TAIL}),
    (r"mbarrier\.try_wait", shift(0, -8), {(7, 8, 9, 11, 12, 13, 14, 15): TAIL}),
    (r"fence\.mbarrier_init", drop, {range(4): FENCED}),
    (r"elect\.sync", granted, {(0, 1, 3, 4, 8): EVERY}),
    pytest.param(r"[ls][dt]\.global", shift(0, 4), {}, marks=long),
    pytest.param(r"st\.global", drop, {}, marks=long),
]
# One CTA, three tiles of ten steps, 14 stages; tensor copies bring C and take the result.
LAST = (*range(2, 16), 24, 25)
COOPERATIVE_ONLY = [
    (STORE, drop, {}),
    (STORE, shift(1, 128), {}),
    (STORE, move_box(0, 8), {}),
    (STORE, move_box(1, 1), {}),
    (r"cp\.async\.bulk\.(?:commit|wait)_group", drop, {}),
    (r"stmatrix", drop, {}),
    (r"stmatrix", shift(0), {}),
    (r"fence\.", drop, {range(3): FENCED, (3, 5): READ}),
    (r"mbarrier\.(?:arrive|expect_tx)", shift(0, 8), {}),
    (r"mbarrier\.arrive", drop, {}),
    pytest.param(r"mbarrier\.init", drop, {(32,): FIRST}, marks=long),
    pytest.param(r"mbarrier\.init", shift(0, 8), {}, marks=long),
    pytest.param(r"mbarrier\.try_wait", granted, {(0,): ORDER, LAST: TAIL}, marks=long),
    pytest.param(r"mbarrier\.try_wait", shift(0, -8), {LAST[:12] + LAST[13:]: TAIL}, marks=long),
    pytest.param(r"ld\.shared", drop, {}, marks=long),
    pytest.param(r"ld\.shared", shift(0, 4), {}, marks=long),
]


@pytest.mark.parametrize(("pattern", "change", "reasons"), SM80)
def test_sm80_needs_each(sm80, pattern, change, reasons):
    def call():
        run_sm80(sm80, BF16, 72, 64, 200)

    assert_each_matters(call, "10bfloat16_tE", pattern, change, reasons)


@pytest.mark.parametrize(("pattern", "change", "reasons"), SM90 + PINGPONG_ONLY)
def test_pingpong_needs_each(sm90, pattern, change, reasons):
    def call():
        run_sm90(sm90, PINGPONG, 64, 384, 320)

    assert_each_matters(call, "KernelTmaWarpSpecializedPingpong", pattern, change, reasons)


@pytest.mark.parametrize(("pattern", "change", "reasons"), SM90 + COOPERATIVE_ONLY)
def test_cooperative_needs_each(sm90, pattern, change, reasons):
    def call():
        run_sm90(sm90, COOPERATIVE, 128, 192, 320)

    assert_each_matters(call, "KernelTmaWarpSpecializedCooperative", pattern, change, reasons)
