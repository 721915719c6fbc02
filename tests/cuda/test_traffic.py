"""Bytes that the CUDA kernels move, from ptxrun's counters (a model of sectors and wavefronts).

Budgets of the three that decide speed: sectors of operands at most 1.03 of what they hold, wavefronts
of shared memory at most 1.05 of the fewest. Real heads and depths; few of them.
"""

import pytest
import torch
from emulator import ptxrun
from quant_sources import W4_SOURCES, w4_call, w8_call

from dflash_ops import (
    compact_kv,
    context_kv,
    lm_head_gather,
    lm_head_sample,
    lm_head_topk,
    lm_head_verify,
    pack_w4,
    pack_w8,
    pack_weight,
    tree_attention,
    verify_gemm,
    verify_gemm_w4,
    verify_gemm_w8,
)

SECTOR = 32
SECTORS, WAVES = 1.03, 1.05


def counted(kernel, call, arch=80):
    """Rows and sums of a kernel."""
    ptxrun.counters(reset=True)
    with ptxrun.using(footprint=True), ptxrun.emulated(missing=pytest.fail, arch=arch):
        call()
    (found,) = [k for k in ptxrun.by_kernel() if kernel in k.kernel]
    return [r for r in ptxrun.counters(reset=True) if r.kernel == found.kernel], found


def asked(rows, *opcodes):
    return sum(row.sectors for row in rows if row.opcode.startswith(opcodes))


def touched(kernel, *names):
    """Sectors of tensors, each once."""
    footprint = kernel.total.footprint
    return sum(read for name, (read, _) in footprint.items() if name.split("/")[0] in names)


def assert_waves(kernel):
    assert kernel.waves <= WAVES * kernel.ideal_waves, f"{kernel.waves}, not {kernel.ideal_waves}"


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("num_rows", [1, 8, 32, 64])
def test_verify_gemm_reads_the_weight_once(num_rows, dtype, is_packed):
    num_outputs, depth = 128, 2048
    x, weight = torch.randn(num_rows, depth).to(dtype), torch.randn(num_outputs, depth).to(dtype)
    with ptxrun.emulated(missing=pytest.fail):
        packed = pack_weight(weight) if is_packed else weight
    rows, kernel = counted("verify_gemm", lambda: verify_gemm(x, packed))
    copies = [row for row in rows if row.opcode.startswith("cp.async")]
    assert all(row.sectors == row.ideal_sectors for row in copies)
    blocks = num_outputs // (64 if num_rows > 32 else 16)  # CTAs, each of which reads x
    moved = weight.numel() + blocks * x.numel()
    assert asked(copies, "cp.async") * SECTOR == moved * dtype.itemsize
    assert touched(kernel, "weight") * SECTOR == weight.numel() * dtype.itemsize
    loop = [row for row in rows if row.opcode.startswith("ld.shared.v4")]
    assert loop and all(row.waves == row.ideal_waves for row in loop)
    assert_waves(kernel)


@pytest.mark.parametrize("source", ["q4_1", "gptq", "q8_0", "int8"])
@pytest.mark.parametrize("num_rows", [1, 8, 16])
def test_verify_gemm_w8_and_w4_read_the_weight_once(num_rows, source):
    """Codes, scales and zeros alike; scales of wide groups are kept."""
    num_outputs, depth = 128, 2048
    x = torch.randn(num_rows, depth).bfloat16()
    is_w4 = source in W4_SOURCES
    call = (w4_call if is_w4 else w8_call)(0, source, num_outputs, depth)
    with ptxrun.emulated(missing=pytest.fail):
        weight, name = (pack_w4 if is_w4 else pack_w8)(**call)
    op = verify_gemm_w4 if is_w4 else verify_gemm_w8
    rows, kernel = counted("verify_gemm_quant", lambda: op(x, weight, name))
    copies = [row for row in rows if row.opcode.startswith("cp.async")]
    assert all(row.sectors == row.ideal_sectors for row in copies)
    blocks = num_outputs // 32  # CTAs, each of which reads x
    moved = weight.numel() + blocks * x.numel() * 2
    assert asked(copies, "cp.async") * SECTOR == moved
    assert touched(kernel, "weight") * SECTOR == weight.numel()
    assert_waves(kernel)


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("num_rows", [1, 8, 32, 64])
def test_verify_gemm_on_sm90_reads_the_weight_once(num_rows, is_packed):
    num_outputs, depth = 128, 4096
    x, weight = torch.randn(num_rows, depth).bfloat16(), torch.randn(num_outputs, depth).bfloat16()
    with ptxrun.emulated(missing=pytest.fail, arch=90):
        packed = pack_weight(weight) if is_packed else weight
    rows, kernel = counted("verify_gemm_sm90", lambda: verify_gemm(x, packed), arch=90)
    copies = [row for row in rows if row.opcode.startswith("cp.async")]
    assert all(row.sectors == row.ideal_sectors for row in copies)
    clusters = num_outputs // (128 if num_rows > 8 else 64)  # each of which reads x
    moved = weight.numel() + clusters * x.numel()
    assert asked(copies, "cp.async") * SECTOR == moved * 2
    assert asked(copies, "cp.async.bulk") * SECTOR == (weight.numel() * 2 if is_packed else 0)
    assert touched(kernel, "weight") * SECTOR == weight.numel() * 2
    assert_waves(kernel)


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("num_rows", [1, 8, 32, 64])
def test_the_lm_head_ops_read_the_head_once(num_rows, is_packed):
    vocab, depth, k = 1024, 512, 16
    h, weight = torch.randn(num_rows, depth).bfloat16(), torch.randn(vocab, depth).bfloat16()
    with ptxrun.emulated(missing=pytest.fail):
        head = pack_weight(weight) if is_packed else weight
    rows, _ = counted("head_scan", lambda: lm_head_topk(h, head, k=k))
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


