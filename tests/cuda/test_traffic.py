"""Bytes that the CUDA kernels move, from ptxrun's counters (a model of sectors and wavefronts)."""

import pytest
import torch

from dflash_ops import lm_head_topk, pack_weight, verify_gemm

ptxrun = pytest.importorskip("ptxrun")
if not hasattr(ptxrun, "emulated"):
    pytest.skip("ptxrun is not built", allow_module_level=True)
SECTOR = 32


def rows_of(kernel, call):
    ptxrun.counters(reset=True)
    call()
    return [row for row in ptxrun.counters(reset=True) if kernel in row.kernel]


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("num_rows", [1, 8, 32, 64])
def test_verify_gemm_reads_the_weight_once(num_rows, dtype, is_packed):
    num_outputs, depth = 128, 512
    x, weight = torch.randn(num_rows, depth).to(dtype), torch.randn(num_outputs, depth).to(dtype)
    with ptxrun.emulated(missing=pytest.fail):
        packed = pack_weight(weight) if is_packed else weight
        rows = rows_of("verify_gemm", lambda: verify_gemm(x, packed))
    copies = [row for row in rows if row.opcode.startswith("cp.async")]
    assert all(row.sectors == row.ideal_sectors for row in copies)
    blocks = num_outputs // (64 if num_rows > 32 else 16)  # CTAs, each of which reads x
    moved = weight.numel() + blocks * x.numel()
    assert sum(row.sectors for row in copies) * SECTOR == moved * dtype.itemsize
    loop = [row for row in rows if row.opcode.startswith("ld.shared.v4")]
    assert loop and all(row.waves == row.ideal_waves for row in loop)


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("num_rows", [1, 8, 32, 64])
def test_the_lm_head_ops_read_the_head_once(num_rows, is_packed):
    vocab, depth, k = 1024, 512, 16
    h, weight = torch.randn(num_rows, depth).bfloat16(), torch.randn(vocab, depth).bfloat16()
    with ptxrun.emulated(missing=pytest.fail):
        head = pack_weight(weight) if is_packed else weight
        rows = rows_of("head_scan", lambda: lm_head_topk(h, head, k=k))
    copies = [row for row in rows if row.opcode.startswith("cp.async")]
    assert all(row.sectors == row.ideal_sectors for row in copies)
    tiles = vocab // (128 if num_rows > 32 else 256)  # of ids, each of which reads the rows
    moved = (weight.numel() + tiles * h.numel()) * 2
    assert sum(row.sectors for row in copies) * SECTOR == moved
    loop = [row for row in rows if row.opcode.startswith("ld.shared.v4")]
    assert loop and all(row.waves == row.ideal_waves for row in loop)
    # Two sums per tile; per CTA, of which a large vocabulary has few for its size, the 64 best.
    left = sum(row.bytes for row in rows if row.opcode.startswith("st.global"))
    assert left == num_rows * tiles * (16 + 64 * 8)
