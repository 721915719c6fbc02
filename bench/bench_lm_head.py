from collections.abc import Iterator

import torch
from bench_sample import call, nothing_to_compare
from case import Case
from torch import Tensor

from dflash_ops import (
    lm_head_gather,
    lm_head_sample,
    lm_head_topk,
    lm_head_verify,
    merge_shards,
    pack_weight,
    verify_gemm,
)

HIDDEN, VOCAB = 1024, 151_936


def cases(device: torch.device) -> Iterator[Case]:
    g = torch.Generator().manual_seed(0)
    weight = (torch.randn(VOCAB, HIDDEN, generator=g) / HIDDEN**0.5).bfloat16().to(device)
    packed = pack_weight(weight)
    for rows in (1, 8, 16, 64):
        h = (torch.randn(rows, HIDDEN, generator=g) * 3).bfloat16().to(device)
        yield topk_case(h, weight, packed)
        for law in ({}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 20.0, "top_p": 0.8}):
            yield sample_case(h, weight, packed, law)
        yield verify_case(h, weight, packed)
    yield gather_case(h, weight, packed)
    yield merge_case(device, shards=8, rows=64)


def merge_case(device: torch.device, shards: int, rows: int) -> Case:
    keys = torch.randn(shards, rows, 64, device=device).sort(dim=2, descending=True).values
    ids = torch.arange(shards * rows * 64, device=device).view(shards, rows, 64)
    lse = torch.randn(shards, rows, device=device)
    return Case(
        op="merge_shards",
        name=f"S={shards}, rows={rows}, K=64",
        ours=lambda: merge_shards(keys, ids, lse),
        peers={"eager topk": lambda: keys.transpose(0, 1).flatten(1).topk(64)},
        bytes_moved=keys.nbytes + ids.nbytes,
        macs=0,
        check=nothing_to_compare,
    )


def product(h: Tensor, packed: Tensor):
    """The floor: the product alone, with its logits in memory."""
    out = torch.empty(len(h), VOCAB, dtype=h.dtype, device=h.device)
    return lambda: verify_gemm(h, packed, num_outputs=VOCAB, out=out)


def topk_case(h: Tensor, weight: Tensor, packed: Tensor) -> Case:
    return Case(
        op="lm_head_topk",
        name=f"k=16, rows={len(h)}, V={VOCAB}, H={HIDDEN}",
        ours=lambda: lm_head_topk(h, packed, k=16),
        peers={
            "eager linear and topk": lambda: (h @ weight.T).topk(16),
            "verify_gemm alone": product(h, packed),
        },
        bytes_moved=weight.nbytes,
        macs=len(h) * weight.numel(),
        check=nothing_to_compare,
    )


def sample_case(h: Tensor, weight: Tensor, packed: Tensor, law: dict[str, float]) -> Case:
    args = call(h.device, len(h), law)
    return Case(
        op="lm_head_sample",
        name=f"{law or 'greedy'}, rows={len(h)}, V={VOCAB}, H={HIDDEN}",
        ours=lambda: lm_head_sample(h, packed, **args),
        peers={
            "eager linear and argmax": lambda: (h @ weight.T).argmax(dim=1),
            "verify_gemm alone": product(h, packed),
        },
        bytes_moved=weight.nbytes,
        macs=len(h) * weight.numel(),
        check=nothing_to_compare,
    )


def verify_case(h: Tensor, weight: Tensor, packed: Tensor) -> Case:
    """Sixteen candidates of a drafter and the draft; the peer keeps the softmax in memory."""
    ids = torch.arange(len(h), device=h.device)[:, None] + torch.arange(17, device=h.device) * 31
    args = call(h.device, len(h), {"temperature": 1.0})
    return Case(
        op="lm_head_verify",
        name=f"K=17, rows={len(h)}, V={VOCAB}, H={HIDDEN}",
        ours=lambda: lm_head_verify(h, packed, ids, **args),
        peers={
            "eager linear and softmax": lambda: (h @ weight.T).float().softmax(dim=1),
            "verify_gemm alone": product(h, packed),
        },
        bytes_moved=weight.nbytes,
        macs=len(h) * weight.numel(),
        check=nothing_to_compare,
    )


def gather_case(h: Tensor, weight: Tensor, packed: Tensor) -> Case:
    ids = torch.arange(len(h), device=h.device)[:, None] * 100 + torch.arange(4, device=h.device)
    return Case(
        op="lm_head_gather",
        name=f"K=4, rows={len(h)}, V={VOCAB}, H={HIDDEN}",
        ours=lambda: lm_head_gather(h, packed, ids),
        peers={
            "eager linear and log_softmax": lambda: (h @ weight.T).log_softmax(dim=1).gather(1, ids)
        },
        bytes_moved=weight.nbytes,
        macs=len(h) * weight.numel(),
        check=nothing_to_compare,
    )