@pytest.mark.parametrize("source", ["q4_1", "gptq", "q8_0"])
@pytest.mark.parametrize("num_rows", [1, 8, 32])
def test_a_quantised_head_is_read_once(num_rows, source):
    vocab, depth = 512, 1024
    h, is_w4 = torch.randn(num_rows, depth).bfloat16(), source in W4_SOURCES
    call = (w4_call if is_w4 else w8_call)(0, source, vocab, depth)
    with ptxrun.emulated(missing=pytest.fail):
        head, name = (pack_w4 if is_w4 else pack_w8)(**call)
    rows, kernel = counted("head_scan", lambda: lm_head_topk(h, head, weight_format=name, k=16))
    copies = [row for row in rows if row.opcode.startswith("cp.async")]
    assert all(row.sectors == row.ideal_sectors for row in copies)
    tiles = vocab // 256  # of ids, each of which reads the rows
    assert asked(copies, "cp.async") * SECTOR == head.numel() + tiles * h.nbytes
    assert touched(kernel, "weight") * SECTOR == head.numel()
    assert all(row.waves == row.ideal_waves for row in copies)


@pytest.mark.parametrize("num_rows", [1, 32])
@pytest.mark.parametrize("op", [lm_head_sample, lm_head_gather, lm_head_verify])
def test_whatever_is_asked_of_the_head_it_is_read_once(op, num_rows):
    """Rows without a filter; the logits of given ids are those of the same pass, or a few columns."""
    vocab, depth = 1024, 512
    h, weight = torch.randn(num_rows, depth).bfloat16(), torch.randn(vocab, depth).bfloat16()
    call = {"positions": torch.arange(num_rows), "cu_verify": torch.arange(num_rows + 1)}
    call |= {"temperature": torch.ones(num_rows), "seeds": torch.arange(num_rows)}
    ids = torch.arange(num_rows)[:, None] * 7 % vocab
    if op is lm_head_gather:
        call = {"ids": ids}
    elif op is lm_head_verify:
        call["ids"] = ids
    rows, kernel = counted("head_scan", lambda: op(h, weight, **call))
    copies = [row for row in rows if row.opcode.startswith("cp.async")]
    assert touched(kernel, "weight") * SECTOR == weight.nbytes
    moved = (weight.numel() + vocab // 256 * h.numel()) * 2
    assert sum(row.sectors for row in copies) * SECTOR <= SECTORS * moved
    left = sum(row.bytes for row in rows if row.opcode.startswith("st.global"))
    assert left <= num_rows * vocab // 256 * 1024  # no logits: of a tile 1 KB


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("num_rows", [1, 8, 32, 64])
def test_the_pass_over_the_head_on_sm90_reads_it_once(num_rows, is_packed):
    vocab, depth = 1024, 512
    h, weight = torch.randn(num_rows, depth).bfloat16(), torch.randn(vocab, depth).bfloat16()
    with ptxrun.emulated(missing=pytest.fail, arch=90):
        head = pack_weight(weight) if is_packed else weight
    rows, _ = counted("head_scan_sm90", lambda: lm_head_topk(h, head, k=16), arch=90)
    copies = [row for row in rows if row.opcode.startswith("cp.async")]
    assert all(row.sectors == row.ideal_sectors for row in copies)
    tiles = vocab // (128 if num_rows > 32 else 256)  # of ids, each of which reads the rows
    assert asked(copies, "cp.async") * SECTOR == (weight.numel() + tiles * h.numel()) * 2
    assert asked(copies, "cp.async.bulk") * SECTOR == (weight.numel() * 2 if is_packed else 0)
    assert all(row.waves == row.ideal_waves for row in copies)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("arch", [80, 90])
def test_tree_attention_reads_each_page_once(dim, dtype, page_size, arch):
    """8 rows of 8 query heads fill a tile; 1024 keys of 2 KV heads."""
    kv_heads, keys, rows = 2, 1024, 8
    pages = torch.randn(2, (keys + 16) // page_size, page_size, kv_heads, dim).to(dtype)
    q = torch.randn(rows, 8 * kv_heads, dim).to(dtype)
    call = {
        "block_table": torch.randperm(pages.shape[1]).reshape(1, -1),
        "cu_rows": torch.tensor([0, rows]),
        "ctx_lens": torch.tensor([keys]),
    }
    name = {80: "tree_attention_kernel", 90: "tree_attention_sm90_kernel"}[arch]
    counts, kernel = counted(name, lambda: tree_attention(q, pages[0], pages[1], **call), arch)
    once = touched(kernel, "k_cache", "v_cache")
    assert once * SECTOR == 2 * (keys + rows) * kv_heads * dim * dtype.itemsize
    assert asked(counts, "cp.async") <= SECTORS * once
    assert_waves(kernel)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.uint8])
