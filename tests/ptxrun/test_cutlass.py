"""Kernels known to be right on hardware, unmodified: right numbers, no reports, in any schedule."""

import importlib.util
from pathlib import Path

import ptxrun
import pytest
import torch
from dropped import survivors
from ptxrun import Landing, MmaMode, Order

PROGRAMS = Path(__file__).parent / "programs"
SPEC = importlib.util.find_spec("cutlass_library")
pytestmark = pytest.mark.skipif(SPEC is None, reason="nvidia-cutlass is not installed")

BF16, F16, TF32, INT8 = range(4)  # gemm() of cutlass_sm80.cu
PINGPONG, COOPERATIVE, CP_ASYNC, CLUSTER, MIXED = range(5)  # and of cutlass_sm90.cu, _mixed.cu
SHAPES = [(64, 64, 64), (104, 136, 208), (16, 256, 128)]


def program(name, arch):
    source = Path(SPEC.submodule_search_locations[0]) / "source"
    return ptxrun.Program(
        PROGRAMS / name, arch, [f"-I{source / 'include'}", f"-I{source / 'tools/util/include'}"]
    )


@pytest.fixture(scope="module")
def sm80():
    # A stage is prefetched that nobody uses.
    with ptxrun.using(uninitialised=False):
        yield program("cutlass_sm80.cu", "sm_80")


@pytest.fixture(scope="module")
def sm90():
    yield program("cutlass_sm90.cu", "sm_90a")


@pytest.fixture(scope="module")
def mixed():
    yield program("cutlass_mixed.cu", "sm_90a")


def operands(m, n, k, dtype):
    g = torch.Generator().manual_seed(m + n + k)
    if dtype == torch.int8:
        a, b = (torch.randint(-128, 128, s, generator=g, dtype=dtype) for s in ((m, k), (n, k)))
        return a, b, torch.randint(-99, 99, (m, n), generator=g, dtype=torch.int32)
    a, b = (torch.randn(s, generator=g).to(dtype) for s in ((m, k), (n, k)))
    return a, b, torch.randn(m, n, generator=g)


def run_sm80(gemm, which, m, n, k):
    dtype = [torch.bfloat16, torch.float16, torch.float32, torch.int8][which]
    a, b, c = operands(m, n, k, dtype)
    if which == TF32:  # what the instruction looks at
        a, b = ((x.view(torch.int32) & ~0x1FFF).view(torch.float32) for x in (a, b))
    d = torch.zeros_like(c)
    columns = which == F16
    x, y = (a.T.contiguous(), b.T.contiguous()) if columns else (a, b)
    strides = (m, n) if columns else (k, k)
    beta = 1.0 if which == INT8 else 0.5
    assert gemm("gemm", which, m, n, k, *strides, x, y, c, d, 1.0, beta) == 0
    terms = a.double().abs() @ b.double().abs().T + c.double().abs()
    error = (d.double() - (a.double() @ b.double().T + beta * c.double())).abs()
    assert (error <= terms * 2.0**-19).all()


def run_sm90(gemm, which, m, n, k):
    a, b, c = operands(m, n, k, torch.bfloat16)
    if which == MIXED:
        a = operands(m, n, k, torch.int8)[0]
    d = torch.zeros(m, n, dtype=torch.bfloat16)
    x, y = (a.T.contiguous(), b.T.contiguous()) if which == COOPERATIVE else (a, b)
    with ptxrun.using(proxy_fences=which != CP_ASYNC):  # CUTLASS has no fence.proxy.async there
        assert gemm("gemm", which, m, n, k, x, y, c, d, 1.0, 0.5) == 0
    want = a.double() @ b.double().T + 0.5 * c.double()
    terms = a.double().abs() @ b.double().abs().T + c.double().abs()
    assert ((d.double() - want).abs() <= terms * 2.0**-19 + want.abs() * 2.0**-8).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("which", [BF16, F16, TF32, INT8])
def test_sm80(sm80, which, shape):
    run_sm80(sm80, which, *shape)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("which", [PINGPONG, COOPERATIVE, CP_ASYNC, CLUSTER])
def test_sm90(sm90, which, shape):
    run_sm90(sm90, which, *shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_int8_weights_in_registers(mixed, shape):
    run_sm90(mixed, MIXED, *shape)


@pytest.mark.parametrize("landing", [Landing.EARLIEST, Landing.RANDOM])
@pytest.mark.parametrize("order", [Order.REVERSE, Order.RANDOM])
def test_in_any_schedule(sm80, sm90, mixed, order, landing):
    with ptxrun.using(order=order, landing=landing, seed=7, resident=4):
        run_sm80(sm80, BF16, *SHAPES[1])
        for which in (PINGPONG, COOPERATIVE, CP_ASYNC, CLUSTER):
            run_sm90(sm90, which, *SHAPES[1])
        run_sm90(mixed, MIXED, *SHAPES[1])


@pytest.mark.parametrize("mode", [MmaMode.BLOCK_TRUNCATED, MmaMode.PERMUTED])
def test_sums_in_any_order(sm80, sm90, mode):
    with ptxrun.using(mma=mode):
        run_sm80(sm80, BF16, *SHAPES[0])
        run_sm90(sm90, PINGPONG, *SHAPES[0])


@pytest.mark.parametrize(
    ("pattern", "unnoticed"),
    [
        (r"bar\.sync", 2),  # one ends the main loop, one starts the epilogue: either will do
        (r"cp\.async\.wait_group", 0),
        (r"cp\.async\.commit_group", 1),  # of an empty group, behind the last copies
        (r"mma\.sync", 0),
        (r"cp\.async\.cg", 0),
    ],
)
def test_sm80_needs_each(sm80, pattern, unnoticed):
    def call():
        run_sm80(sm80, BF16, *SHAPES[1])

    assert len(survivors(call, "10bfloat16_tE", pattern)) == unnoticed


@pytest.mark.parametrize(
    "pattern",
    [
        r"wgmma\.fence",
        r"wgmma\.mma_async",
        r"wgmma\.commit_group",
        r"wgmma\.wait_group",
        r"mbarrier\.arrive\.expect_tx",
        r"cp\.async\.bulk\.tensor",
    ],
)
def test_sm90_needs_each(sm90, pattern):
    """Over more k than there are stages, so that each is used again."""

    def call():
        run_sm90(sm90, PINGPONG, 64, 128, 1024)

    assert survivors(call, "KernelTmaWarpSpecializedPingpong", pattern) == []
