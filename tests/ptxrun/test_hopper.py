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
    "no init fence",
    "no init barrier",
    "wrong parity",
    "loads in vain",
    "leaves a store",
]
ORDERS = [Order.FORWARD, Order.REVERSE, Order.RANDOM]
LANDINGS = [Landing.LATEST, Landing.EARLIEST, Landing.RANDOM]


@pytest.fixture(scope="module")
def program():
    return ptxrun.Program(Path(__file__).parent / "programs/hopper.cu", "sm_90a")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("landing", LANDINGS)
def test_pipeline_in_any_schedule(program, order, landing):
    x = torch.randn(2048)
    for seed in range(3):
        y = torch.zeros(2048)
        with ptxrun.using(order=order, landing=landing, seed=seed):
            assert program("run_pipe", 0, x, y, len(x)) == 0
        assert torch.equal(y, x + 1)


@pytest.mark.parametrize("landing", LANDINGS)
@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("no expect", "async copy not waited for|uninitialised|race: read after write"),
        ("no wait", "async copy not waited for|uninitialised|race: read after write"),
        ("no fence", "no fence.proxy.async"),
        ("no store wait", "race: write after read"),
        ("no empty wait", "race|async copy not waited for"),
        ("short expect", "hang .* is waiting"),
        ("no init fence", "no fence after mbarrier.init"),
        ("no init barrier", "mbarrier .* (is none|nothing orders before this)"),
        ("wrong parity", "hang|async copy not waited for|race"),
        ("loads in vain", "mbarrier .* 1024 bytes are pending|no wait has seen it complete"),
        ("leaves a store", "a bulk store may still read its shared memory"),
    ],
)
def test_each_step_is_needed(program, fault, text, landing):
    x, y = torch.randn(2048), torch.zeros(2048)
    with (
        ptxrun.using(landing=landing, max_instructions=10**6),
        pytest.raises(KernelError, match=text),
    ):
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


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("size", [2, 4, 8])
def test_clusters_share_memory(program, size, order):
    out = torch.zeros(16, dtype=torch.int32)
    with ptxrun.using(order=order):
        assert program("run_neighbours", out, size) == 0
    assert out.tolist() == [100 + (rank - 1) % size for rank in range(size)] * (16 // size)


def test_a_cluster_has_eight_ctas_at_most(program):
    with pytest.raises(KernelError, match="a cluster has 8 CTAs at most"):
        program("run_neighbours", torch.zeros(16, dtype=torch.int32), 16)
