"""What a module holds beside its kernels: tables, variables, the texts of printf and assert."""

import ctypes
from pathlib import Path

import ptxrun
import pytest
import torch

N = 8


@pytest.fixture(scope="module")
def module():
    return ptxrun.Module(Path(__file__).parent / "kernels/tables.cu")


def test_tables(module):
    """Of .const and .global space, short and whole, and of addresses in other tables."""
    out = torch.zeros(N, dtype=torch.int32)
    module.launch("tables", [out], [1], [N])
    rows, halves = [[7, 9, -11], [3, 5, 7]], [1, 3, -5, 0]
    want = [i * i + rows[i % 2][i % 3] * 100 + halves[i % 4] * 10000 for i in range(N)]
    assert out.tolist() == want


def test_a_table_has_an_end(module):
    with pytest.raises(ptxrun.KernelError, match=r"out of bounds .*squares"):
        module.launch("past_a_table", [torch.zeros(N, dtype=torch.int32)], [1], [N])


def test_a_variable_keeps_its_value():
    module = ptxrun.Module(Path(__file__).parent / "kernels/tables.cu")
    out = torch.zeros(1, dtype=torch.int32)
    for want in (41, 42):
        module.launch("counts", [out], [1], [N])
        assert out.item() == want


def test_printf(module, capfd):
    module.launch("prints", [torch.arange(N, dtype=torch.int32)], [1], [N])
    ctypes.CDLL(None).fflush(None)
    assert capfd.readouterr().out.splitlines() == [
        "lane 3: +0.75,     3% of 0x200000000 d",
        "thread 7: +1.75,     7% of 0x2000000000 h",
    ]


def test_assert(module):
    with pytest.raises(ptxrun.KernelError, match=r"assert .*tables\.cu.* lane 5: .*< 5"):
        module.launch("asserts", [torch.arange(N, dtype=torch.int32)], [1], [N])
