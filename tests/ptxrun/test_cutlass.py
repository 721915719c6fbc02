"""Kernels known to be right on hardware, unmodified: right numbers, no reports, in any schedule."""

import ptxrun
import pytest
from cutlass_gemm import (
    BF16,
    CLUSTER,
    COOPERATIVE,
    CP_ASYNC,
    F16,
    INT8,
    MIXED,
    PINGPONG,
    TF32,
    program,
    run_sm80,
    run_sm90,
)
from ptxrun import Landing, MmaMode, Order

SHAPES = [(64, 64, 64), (104, 136, 208), (16, 256, 128)]


@pytest.fixture(scope="module")
def mixed():
    return program("cutlass_mixed.cu", "sm_90a")


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
