import math
from collections.abc import Iterator

import peers as installed
import torch
from case import Case
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from dflash_ops import merge_states, tree_attention

PAGE_SIZE = 64


def cases(device: torch.device) -> Iterator[Case]:
    for rows, keys in ((1, 4096), (16, 4096), (16, 32768)):
        yield attention_chain(device, rows, keys, num_kv_heads=8, group=4, dim=128)
    yield merge(device, rows=64, num_heads=32, dim=128)


def attention_chain(
    device: torch.device, rows: int, keys: int, num_kv_heads: int, group: int, dim: int
) -> Case:
    """One request: the last `rows` of `keys` positions, bf16, pages in random order.

    The peer has its keys contiguous, and a dense mask, as it needs for any tree.
    """
    g = torch.Generator().manual_seed(0)
    num_pages = keys // PAGE_SIZE
    shape = (num_pages, PAGE_SIZE, num_kv_heads, dim)
    k_cache, v_cache = (torch.randn(shape, generator=g).to(device, torch.bfloat16) for _ in "kv")
    table = torch.randperm(num_pages, generator=g).to(device)
    q = torch.randn(rows, num_kv_heads * group, dim, generator=g).to(device, torch.bfloat16)
    call = {
        "block_table": table[None],
        "cu_rows": torch.tensor([0, rows], device=device),
        "kv_lens": torch.tensor([keys], device=device),
    }

    def dense(cache: Tensor) -> Tensor:
        return cache[table].flatten(0, 1).transpose(0, 1).contiguous()[None]

    k, v = dense(k_cache), dense(v_cache)
    positions = torch.arange(keys, device=device)
    mask = positions <= positions[keys - rows :, None]
    sdpa = torch.nn.functional.scaled_dot_product_attention
    query = q.transpose(0, 1)[None].contiguous()
    return Case(
        op="tree_attention",
        name=f"chain, rows={rows}, keys={keys}, Hkv={num_kv_heads}, GQA={group}, D={dim}",
        ours=lambda: tree_attention(q, k_cache, v_cache, **call).out,
        peers={
            "sdpa, dense mask": lambda: sdpa(query, k, v, attn_mask=mask, enable_gqa=True)[
                0
            ].transpose(0, 1),
            "flex_attention, compiled": flex(query, k, v),
            **installed.attention(q, k_cache, v_cache, table, keys),
        },
        bytes_moved=2 * k_cache.nbytes + 2 * q.nbytes,
        macs=2 * rows * keys * num_kv_heads * group * dim,
        check=close,
        arithmetic="fp32",
    )


def flex(query: Tensor, k: Tensor, v: Tensor):
    rows, keys = query.shape[2], k.shape[2]

    def visible(batch, head, row, key):
        return key <= row + (keys - rows)

    mask = create_block_mask(visible, None, None, rows, keys, device=query.device)
    compiled = torch.compile(flex_attention)
    return lambda: compiled(query, k, v, block_mask=mask, enable_gqa=True)[0].transpose(0, 1)


def close(ours: Tensor, peer: Tensor) -> None:
    """Both round weights or values to bf16 somewhere: a few parts in 2^8 of the mean value."""
    error = (ours.float() - peer.float()).norm() / peer.float().norm()
    assert error < math.ldexp(1, -6), error


def merge(device: torch.device, rows: int, num_heads: int, dim: int) -> Case:
    g = torch.Generator().manual_seed(0)
    out_a, out_b = torch.randn(2, rows, num_heads, dim, generator=g).to(device, torch.bfloat16)
    lse_a, lse_b = torch.randn(2, rows, num_heads, generator=g).to(device)

    def eager() -> Tensor:
        lse = torch.logaddexp(lse_a, lse_b)
        a, b = (lse_a - lse).exp()[..., None], (lse_b - lse).exp()[..., None]
        return (out_a * a + out_b * b).to(out_a.dtype)

    return Case(
        op="merge_states",
        name=f"rows={rows}, Hq={num_heads}, Dv={dim}",
        ours=lambda: merge_states(out_a, lse_a, out_b, lse_b).out,
        peers={"eager": eager},
        bytes_moved=3 * out_a.nbytes + 3 * lse_a.nbytes,
        check=close,
    )
