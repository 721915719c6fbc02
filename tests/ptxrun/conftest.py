"""CUTLASS's programs. Imported late: without CUTLASS, cutlass_gemm skips whoever imports it."""

import pytest


@pytest.fixture(scope="session")
def sm80():
    from cutlass_gemm import program

    return program("cutlass_sm80.cu", "sm_80")


@pytest.fixture(scope="session")
def sm90():
    from cutlass_gemm import program

    return program("cutlass_sm90.cu", "sm_90a")
