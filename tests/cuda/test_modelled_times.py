"""The model of times at the shapes of Qwen3-8B: memory binds up to 32 rows, and little is lost."""

import pytest
import torch
from emulator import ptxrun

from dflash_ops import (
    context_kv,
    lm_head_gather,
    lm_head_sample,
    lm_head_topk,
    lm_head_verify,
    tree_attention,
    verify_gemm,
)

HOPPER = [m for m in ptxrun.MACHINES if m.name in ("H100", "H200")]
HIDDEN, VOCAB, HEADS, KV_HEADS, HEAD_DIM = 4096, 151_936, 32, 8, 128
LITTLE = 1.2  # times of the floor, the bytes alone
ROWS = [1, 8, 16, 32]


def empty(*shape):
    return torch.zeros(shape, dtype=torch.bfloat16)  # untouched pages take no memory


def packed(outputs, depth):
    """A weight of zeros, as pack_weight leaves it."""
    return empty(outputs // 32, depth // 2, 32, 2)


def times_of_op(call, sample=1):
    """By machine: all launches of an op, which follow one another."""
    times = ptxrun.model_of(call, sample=sample, machines=HOPPER)
    assert {t.machine for t in times} == {"H100", "H200"}
    return {m.name: [t for t in times if t.machine == m.name] for m in HOPPER}


def total(times):
    return sum(t.launches * t.total for t in times)


def floor(times):
    return sum(t.launches * t.floor for t in times)


@pytest.mark.parametrize("num_rows", ROWS)
@pytest.mark.parametrize(("outputs", "depth"), [(24576, HIDDEN), (HIDDEN, 12288)])
def test_memory_binds_verify_gemm(outputs, depth, num_rows):
    weight, x = empty(outputs, depth), empty(num_rows, depth)
    for times in times_of_op(lambda: verify_gemm(x, weight)).values():
        for t in times:
            assert t.bound == "HBM", t
            assert t.total <= LITTLE * t.floor, t


@pytest.mark.parametrize("num_rows", [1, 8, 32])
@pytest.mark.parametrize("op", [lm_head_topk, lm_head_sample, lm_head_gather, lm_head_verify])
def test_memory_binds_the_head(op, num_rows):
    """Whatever is asked of the logits: with all that follows the pass over the head."""
    h, weight = empty(num_rows, HIDDEN), empty(VOCAB, HIDDEN)
    law = {"positions": torch.arange(num_rows), "cu_verify": torch.arange(num_rows + 1)}
    law |= {"temperature": torch.ones(num_rows), "seeds": torch.arange(num_rows)}
    ids = torch.zeros(num_rows, 17, dtype=torch.int64)
    call = {
        lm_head_topk: {"k": 16},
        lm_head_sample: law,
        lm_head_gather: {"ids": ids},
        lm_head_verify: law | {"ids": ids},
    }[op]
    for times in times_of_op(lambda: op(h, weight, **call)).values():
        assert max(times, key=lambda t: t.total).bound == "HBM", times
        assert total(times) <= LITTLE * floor(times), times


# By rows: with 16 all 64 pairs of a CTA are there, and their softmax takes longer than HBM on H200.
ATTENTION = {1: {}, 8: {}, 16: {"H200": 1.6}}


@pytest.mark.parametrize("num_rows", ATTENTION)
def test_memory_binds_tree_attention(num_rows):
    """32768 keys; the kernel over the keys, without the merge of its leaves."""
    keys, page_size = 32768, 16
    pages = keys // page_size + 1
    caches, q = empty(2, pages, page_size, KV_HEADS, HEAD_DIM), empty(num_rows, HEADS, HEAD_DIM)
    call = {
        "block_table": torch.arange(pages)[None],
        "cu_rows": torch.tensor([0, num_rows]),
        "ctx_lens": torch.tensor([keys]),
    }
    for machine, times in times_of_op(
        lambda: tree_attention(q, *caches, **call), sample=24
    ).items():
        t = max(times, key=lambda t: t.floor)
        assert t.bound == "HBM" or num_rows > 1, t
        assert t.total <= ATTENTION[num_rows].get(machine, LITTLE) * t.floor, t


def test_memory_binds_context_kv():
    """One row for the five layers of Qwen3.8-27B-DFlash2, with every kernel between the products."""
    hidden, layers, kv_size = 5120, 5, KV_HEADS * HEAD_DIM
    features, fc = empty(1, 5 * hidden), packed(hidden, 5 * hidden)
    weights = packed(layers * 2 * kv_size, hidden).split(2 * kv_size // 32)
    k_caches, v_caches = ([empty(1, 16, KV_HEADS, HEAD_DIM) for _ in range(layers)] for _ in "kv")
    call = (features, fc, empty(hidden), weights, k_caches, v_caches)
    at = {"positions": torch.zeros(1).long(), "slots": torch.zeros(1, 1).long()}
    for times in times_of_op(lambda: context_kv(*call, **at), sample=8).values():
        assert sum(t.launches for t in times) == 5, times
        assert total(times) <= LITTLE * floor(times), times
