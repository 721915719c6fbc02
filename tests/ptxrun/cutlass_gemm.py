"""CUTLASS's GEMMs, unmodified, and what they must give."""

import importlib.util
from pathlib import Path

import ptxrun
import pytest
import torch

PROGRAMS = Path(__file__).parent / "programs"
SPEC = importlib.util.find_spec("cutlass_library")
if SPEC is None:
    pytest.skip("nvidia-cutlass is not installed", allow_module_level=True)

BF16, F16, TF32, INT8 = range(4)  # gemm() of cutlass_sm80.cu
PINGPONG, COOPERATIVE, CP_ASYNC, CLUSTER, MIXED = range(5)  # and of cutlass_sm90.cu, _mixed.cu


def program(name, arch):
    source = Path(SPEC.submodule_search_locations[0]) / "source"
    return ptxrun.Program(
        PROGRAMS / name, arch, [f"-I{source / 'include'}", f"-I{source / 'tools/util/include'}"]
    )


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
    with ptxrun.using(uninitialised=False):  # a stage is prefetched that nobody uses
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
