"""Counters, samples of a grid, launches with structs, and the command line."""

import ctypes
import sys
from pathlib import Path

import ptxrun
import pytest
import torch
from ptxrun.__main__ import main
from ptxrun.counters import class_of, matrix_kind, multiply_adds

SOURCE = Path(__file__).parent / "kernels/tools.cu"


class View(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("stride", ctypes.c_int64))


class Params(ctypes.Structure):
    _fields_ = (("x", View), ("y", ctypes.c_void_p), ("count", ctypes.c_int32))


@pytest.fixture(scope="module")
def module():
    return ptxrun.Module(SOURCE)


@pytest.fixture(autouse=True)
def fresh():
    ptxrun.counters(reset=True)


def only_kernel():
    (kernel,) = ptxrun.by_kernel()
    return kernel


def test_a_struct_points_to_its_tensors(module):
    x, y = torch.arange(200.0), torch.zeros(100)
    params = Params(x=View(stride=2), count=100)
    tensors = {"x.data": x, "y": y}
    module.launch("doubled", params, [4], [32], tensors=tensors)
    assert torch.equal(y, 2 * x[::2])
    at_offsets = {0: x, Params.y.offset: y.zero_()}
    module.launch("doubled", bytes(params), [4], [32], tensors=at_offsets)
    assert torch.equal(y, 2 * x[::2])


def test_a_struct_reaches_only_its_tensors(module):
    x, y = torch.arange(198.0), torch.zeros(100)
    params = Params(x=View(stride=2), count=100)
    with pytest.raises(ptxrun.KernelError, match=r"past the end of x\.data"):
        module.launch("doubled", params, [4], [32], tensors={"x.data": x, "y": y})
    with pytest.raises(TypeError, match="names a field"):
        module.launch("doubled", bytes(params), [4], [32], tensors={"x.data": x, "y": y})
    with pytest.raises(ValueError, match="a parameter has 32 bytes, got 31"):
        module.launch("doubled", bytes(params)[:-1], [4], [32])


def test_checks_of_one_launch(module):
    checks = ptxrun.Module(SOURCE.with_name("checks.cu"))
    x, y = torch.ones(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    checks.launch("no_barrier", [x, y], [1], [64], checks=False)
    assert ptxrun.options().checks
    with pytest.raises(ptxrun.KernelError, match="race"):
        checks.launch("no_barrier", [x, y], [1], [64])


def test_classes_and_kinds():
    classes = {
        "ld.global.nc.v4.u32": "ld.global",
        "ld.shared::cluster.u32": "ld.shared",
        "st.u32": "st.generic",
        "mad.lo.s32": "integer",
        "div.s32": "integer",
        "div.rn.f32": "approx",
        "fma.rn.f32": "float",
        "add.rn.bf16x2": "float",
        "cvt.rn.bf16.f32": "convert",
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32": "matrix",
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16": "matrix",
        "wgmma.wait_group.sync.aligned": "fence",
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16": "matrix load",
        "cp.async.cg.shared.global": "copy",
        "bar.sync": "barrier",
        "mbarrier.try_wait.parity.shared::cta.b64": "mbarrier",
        "shfl.sync.bfly.b32": "exchange",
        "@nothing": "integer",
    }
    assert {opcode: class_of(opcode) for opcode in classes} == classes
    kind = matrix_kind("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32")
    assert (kind, multiply_adds(kind)) == ("m16n8k16.f32.bf16.bf16.f32", 16 * 8 * 16)
    kind = matrix_kind("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16")
    assert (kind, multiply_adds(kind)) == ("m64n128k16.f32.bf16.bf16", 16 * 128 * 16)
    assert matrix_kind("fma.rn.f32") == ""


def test_sums_of_a_kernel(module):
    """A warp of 32 lanes, one of 4: 36 floats, 128 + 16 bytes in, as many out."""
    x, y = torch.arange(36.0), torch.zeros(36)
    params = Params(x=View(stride=1), count=36)
    module.launch("doubled", params, [2], [32], tensors={"x.data": x, "y": y})
    kernel = only_kernel()
    assert (kernel.total.launches, kernel.total.ctas, kernel.total.threads) == (1, 2, 32)
    assert (kernel.bytes, kernel.sectors, kernel.ideal_sectors) == (288, 10, 10)
    assert kernel.classes["ld.global"] == kernel.classes["st.global"] == 2
    assert kernel.classes["float"] == 2 and kernel.barriers == 0
    assert sum(kernel.classes.values()) == kernel.total.instructions
    assert 0.5 < kernel.simd < 1
    text = ptxrun.table(ptxrun.counters())
    assert "model" in text and "2 CTAs of 32 threads" in text and "ld.global 2" in text


def test_a_copy_counts_both_its_sides(module):
    x, y = torch.zeros(6 * 32, 4, dtype=torch.int32), torch.zeros(4 * 32, 4, dtype=torch.int32)
    module.launch("two_stages", [x, y], [1], [32])
    (copies,) = {
        (r.runs, r.bytes, r.sectors, r.waves, r.ideal_waves)
        for r in ptxrun.counters()
        if r.opcode.startswith("cp.async.cg") and r.runs == 1
    }
    assert copies == (1, 512, 16, 4, 4)
    assert only_kernel().total.in_flight == 1024


@pytest.mark.parametrize("sample", [0, 1, 5, 64, 100])
def test_a_sample_stands_for_the_grid(module, sample):
    """Sectors of `own` grow with the CTAs, those of `shared` stay."""
    shared, own, out = torch.randn(512), torch.randn(64 * 128), torch.zeros(64 * 128)
    with ptxrun.using(footprint=True, sample=sample):
        module.launch("shared_and_own", [shared, own, out], [64], [128])
    total, kernel = only_kernel().total, only_kernel()
    assert total.ctas == 64
    assert kernel.bytes == 64 * 128 * 4 * 6
    assert total.instructions == sum(kernel.classes.values())
    assert total.footprint == {
        "argument 0": (64, 0),
        "argument 1": (1024, 0),
        "argument 2": (0, 1024),
    }


def run_main(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["ptxrun", *map(str, arguments)])
    main()
    return capsys.readouterr().out


def test_command_line(monkeypatch, capsys, tmp_path):
    def run(*arguments):
        return run_main(monkeypatch, capsys, *arguments)

    names = run(SOURCE, "--list").splitlines()
    assert names == run(SOURCE).splitlines() and len(names) == 4
    assert all(": " in line and " instructions, " in line for line in names)
    assert "ld.global" in run(SOURCE, "--census")
    shape = ("--grid", 2, "--block", 128)
    pattern = ("--counters", "shared_and_own", "f32:512", "f32:2x128", "f32:256")
    assert "2 CTAs of 128 threads" in run(SOURCE, *pattern, *shape)
    ptx = tmp_path / "tools.ptx"
    ptx.write_text(ptxrun.compiled(SOURCE, "sm_90"))
    assert run(ptx, "--list").splitlines() == names
    with pytest.raises(SystemExit):
        run()
