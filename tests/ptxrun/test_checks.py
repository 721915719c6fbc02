"""What the checks must say, and that they say nothing about kernels that are right."""

from pathlib import Path

import ptxrun
import pytest
import torch
from ptxrun import Order

N = 64


@pytest.fixture(scope="module")
def module():
    return ptxrun.Module(Path(__file__).parent / "kernels/checks.cu")


def launch(module, name, threads=N, grid=1):
    x, y = torch.arange(N, dtype=torch.int32) + 1, torch.zeros(N, dtype=torch.int32)
    module.launch(name, [x, y], [grid], [threads])
    return y


@pytest.mark.parametrize("order", [Order.FORWARD, Order.REVERSE, Order.RANDOM])
@pytest.mark.parametrize("name", ["right", "copy_waited"])
def test_right_kernels_are_silent(module, name, order):
    with ptxrun.using(order=order):
        assert launch(module, name).tolist() == list(range(N, 0, -1))


FAULTS = {
    "no_barrier": "race: read after write",
    "no_second_barrier": "race: write after read",
    "no_warp_barrier": "race within a warp",
    "past_the_end": r"out of bounds .* 0 bytes past the end of argument 1 \(256 bytes\)",
    "before_the_start": r"out of bounds .* 4 bytes before argument 0",
    "misaligned": "misaligned",
    "unwritten_shared": "uninitialised shared memory",
    "copy_not_waited": "async copy not waited for",
    "divergent_barrier": "divergent barrier",
    "leaves_before_a_barrier": "divergent barrier",
    "one_warp_short": "hang .* at a barrier",
    "wrong_member_mask": None,
    "gives_up": "trap",
}


@pytest.mark.parametrize("name", [name for name, text in FAULTS.items() if text])
def test_faults_are_named(module, name):
    threads = 32 if name == "no_warp_barrier" else N
    with pytest.raises(ptxrun.KernelError, match=FAULTS[name]) as error:
        launch(module, name, threads)
    assert "checks.cu:" in str(error.value)


def test_a_barrier_waits_for_lanes_that_are_elsewhere(module):
    assert launch(module, "late_lane").tolist() == [1] * 5 + [6] + [1] * (N - 6)


def test_a_mask_may_name_lanes_that_have_left(module):
    assert launch(module, "wrong_member_mask", 32).tolist()[:17] == [4] * 16 + [0]


def test_spinning_on_a_cta_that_is_not_resident(module):
    with (
        ptxrun.using(max_instructions=10**6),
        pytest.raises(ptxrun.KernelError, match="hang"),
    ):
        launch(module, "waits_for_a_later_cta", 32, grid=2)
    with ptxrun.using(resident=2):
        launch(module, "waits_for_a_later_cta", 32, grid=2)


def test_divergent_branches(module):
    def want(lane):
        x, steps = lane + 1, 0
        while x != 1:
            x = x // 2 if x % 2 == 0 else 3 * x + 1
            steps += 1
            if steps == 40 and lane % 3 == 0:
                return -1
        return [steps + 1000, steps * 2, -steps, steps ^ 5, steps][lane % 5]

    assert launch(module, "collatz").tolist() == [want(lane) for lane in range(N)]


def test_traffic_of_known_patterns(module):
    ptxrun.counters(reset=True)
    module.launch("traffic", [torch.randn(32 * 32), torch.zeros(32), 32], [1], [32])
    rows = [r for r in ptxrun.counters() if r.bytes and r.opcode.split(".")[0] in ("ld", "st")]
    loads = [r for r in rows if r.opcode.startswith("ld.global")]
    stores = [r for r in rows if r.opcode.startswith("st.shared")]
    assert [(r.sectors, r.ideal_sectors) for r in loads] == [(4, 4), (32, 4)]
    assert [(r.waves, r.ideal_waves) for r in stores] == [(1, 1), (32, 1)]
    assert all(r.bytes == 128 for r in rows)


@pytest.mark.statistical
def test_statistical_tests_run_without_checks(device_class):
    assert ptxrun.options().checks == (device_class not in ("ptx", "ptx90"))
