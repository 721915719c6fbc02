"""What CTAs may tell each other: right patterns are silent in any order, wrong ones are named."""

from pathlib import Path

import ptxrun
import pytest
import torch
from ptxrun import KernelError, Order

CTAS, THREADS = 12, 64
ORDERS = [Order.FORWARD, Order.REVERSE, Order.RANDOM]


@pytest.fixture(scope="module")
def module():
    return ptxrun.Module(Path(__file__).parent / "kernels/grids.cu", "sm_90a")


def launch(module, name, restored=()):
    parts, out = (torch.zeros(CTAS, THREADS, dtype=torch.int32) for _ in range(2))
    word = torch.zeros(1, dtype=torch.int32)
    restored = [word] if "word" in restored else []
    module.launch(name, [parts, word, out], [CTAS], [THREADS], restored=restored)
    return parts, word, out


def want_merged():
    rows, cols = torch.arange(CTAS)[:, None], torch.arange(THREADS)
    return (rows + cols).sum(0).int()


@pytest.mark.parametrize("resident", [1, 5, CTAS])
@pytest.mark.parametrize("order", ORDERS)
def test_the_last_cta_merges(module, order, resident):
    for seed in range(3):
        with ptxrun.using(order=order, resident=resident, seed=seed):
            _, word, out = launch(module, "merge_right", restored=["word"])
        assert torch.equal(out[0], want_merged()) and word.item() == 0


@pytest.mark.parametrize("order", ORDERS)
def test_a_flag(module, order):
    with ptxrun.using(order=order, resident=CTAS):
        _, _, out = launch(module, "flag_right")
    assert (out[1:] == 42).all()


@pytest.mark.parametrize("name", ["warps_in_step", "apart"])
@pytest.mark.parametrize("order", ORDERS)
def test_right_kernels_are_silent(module, name, order):
    for resident in (1, 3):
        with ptxrun.using(order=order, resident=resident):
            launch(module, name)


FAULTS = {
    "merge_no_release": "global race: read after write",
    "merge_no_acquire": "global race: read after write",
    "merge_cta_scope": "global race: write after write",
    "flag_no_release": "global race: read after write",
    "flag_no_acquire": "global race: read after write",
    "flag_weak": "global race: read after write",
    "same_word": "global race: write after write",
    "neighbours_row": "global race: (read after write|write after read)",
    "in_place": "global race: (read after write|write after read)",
    "warps_of_a_cta": "global race: (read after write|write after read)",
    "atomic_and_plain": "global race: (read after write|write after read)",
    "read_only": "cached load of written data",
    "read_only_before": "write to what a cached load has read",
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_named(module, name, order):
    resident = CTAS if name.startswith("flag") else 1
    with (
        ptxrun.using(order=order, resident=resident, seed=1),
        pytest.raises(KernelError, match=FAULTS[name]) as error,
    ):
        launch(module, name)
    assert "grids.cu:" in str(error.value)


def test_a_workspace_that_must_come_back_as_it_was(module):
    with pytest.raises(KernelError, match="argument 1 is not as it was"):
        launch(module, "apart", restored=["word"])


def test_waiting_for_a_cta_that_is_not_resident(module):
    with (
        ptxrun.using(order=Order.REVERSE, resident=2),
        pytest.raises(KernelError, match=r"hang .* 10 more wait to be resident"),
    ):
        launch(module, "flag_right")


@pytest.mark.parametrize("name", ["apart", "same_word", "neighbours_row"])
def test_any_number_of_threads(module, name):
    """Results, counters and reports of CTAs on one thread and on several."""

    def run(threads):
        ptxrun.counters(reset=True)
        reports = set()
        with ptxrun.using(threads=threads):
            try:
                launch(module, name)
            except KernelError as error:
                reports = {line.split("(")[0] for line in str(error).splitlines()}
        return reports, ptxrun.counters(reset=True)

    one = run(1)
    assert all(run(threads) == one for threads in (2, 3))
    if name == "apart":
        with ptxrun.using(threads=3):
            several = launch(module, name)
        with ptxrun.using(threads=1):
            assert all(
                torch.equal(a, b) for a, b in zip(several, launch(module, name), strict=True)
            )
