"""Sequences of random tokens, laid into pages; calls that attend to them in different ways."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dflash_ops import Attended, tree_attention

# Both sides of a block of 64 positions and of a leaf of 512, and a few within.
LENGTHS = [0, 1, 2, 63, 64, 65, 127, 128, 200, 511, 512, 513, 1023, 1025]
PAGE_SIZES = [1, 3, 16, 24, 64, 256]


@dataclass
class Sequence:
    """Queries, keys and values of the tokens of one sequence, by position."""

    q: Tensor  # [L, Hq, Dk]
    k: Tensor  # [L, Hkv, Dk]
    v: Tensor  # [L, Hkv, Dv]


def random_sequence(length, heads=(4, 2), dims=(16, 8), dtype=torch.float32, seed=0):
    g = torch.Generator().manual_seed(seed)

    def heads_of(num_heads, dim):
        return torch.randn(length, num_heads, dim, generator=g).to(dtype)

    return Sequence(
        heads_of(heads[0], dims[0]), heads_of(heads[1], dims[0]), heads_of(heads[1], dims[1])
    )


def paged(sequences, page_size, seed=0, spare=2, table_start=None):
    """Caches and a block table of sequences, pages in random order; all else is NaN, entries -1.

    `sequences`: pairs (k, v), by slot. `table_start`: sequence index of each table's first entry.
    """
    g = torch.Generator().manual_seed(seed)
    starts = [0] * len(sequences) if table_start is None else table_start
    counts = [
        -(-max(0, len(k) - start) // page_size)
        for (k, _), start in zip(sequences, starts, strict=True)
    ]
    order = torch.randperm(sum(counts) + spare, generator=g)
    k, v = sequences[0]
    k_cache = torch.full((len(order), page_size, *k.shape[1:]), math.nan).to(k.dtype)
    v_cache = torch.full((len(order), page_size, *v.shape[1:]), math.nan).to(v.dtype)
    table = torch.full((len(sequences), max(counts) + 1), -1)
    used = 0
    for row, ((k, v), start) in enumerate(zip(sequences, starts, strict=True)):
        pages = order[used : used + counts[row]]
        used += counts[row]
        table[row, : counts[row]] = pages
        slots = torch.arange(max(0, len(k) - start))
        k_cache[pages[slots // page_size], slots % page_size] = k[start:]
        v_cache[pages[slots // page_size], slots % page_size] = v[start:]
    return k_cache, v_cache, table


def masks(parents):
    """Depth and packed ancestor mask of a tree: each row sees its ancestors and itself."""
    depth, rows = [], []
    for i, parent in enumerate(parents):
        depth.append(0 if parent < 0 else depth[parent] + 1)
        rows.append((0 if parent < 0 else rows[parent]) | 1 << i)
    words = -(-len(parents) // 32)
    bits = torch.tensor([[row >> 32 * w & 0xFFFFFFFF for w in range(words)] for row in rows])
    return torch.tensor(depth), torch.where(bits >= 2**31, bits - 2**32, bits).int()


def random_parents(count, seed):
    g = torch.Generator().manual_seed(seed)
    return [-1] + [int(torch.randint(i, (1,), generator=g)) for i in range(1, count)]


def moved(call, device):
    return {k: x.to(device) if isinstance(x, torch.Tensor) else x for k, x in call.items()}


def make_call(
    requests,
    heads=(4, 2),
    dims=(16, 8),
    page_size=16,
    dtype=torch.float32,
    cache_dtype=None,
    seed=0,
):
    """requests: (ctx_len, rows, is_tree) each."""
    sequences = [
        random_sequence(ctx + rows, heads, dims, dtype, seed + 10 * i)
        for i, (ctx, rows, _) in enumerate(requests)
    ]
    pairs = [(s.k, s.v) for s in sequences]
    scales = {}
    if cache_dtype is not None:
        if cache_dtype == torch.int8:
            pairs = [tuple((x.float() * 30).round() for x in pair) for pair in pairs]
        k_cache, v_cache, table = paged(pairs, page_size, seed)
        k_cache, v_cache = k_cache.nan_to_num(7.0).to(cache_dtype), v_cache.to(cache_dtype)
        shape = (*k_cache.shape[:3],)
        scales = {"k_scale": torch.rand(shape) / 30, "v_scale": torch.rand(heads[1]) / 30}
    else:
        k_cache, v_cache, table = paged(pairs, page_size, seed)
    call = {
        "q": torch.cat([s.q[ctx:] for s, (ctx, _, _) in zip(sequences, requests, strict=True)]),
        "k_cache": k_cache,
        "v_cache": v_cache,
        "block_table": table,
        "cu_rows": torch.tensor([0] + [rows for _, rows, _ in requests]).cumsum(0),
        "ctx_lens": torch.tensor([ctx for ctx, _, _ in requests]),
    }
    if any(is_tree for _, _, is_tree in requests):
        trees = [
            masks(random_parents(max(rows, 1), seed + i)) for i, (_, rows, _) in enumerate(requests)
        ]
        words = max(bits.shape[1] for _, bits in trees)
        call["depth"] = torch.cat([d[: r[1]] for (d, _), r in zip(trees, requests, strict=True)])
        call["mask_bits"] = torch.cat(
            [
                torch.nn.functional.pad(bits[: r[1]], (0, words - bits.shape[1]))
                for (_, bits), r in zip(trees, requests, strict=True)
            ]
        )
        call["tree_nodes"] = torch.tensor([rows * t for _, rows, t in requests])
    return call | scales


def rows_of(device, sequence, ctx, count, page_size=16, seed=0, **options):
    """Rows ctx .. ctx + count of a sequence, as one chain."""
    end = ctx + count
    k_cache, v_cache, table = paged([(sequence.k[:end], sequence.v[:end])], page_size, seed)
    call = {
        "q": sequence.q[ctx:end],
        "k_cache": k_cache,
        "v_cache": v_cache,
        "block_table": table,
        "cu_rows": torch.tensor([0, count]),
        "ctx_lens": torch.tensor([ctx]),
    }
    return tree_attention(**moved(call, device), **options)


def decoded(device, sequence, ctx, count, **options):
    """The same, decoded one by one."""
    parts = [rows_of(device, sequence, i, 1, **options) for i in range(ctx, ctx + count)]
    return Attended(*(torch.cat(x) for x in zip(*parts, strict=True)))


def same_bits(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
