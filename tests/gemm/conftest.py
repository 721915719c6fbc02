import pytest

from dflash_ops import cpu_isa, cpu_isas, pin_cpu_isa


@pytest.fixture(scope="session")
def each_isa():
    """Results of a call under each instruction set of this machine, portable first."""
    in_use = cpu_isa()

    def results(call):
        try:
            for isa in cpu_isas():
                pin_cpu_isa(isa)
                yield call()
        finally:
            pin_cpu_isa(in_use)

    return results
