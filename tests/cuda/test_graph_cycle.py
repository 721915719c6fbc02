"""A step of bench/cycle.py is one fixed list of launches, so it can be a CUDA graph; and it runs."""

import graph_cycle
import pytest
import torch
from cycle import KINDS, TINY
from emulator import ptxrun
from launches import Launches

CPU = torch.device("cpu")
TOKENS = 10


def second_step(kind, seed):
    """By then the requests have moved on by different counts."""
    with ptxrun.using(checks=False), ptxrun.emulated(missing=pytest.fail):
        cycle = graph_cycle.make(TINY, kind, TOKENS, CPU, seed)
        if seed == 2:
            cycle.state.finished[1] = True  # padded from here on
        cycle.step()
        with Launches() as launches:
            cycle.step()
    return launches, cycle.state.ctx_lens.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_launches_do_not_depend_on_data(kind):
    (first, *others), lengths = zip(*(second_step(kind, seed) for seed in range(3)), strict=True)
    assert len(first.kernels()) > 20
    for launches in others:
        for got, want in zip(launches.listed, first.listed, strict=True):
            assert got == want
    assert len({tuple(x) for x in lengths}) == 3  # the data did differ


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_runs_as_ptx(kind):
    """With every check. The tokens are those of the CPU: no two logits of these rows all but tie."""
    want = graph_cycle.make(TINY, kind, TOKENS, CPU)
    want.step()
    with ptxrun.emulated(missing=pytest.fail):  # a device packs its own weights
        got = graph_cycle.make(TINY, kind, TOKENS, CPU)
        got.step()
    assert got.tokens() == want.tokens()
    assert torch.equal(got.state.ctx_lens, want.state.ctx_lens)


def test_trees_decode_to_the_tokens_of_the_target_alone():
    """All cycles of a run, and the same rows one by one."""
    with ptxrun.using(checks=False), ptxrun.emulated(missing=pytest.fail):
        cycle = graph_cycle.make(TINY, "tree", TOKENS, CPU)
        graph_cycle.until_done(cycle.step, cycle)
        assert cycle.tokens() == graph_cycle.plain(cycle, "tree", TOKENS)
    assert cycle.cycles < TOKENS  # so drafts were accepted, and their rows moved


@pytest.mark.parametrize("bad", ["finished.item()", "tokens[finished]", "torch.nonzero(finished)"])
def test_a_host_read_is_seen(bad):
    finished, tokens = torch.zeros(3, dtype=torch.bool), torch.zeros(3)
    if "item" in bad:
        finished = finished[0]
    with pytest.raises(AssertionError), Launches():
        eval(bad, {"torch": torch, "finished": finished, "tokens": tokens})
