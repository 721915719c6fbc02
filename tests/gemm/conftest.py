import pytest
import torch

import dflash_ops


@pytest.fixture(scope="session")
def each_isa():
    """Results of a call under each instruction set of this machine, portable first."""
    in_use = dflash_ops.cpu_isa()

    def results(call):
        try:
            for isa in torch.ops.dflash.cpu_isas().split(", "):
                torch.ops.dflash.cpu_isa(isa)
                yield call()
        finally:
            torch.ops.dflash.cpu_isa(in_use)

    return results
