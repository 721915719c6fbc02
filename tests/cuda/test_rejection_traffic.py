"""What the kernels over logits in memory read, by tensor and kernel: a row once for its statistics,
the rows that paths end at once more. No tensor of the vocabulary's size is written."""

import pytest
import torch
from emulator import ptxrun

from dflash_ops import sample_logits, verify_chain, verify_tree

SECTOR, VOCAB, ROWS = 32, 3 * 8192, 4
# A thread reads 64 ids in a row, 16 bytes at a time, so each sector is asked for twice; the second
# time it is in L1.
ASKED_TWICE = 2.0
TILES = VOCAB // 8192  # CTAs of a row
OF_A_CTA = 32  # sectors of the row's law and lengths that each asks for
LOOKED_UP = 64  # sectors of single ids that a row's part of the law asks for


def footprints(call):
    """Sectors read of each tensor and bytes written, by kernel, and sectors asked of loads."""
    ptxrun.counters(reset=True)
    with ptxrun.using(footprint=True), ptxrun.emulated(missing=pytest.fail):
        call()
    found = {}
    rows = ptxrun.counters()
    for kernel in ptxrun.by_kernel(rows):
        own = [row for row in rows if row.kernel == kernel.kernel]
        read = {name: read for name, (read, _) in kernel.total.footprint.items()}
        asked = sum(row.sectors for row in own if row.opcode.startswith("ld.global"))
        written = sum(row.bytes for row in own if row.opcode.startswith("st.global"))
        found[kernel.kernel] = read, asked, written
    return found


def of(found, name):
    (kernel,) = [values for kernel, values in found.items() if name in kernel]
    return kernel


def laws(rows, batch):
    return {
        "positions": torch.arange(rows),
        "cu_verify": torch.arange(0, rows + 1, rows // batch),
        "temperature": torch.ones(batch),
        "seeds": torch.arange(batch),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sample_logits_reads_a_row_once(dtype):
    logits = torch.randn(ROWS, VOCAB).to(dtype)
    found = footprints(lambda: sample_logits(logits, **laws(ROWS, ROWS)))
    once = logits.nbytes // SECTOR
    read, asked, written = of(found, "sample_scan")
    assert read["logits"] == once and asked <= ASKED_TWICE * once + OF_A_CTA * TILES * ROWS
    assert written <= logits.nbytes / 100
    assert "logits" not in of(found, "sample_finish")[0]


def drafts(kind):
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(2 * ROWS, VOCAB, generator=g)
    call = {"logits": logits, **laws(2 * ROWS, 2), "max_path": ROWS - 1}
    q = (logits + torch.randn(logits.shape, generator=g)).softmax(dim=1)
    if kind == "sparse":
        top = q.topk(16)
        call |= {"q": top.values, "q_ids": top.indices}
        tokens = top.indices[:, 0]
    else:
        call["q"] = q
        tokens = torch.multinomial(q, 1, generator=g)[:, 0]
    return call | {"tokens": tokens.roll(1)}


@pytest.mark.parametrize("kind", ["sparse", "dense"])
@pytest.mark.parametrize("rule", ["token", "rrs"])
def test_rejection_reads_rows_once_and_the_last_ones_twice(rule, kind):
    call = drafts(kind)
    if rule == "rrs":
        parents = torch.tensor([-1, 0, 1, 2]).repeat(2)
        found = footprints(lambda: verify_tree(**call, parents=parents, rule=rule))
    else:
        found = footprints(lambda: verify_chain(**call, rule=rule))
    row = VOCAB * 4 // SECTOR
    rows, batch = 2 * ROWS, 2
    read, asked, _ = of(found, "sample_scan")
    assert read["logits"] == rows * row
    assert asked <= rows * (ASKED_TWICE * row + OF_A_CTA * TILES)
    laws_read = of(found, "target_rows")[0]
    assert laws_read.get("logits", 0) <= LOOKED_UP * rows
    if kind == "dense":
        read, asked, _ = of(found, "draft_sums")
        assert read["q"] == rows * row and asked <= rows * (row + OF_A_CTA * TILES)
        assert "q" not in laws_read
    else:
        assert laws_read["q"] <= rows * 16 * 4 // SECTOR
    walked = of(found, "walk")[0]
    assert walked.get("logits", 0) <= LOOKED_UP * rows
    drawn = of(found, "draw_scan")[0]
    assert drawn["logits"] == batch * row
    assert drawn.get("q", 0) == (batch * row if kind == "dense" else 0)
    written = sum(bytes for _, _, bytes in found.values())
    assert written <= call["logits"].nbytes / 100
