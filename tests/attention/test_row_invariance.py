"""L1: a row's bits are a function of its query and its visible keys by position."""

import math

import pytest
import torch
from sequences import (
    LENGTHS,
    PAGE_SIZES,
    decoded,
    make_call,
    masks,
    moved,
    paged,
    random_sequence,
    rows_of,
    same_bits,
)

from dflash_ops import tree_attention

pytestmark = pytest.mark.sm90
OPTIONS = [{}, {"window_left": 70}, {"softcap": 2.0, "window_left": 600}]


@pytest.mark.parametrize("ctx", [0, 1, 30, 62, 63, 64, 100, 447, 505, 511, 512, 1020])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_node_has_the_bits_of_decoding(device, ctx, dtype):
    """A decoy stands before every true node; its key and value are NaN."""
    count = 12
    for options in OPTIONS:
        s = random_sequence(ctx + count, (6, 2), (24, 40), dtype, seed=ctx)
        alone = decoded(device, s, ctx, count, **options)
        assert same_bits(rows_of(device, s, ctx, count, page_size=3, **options), alone)

        true = [0, *range(2, 2 * count, 2)]  # rows of the true nodes
        parents = [-1] + [2 * ((i - 1) // 2) for i in range(1, 2 * count - 1)]
        depth, bits = masks(parents)
        k, v, q = (
            torch.full((2 * count - 1, *x.shape[1:]), math.nan).to(dtype) for x in (s.k, s.v, s.q)
        )
        k[true], v[true], q[true] = s.k[ctx:], s.v[ctx:], s.q[ctx:]
        k, v = torch.cat([s.k[:ctx], k]), torch.cat([s.v[:ctx], v])
        k_cache, v_cache, table = paged([(k, v)], 5, seed=1)
        call = {
            "q": q,
            "k_cache": k_cache,
            "v_cache": v_cache,
            "block_table": table,
            "cu_rows": torch.tensor([0, len(q)]),
            "ctx_lens": torch.tensor([ctx]),
            "mask_bits": bits,
            "depth": depth,
        }
        got = tree_attention(**moved(call, device), **options)
        assert same_bits([x[true] for x in got], alone), (ctx, options)


@pytest.mark.parametrize("chunk", [1, 7, 64, 1100])
def test_prefill_chunks_change_no_bit(device, chunk):
    length = 1100
    s = random_sequence(length, (4, 2), (16, 16), torch.bfloat16, seed=3)
    whole = rows_of(device, s, 0, length)
    starts = range(0, length, chunk) if chunk > 1 else (0, 1, 63, 64, 65, 511, 512, 513, 1099)
    for begin in starts:
        count = min(chunk, length - begin)
        part = rows_of(device, s, begin, count, page_size=24, seed=begin)
        assert same_bits(part, [x[begin : begin + count] for x in whole])


@pytest.mark.parametrize("length", LENGTHS[1:])
def test_pages_and_neighbours_change_no_bit(device, length):
    s = random_sequence(length, (4, 1), (32, 32), torch.bfloat16, seed=length)
    alone = rows_of(device, s, length - 1, 1)
    for page_size in PAGE_SIZES:
        assert same_bits(rows_of(device, s, length - 1, 1, page_size, seed=page_size), alone)

    requests = [(300, 70, False), (length - 1, 1, False), (5, 9, True)]
    call = make_call(requests, (4, 1), (32, 32), dtype=torch.bfloat16)
    other = random_sequence(length, (4, 1), (32, 32), torch.bfloat16, seed=10)  # make_call's second
    got = tree_attention(**moved(call, device))
    assert same_bits([x[70:71] for x in got], rows_of(device, other, length - 1, 1))


def test_threads_and_runs_change_no_bit():
    """More threads mean shorter runs of leaves: up to a run for each leaf."""
    call = make_call([(9000, 3, False), (2000, 300, False), (700, 40, True)])
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3, 16, 64):
            torch.set_num_threads(count)
            results.append(tree_attention(**call))
    finally:
        torch.set_num_threads(threads)
    assert all(same_bits(result, results[0]) for result in results)


def test_group_changes_no_bit(device):
    """A query head has the same bits with its KV head to itself."""
    s = random_sequence(200, (7, 1), (64, 64), torch.bfloat16)
    together = rows_of(device, s, 180, 20)
    for head in range(7):
        s_head = random_sequence(200, (7, 1), (64, 64), torch.bfloat16)
        s_head.q = s.q[:, head : head + 1]
        assert same_bits(
            rows_of(device, s_head, 180, 20), [x[:, head : head + 1] for x in together]
        )


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.int8,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
    ],
)
@pytest.mark.parametrize("dims", [(8, 8), (72, 40), (128, 96), (256, 192)])
def test_instruction_sets_change_no_bit(each_isa, dtype, dims):
    cache_dtype = {"dtype": dtype} if dtype.itemsize > 1 else {"cache_dtype": dtype}
    requests = [(530, 9, False), (40, 30, True), (3, 1, False)]
    call = make_call(requests, (7, 1), dims, **cache_dtype)
    call |= {"softcap": 5.0, "window_left": 520, "sinks": torch.ones(7)}
    results = list(each_isa(lambda: tree_attention(**call)))
    assert all(same_bits(result, results[0]) for result in results)


def test_denormals_are_the_same_for_every_instruction_set(each_isa):
    """Elements down to 2^-133 and their products, which the bf16 dot product flushes."""
    call = make_call([(200, 9, False)], (4, 2), (64, 32), dtype=torch.bfloat16)
    g = torch.Generator().manual_seed(0)
    for name in ("q", "k_cache", "v_cache"):
        exponents = torch.randint(-133, -55, call[name].shape, generator=g)
        call[name] = torch.ldexp(call[name].double(), exponents).bfloat16()
    results = list(each_isa(lambda: tree_attention(**call, scale=2.0**120)))
    assert all(same_bits(result, results[0]) for result in results)
