"""Streams of launches, with programmatic dependent launch."""

from pathlib import Path

import ptxrun
import pytest
import torch

FAULTS = ["none", "no wait", "late wait", "overwrites", "plain launch"]


@pytest.fixture(scope="module")
def program():
    return ptxrun.Program(Path(__file__).parent / "programs/dependent.cu", "sm_90a")


def run(program, fault):
    x = torch.randn(1024)
    between, out = torch.full_like(x, torch.nan), torch.zeros_like(x)
    assert program("run_pair", FAULTS.index(fault), x, between, out, len(x)) == 0
    assert torch.equal(out, x + 2 * x)


@pytest.mark.parametrize("fault", ["none", "plain launch"])
def test_a_dependent_launch_that_waits(program, fault):
    run(program, fault)


@pytest.mark.parametrize("fault", ["no wait", "late wait", "overwrites"])
def test_before_the_wait_nothing_of_the_first_kernel_is_there(program, fault):
    with pytest.raises(ptxrun.KernelError, match=r"no griddepcontrol\.wait .*dependent\.cu:"):
        run(program, fault)
