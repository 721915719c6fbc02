"""mbarriers, bulk and tensor copies, clusters: right kernels are silent, each missing step shows."""

from pathlib import Path

import ptxrun
import pytest
import torch
from ptxrun import KernelError, Landing, Order

FAULTS = [
    "none",
    "no expect",
    "no wait",
    "no fence",
    "no store wait",
    "no empty wait",
    "short expect",
]


@pytest.fixture(scope="module")
def program():
    return ptxrun.Program(Path(__file__).parent / "programs/hopper.cu", "sm_90a")


@pytest.mark.parametrize("order", [Order.FORWARD, Order.REVERSE, Order.RANDOM])
@pytest.mark.parametrize("landing", [Landing.LATEST, Landing.EARLIEST, Landing.RANDOM])
def test_pipeline_in_any_schedule(program, order, landing):
    x = torch.randn(2048)
    for seed in range(3):
        y = torch.zeros(2048)
        with ptxrun.using(order=order, landing=landing, seed=seed):
            assert program("run_pipe", 0, x, y, len(x)) == 0
        assert torch.equal(y, x + 1)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("no expect", "async copy not waited for|uninitialised"),
        ("no wait", "async copy not waited for|uninitialised"),
        ("no fence", "no fence.proxy.async"),
        ("no store wait", "race: write after read"),
        ("no empty wait", "race|async copy not waited for"),
        ("short expect", "hang|mbarrier|async copy not waited for"),
    ],
)
def test_each_step_is_needed(program, fault, text):
    x, y = torch.randn(2048), torch.zeros(2048)
    with pytest.raises(KernelError, match=text):
        program("run_pipe", FAULTS.index(fault), x, y, len(x))


@pytest.mark.parametrize("swizzle", [0, 1, 2, 3])
def test_tiles_are_swizzled(program, swizzle):
    """Against the layout as CUTLASS writes it: unit u of row r of an atom lies at u ^ (r's bits)."""
    rows, cols, box_rows = 40, 136, 16
    box_cols = [64, 16, 32, 64][swizzle]
    x = torch.arange(rows * cols).to(torch.int16)
    tensor = torch.nn.functional.pad(x.view(rows, cols), (8, 64, 8, 16))
    for at_x, at_y in ((0, 0), (8, 24), (104, 32), (-8, -3)):
        out = torch.zeros(box_rows * box_cols // 2, dtype=torch.int32)
        args = (rows, cols, box_rows, box_cols, swizzle, at_x, at_y)
        assert program("run_dump", x, out, *args) == 0
        want = tensor[8 + at_y :][:box_rows, 8 + at_x :][:, :box_cols].reshape(-1, 8)
        unit = torch.arange(len(want))
        row = unit * 16 // 128  # of 128 bytes, whatever the atom
        place = unit ^ (row & [0, 1, 3, 7][swizzle])
        swizzled = torch.empty_like(want)
        swizzled[place] = want
        assert torch.equal(out.view(torch.int16).view(-1, 8), swizzled)


def test_clusters_share_memory(program):
    out = torch.zeros(8, dtype=torch.int32)
    assert program("run_neighbours", out) == 0
    assert out.tolist() == [103, 100, 101, 102] * 2
