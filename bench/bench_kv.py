from collections.abc import Iterator

import torch
from case import Case
from torch import Tensor

from dflash_ops import compact_kv, context_kv, rmsnorm, rope_append_kv, verify_gemm


def cases(device: torch.device) -> Iterator[Case]:
    for rows in (1, 16, 256, 2048):
        yield rope_append_kv_chain(device, rows)
    for rows in (4, 64):
        yield context_kv_of_five_layers(device, rows)
    for batch in (1, 16):
        yield compact_kv_trees(device, batch)


def rope_append_kv_chain(device: torch.device, rows: int) -> Case:
    """Heads of Qwen3-4B with q/k norm, bf16, pages of 16; the peer is the usual eager PyTorch."""
    g = torch.Generator().manual_seed(0)
    heads, kv_heads, dim, page_size = 32, 8, 128, 16
    q, k, v = (
        torch.randn(rows, n, dim, generator=g).bfloat16().to(device)
        for n in (heads, kv_heads, kv_heads)
    )
    caches = [
        torch.zeros(rows // page_size + 1, page_size, kv_heads, dim, device=device).bfloat16()
        for _ in range(2)
    ]
    weight = torch.ones(dim, device=device).bfloat16()
    angles = torch.arange(4096)[:, None] * 1e6 ** -torch.linspace(0, 1, dim // 2)
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1).float().to(device)
    positions = torch.arange(rows, device=device)
    options = {"positions": positions, "slots": positions, "cos_sin": cos_sin}
    options |= {"q_norm": weight, "k_norm": weight}
    element = 2 * rows * dim
    return Case(
        op="rope_append_kv",
        name=f"T={rows}, heads 32/8, dim 128, bf16, q/k norm",
        ours=lambda: rope_append_kv(q, k, v, *caches, **options),
        peers={"eager": lambda: eager_rope_append(q, k, v, *caches, positions, cos_sin, weight)},
        bytes_moved=2 * element * (heads + 2 * kv_heads) + 4 * rows * dim,
        check=lambda ours, peer: torch.testing.assert_close(ours, peer, rtol=2**-6, atol=2**-6),
    )


def eager_rope_append(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    weight: Tensor,
) -> Tensor:
    cos, sin = (x.to(q.dtype).repeat(1, 2)[:, None] for x in cos_sin[positions].chunk(2, dim=1))

    def turned(x: Tensor) -> Tensor:
        x = torch.nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-6)
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-second, first], dim=-1) * sin

    k_cache.flatten(0, 1)[positions] = turned(k)
    v_cache.flatten(0, 1)[positions] = v
    return turned(q)


def compact_kv_trees(device: torch.device, batch: int) -> Case:
    """36 layers of Qwen3-4B, trees of 32 rows of which every fourth stays; 7 rows move."""
    layers, page_size, rows, path = 36, 16, 32, 8
    g = torch.Generator().manual_seed(0)
    shape = batch * rows // page_size, page_size, 8, 128
    caches = [[torch.randn(shape, generator=g).bfloat16().to(device) for _ in range(layers)]] * 2
    first = torch.arange(batch)[:, None] * rows
    accepted = (first + torch.arange(path) * (rows // path)).to(device)
    target = (first + torch.arange(path)).flatten().to(device)
    source = accepted.flatten()
    options = {
        "block_tables": [torch.arange(shape[0], device=device).reshape(batch, -1)],
        "accepted_rows": accepted,
        "cu_rows": torch.arange(0, batch * rows + 1, rows, device=device),
        "ctx_lens": torch.zeros(batch, dtype=torch.int64, device=device),
    }

    def eager() -> list[Tensor]:
        for cache in (*caches[0], *caches[1]):
            slots = cache.flatten(0, 1)
            slots[target] = slots[source]
        return []

    def ours() -> list[Tensor]:
        compact_kv(*caches, **options)
        return []

    return Case(
        op="compact_kv",
        name=f"B={batch}, 36 layers, heads 8, dim 128, bf16, 7 of 32 rows move",
        ours=ours,
        peers={"eager index_put": eager},
        bytes_moved=2 * 2 * layers * batch * (path - 1) * 8 * 128 * 2,
    )


def context_kv_of_five_layers(device: torch.device, rows: int) -> Case:
    """A small drafter: H 1024, 5 target layers, 5 layers of 4 KV heads of 64; every row is stored.

    The peer is the same in this library's single ops.
    """
    g = torch.Generator().manual_seed(0)
    hidden, layers, heads, dim = 1024, 5, 4, 64

    def normal(*shape: int) -> Tensor:
        return (torch.randn(shape, generator=g) / shape[-1] ** 0.5).bfloat16().to(device)

    features, fc, norm = normal(rows, 5 * hidden), normal(hidden, 5 * hidden), normal(hidden)
    weights = [normal(2 * heads * dim, hidden) for _ in range(layers)]
    caches = torch.zeros(2, layers, rows // 16 + 1, 16, heads, dim, device=device).bfloat16()
    k_caches, v_caches = (list(half.unbind()) for half in caches)
    ids = torch.arange(rows, device=device)
    cos_sin = torch.ones(4096, dim, device=device)

    def fused() -> Tensor:
        slots = ids[None]
        options = {"positions": ids, "slots": slots, "cos_sin": cos_sin}
        context_kv(features, fc, norm, weights, k_caches, v_caches, **options)
        return caches.clone()

    def single() -> Tensor:
        context = rmsnorm(verify_gemm(features, fc), norm)
        for weight, k_cache, v_cache in zip(weights, k_caches, v_caches, strict=True):
            kv = verify_gemm(context, weight).unflatten(1, (2, heads, dim))
            k, v = kv.unbind(1)
            options = {"positions": ids, "slots": ids, "cos_sin": cos_sin}
            rope_append_kv(k[:, :0], k, v, k_cache, v_cache, **options)
        return caches.clone()

    weight_elements = 5 * hidden * hidden + layers * 2 * heads * dim * hidden
    return Case(
        op="context_kv",
        name=f"T={rows}, H=1024, 5 layers, heads 4, dim 64, bf16",
        ours=fused,
        peers={"single ops": single},
        bytes_moved=2 * (weight_elements + rows * (5 * hidden + layers * 2 * heads * dim)),
        macs=rows * weight_elements,
    )
