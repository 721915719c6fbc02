"""What the kernels around the large three launch and move, from ptxrun's counters."""

import pytest
import torch
from emulator import ptxrun

from dflash_ops import (
    accept_match,
    commit,
    compact_kv,
    lm_head_gather,
    lm_head_sample,
    lm_head_topk,
    lm_head_verify,
    merge_states,
    rmsnorm,
    sum_shards,
    tree_metadata,
)

SECTOR = 32


def counted(call):
    """Sectors of global loads and stores that move 16 bytes a lane, and launches by kernel."""
    ptxrun.counters(reset=True)
    with ptxrun.emulated(missing=pytest.fail):
        call()
    launches = sum(total.launches for total in ptxrun.totals().values())
    rows = [row for row in ptxrun.counters(reset=True) if ".v4" in row.opcode]
    loads = sum(row.sectors for row in rows if row.opcode.startswith("ld.global"))
    stores = sum(row.sectors for row in rows if row.opcode.startswith("st.global"))
    return loads, stores, launches


def test_compact_kv_moves_what_moves_once():
    """Two layers of bf16, 8 heads of 128: of a path of four, two entries change their slots."""
    caches = [torch.randn(4, 16, 8, 128).bfloat16() for _ in range(4)]
    call = {
        "block_tables": [torch.arange(4).reshape(1, 4)],
        "accepted_rows": torch.tensor([[0, 1, 4, 6]]),
        "cu_rows": torch.tensor([0, 8]),
        "ctx_lens": torch.tensor([20]),
    }
    loads, stores, launches = counted(lambda: compact_kv(caches[:2], caches[2:], **call))
    moved = 2 * len(caches) * 8 * 128 * 2 // SECTOR
    assert (loads, stores, launches) == (moved, moved, 1)


def test_rmsnorm_and_merge_states_write_once():
    x, weight = torch.randn(3, 4096).bfloat16(), torch.ones(4096).bfloat16()
    _, stores, launches = counted(lambda: rmsnorm(x, weight))
    assert (stores, launches) == (x.numel() * 2 // SECTOR, 1)
    out, lse = torch.randn(5, 4, 128).bfloat16(), torch.zeros(5, 4)
    loads, stores, launches = counted(lambda: merge_states(out, lse, out, lse))
    once = out.numel() * 2 // SECTOR
    assert (loads, stores, launches) == (2 * once, once, 1)


def test_sum_shards_reads_and_writes_once():
    shards, weight = torch.randn(4, 3, 4096).bfloat16(), torch.ones(4096).bfloat16()
    once = 3 * 4096 * 2 // SECTOR
    loads, stores, launches = counted(lambda: sum_shards(shards, residual=shards[0]))
    assert (loads, stores, launches) == (5 * once, once, 1)
    _, stores, launches = counted(lambda: sum_shards(shards, norm_weight=weight))
    assert (stores, launches) == (2 * once, 1)


def test_one_launch_for_each_step_of_the_loop():
    cu, parents = torch.tensor([0, 3]), torch.tensor([-1, 0, 1])
    ids = torch.tensor([5, 6, 7])
    assert counted(lambda: tree_metadata(parents, cu, max_rows=8))[2] == 1
    assert counted(lambda: accept_match(ids, cu, ids, max_path=2))[2] == 1
    state = [torch.zeros(1, 8).long(), torch.ones(1).long(), torch.zeros(1).long()]
    emitted, one = torch.tensor([[5, -1]]), torch.tensor([1])
    finished = torch.zeros(1, dtype=torch.bool)
    assert counted(lambda: commit(*state, finished, emitted, one, cu))[2] == 1


def test_launches_of_the_head():
    """The rows, the pass, the results; lm_head_gather first looks its ids up. Two more for every
    max_fallback_rows rows where a filter may keep many ids, whether it does or not."""
    h, weight, ids = torch.randn(2, 8), torch.randn(40, 8), torch.tensor([[1], [2]])
    law = {"positions": torch.arange(2), "cu_verify": torch.arange(3)}
    law |= {"temperature": torch.ones(2), "seeds": torch.arange(2)}
    filtered = law | {"top_p": torch.tensor([0.9, 0.5])}
    assert counted(lambda: lm_head_topk(h, weight, k=1))[2] == 3
    assert counted(lambda: lm_head_sample(h, weight, **law))[2] == 3
    assert counted(lambda: lm_head_sample(h, weight, **filtered))[2] == 7
    assert counted(lambda: lm_head_sample(h, weight, max_fallback_rows=2, **filtered))[2] == 5
    assert counted(lambda: lm_head_gather(h, weight, ids))[2] == 4
    assert counted(lambda: lm_head_verify(h, weight, ids, **law))[2] == 3
