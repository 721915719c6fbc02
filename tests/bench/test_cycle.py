"""bench/cycle.py and bench/graph_cycle.py, as far as a CPU takes them."""

import json

import cuda_loop
import graph_cycle
import pytest
import torch
from cycle import KINDS, TINY

CPU = torch.device("cpu")
TOKENS = 10


def decoded(kind):
    cycle = graph_cycle.make(TINY, kind, TOKENS, CPU)
    graph_cycle.until_done(cycle.step, cycle)
    return cycle


def test_trees_decode_to_the_tokens_of_the_target_alone():
    cycle = decoded("tree")
    assert cycle.tokens() == graph_cycle.plain(cycle, "tree", TOKENS)
    assert cycle.cycles < TOKENS  # so drafts were accepted, and their rows moved


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_can_be_repeated_in_the_same_memory(kind):
    cycle = decoded(kind)
    tokens, cycles = cycle.tokens(), int(cycle.cycles)
    cycle.reset()
    assert cycle.active and cycle.cycles == 0
    graph_cycle.until_done(cycle.step, cycle)
    assert cycle.tokens() == tokens and cycle.cycles == cycles


def test_the_command(tmp_path):
    file = tmp_path / "rows.json"
    graph_cycle.main(["--device", "cpu", "--tokens", "4", "--json", str(file)])
    rows = json.loads(file.read_text())
    assert [row["case"] for row in rows] == [f"{kind}, ops one by one" for kind in KINDS]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys):
    with pytest.raises(SystemExit) as exit:
        graph_cycle.main([])
    assert exit.value.code == 2
    assert capsys.readouterr().err.startswith("graph_cycle: no GPU found")


@pytest.mark.skipif(not cuda_loop.is_there(), reason="no cuda.core")
def test_the_loop_s_kernel_compiles():
    assert cuda_loop.compiled("sm_90a").code


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_graphs_decode_to_the_same_tokens(kind):
    names = [row["case"] for row in graph_cycle.run(TINY, kind, TOKENS, torch.device("cuda"))]
    assert f"{kind}, graph of a cycle" in names
