"""mbarriers: what PTX asks of their counts and of their life, and waits that fail for no reason."""

from pathlib import Path

import ptxrun
import pytest
import torch
from ptxrun import KernelError, Landing

LANDINGS = [Landing.LATEST, Landing.EARLIEST, Landing.RANDOM]
N = 64


@pytest.fixture(scope="module")
def module():
    return ptxrun.Module(Path(__file__).parent / "kernels/mbarriers.cu", "sm_90a")


def launch(module, name, threads=N):
    x, out = torch.arange(N, dtype=torch.int32), torch.full((N,), -1, dtype=torch.int32)
    module.launch(name, [x, out], [1], [threads])
    return out.tolist()


@pytest.mark.parametrize("landing", LANDINGS)
def test_right_kernels_are_silent(module, landing):
    for seed in range(3):
        with ptxrun.using(landing=landing, seed=seed):
            assert launch(module, "rounds", 32)[:32] == [1] * 32
            assert launch(module, "most_bytes")[0] == 0
            assert launch(module, "copies") == list(range(N))[::-1]
            assert launch(module, "copies_counted") == list(range(N))[::-1]


FAULTS = {
    "no_init": "mbarrier .* shared byte 0 is none",
    "after_inval": "mbarrier .* shared byte 0 is none",
    "init_again": "mbarrier .* initialised again, and not invalidated",
    "bad_count": "mbarrier .* count 1048576",
    "one_arrival_more": "mbarrier .* 2 arrivals, 1 pending in this phase",
    "no_arrivals": "mbarrier .* 0 arrivals",
    "too_many_bytes": "mbarrier .* 1048576 bytes pending, must be within",
    "too_few_bytes": "mbarrier .* -1048576 bytes pending, must be within",
    "bytes_pending": "mbarrier .* at its end 16 bytes are pending",
    "bytes_pending_at_inval": "mbarrier .* at its end 16 bytes are pending",
    "no_wait": "async copy not waited for|race: read after write .* cp.async of warp",
    "no_wait_counted": "async copy not waited for|race: read after write .* cp.async of warp",
    "no_wait_for_own": "async copy not waited for|race: read after write .* cp.async of warp",
}


@pytest.mark.parametrize("landing", LANDINGS)
@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_named(module, name, landing):
    with ptxrun.using(landing=landing), pytest.raises(KernelError, match=FAULTS[name]) as error:
        launch(module, name)
    assert "mbarriers.cu:" in str(error.value)


def test_a_wait_may_fail_for_no_reason(module):
    """try_wait only, and only where landings are drawn; the seed says when."""

    def asked(landing, seed):
        with ptxrun.using(landing=landing, seed=seed):
            out = launch(module, "asks_once")
        return out[0::32], out[1::32]

    assert asked(Landing.LATEST, 0) == asked(Landing.EARLIEST, 0) == ([1, 1], [1, 1])
    drawn = [asked(Landing.RANDOM, seed) for seed in range(20)]
    assert drawn == [asked(Landing.RANDOM, seed) for seed in range(20)]
    assert all(tested == [1, 1] for _, tested in drawn)
    assert {tuple(tried) for tried, _ in drawn} >= {(0, 1), (1, 0), (1, 1)}