def test_compact_kv_moves_rows_once(dtype):
    caches = [torch.randint(100, (8, 16, 8, 128)).to(dtype) for _ in range(4)]
    call = {
        "block_tables": [torch.arange(8).reshape(2, 4)],
        "accepted_rows": torch.tensor([[0, 2, 4, 6], [8, 9, 13, 15]]),
        "cu_rows": torch.tensor([0, 8, 16]),
        "ctx_lens": torch.tensor([20, 37]),
    }
    rows, _ = counted("compact_kv", lambda: compact_kv(caches[:2], caches[2:], **call))
    moved = 5 * len(caches) * 8 * 128 * dtype.itemsize // SECTOR
    wide = [row for row in rows if ".v4" in row.opcode or ".v2" in row.opcode]
    assert moved <= asked(wide, "ld.global") <= SECTORS * moved
    assert moved <= asked(wide, "st.global") <= SECTORS * moved


@pytest.mark.parametrize("num_stored", [8, 3])
def test_context_kv_reads_weights_once_and_writes_the_stored_rows(num_stored):
    """Five features of 256, two layers of 2 KV heads of 64; rows without a slot are not written."""
    rows, hidden, heads, dim, layers = 8, 256, 2, 64, 2
    features, fc = torch.randn(rows, 5 * hidden).bfloat16(), torch.randn(hidden, 5 * hidden)
    weights = [torch.randn(2 * heads * dim, hidden).bfloat16() for _ in range(layers)]
    k_caches, v_caches = ([torch.zeros(4, 16, heads, dim).bfloat16()] * layers for _ in "kv")
    slots = torch.where(torch.arange(rows) < num_stored, torch.arange(rows) * 5, -1)
    call = (features, fc.bfloat16(), torch.ones(hidden), weights)
    options = {"positions": torch.arange(rows), "slots": slots[None]}
    ptxrun.counters(reset=True)
    with ptxrun.using(footprint=True), ptxrun.emulated(missing=pytest.fail):
        context_kv(*call, k_caches, v_caches, **options)
    total = {}
    for kernel in ptxrun.by_kernel():
        for name, (read, written) in kernel.total.footprint.items():
            old = total.get(name, (0, 0))
            total[name] = old[0] + read, old[1] + written
    assert total["fc"][0] * SECTOR == fc.numel() * 2
    assert total["kv_weights"][0] * SECTOR == sum(w.nbytes for w in weights)
    once = num_stored * layers * heads * dim * 2 // SECTOR
    assert total["k_caches"][1] == total["v_caches"][1] == once
    assert total["features"][0] * SECTOR <= features.nbytes
