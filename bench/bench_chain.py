from collections.abc import Iterator

import torch
from bench_sample import nothing_to_compare
from case import Case
from torch import Tensor

from dflash_ops import verify_chain, verify_tree

VOCAB, DRAFTS, CANDIDATES = 32_000, 7, 16


def cases(device: torch.device) -> Iterator[Case]:
    for batch in (1, 8):
        for rule in ("token", "block"):
            yield chain_case(device, batch, rule)
        for rule in ("rrs", "traversal", "target_only", "typical"):
            yield tree_case(device, batch, rule)


def chain_case(device: torch.device, batch: int, rule: str) -> Case:
    """Chains of seven sampled drafts with 16 candidates each."""
    g = torch.Generator().manual_seed(0)
    rows = batch * (DRAFTS + 1)
    logits = torch.randn(rows, VOCAB, generator=g) * 3
    top = (logits + torch.randn(rows, VOCAB, generator=g)).topk(CANDIDATES)
    q = top.values.softmax(dim=1)
    tokens = top.indices.gather(1, torch.multinomial(q, 1, generator=g))[:, 0].roll(1)
    call = {
        "positions": torch.arange(DRAFTS + 1).repeat(batch),
        "cu_verify": torch.arange(0, rows + 1, DRAFTS + 1),
        "q": q,
        "q_ids": top.indices,
        "temperature": torch.ones(batch),
        "seeds": torch.arange(batch),
    }
    moved = {name: value.to(device) for name, value in call.items()}
    tokens, logits = tokens.to(device), logits.to(device)
    return Case(
        op="verify_chain",
        name=f"{rule}, B={batch}, drafts={DRAFTS}, K={CANDIDATES}, V={VOCAB}",
        ours=lambda: verify_chain(tokens, logits, rule=rule, max_path=DRAFTS, **moved),
        peers={"eager dense rejection": lambda: eager(tokens, logits, top, q, batch)},
        bytes_moved=logits.nbytes,
        check=nothing_to_compare,
    )


def eager(tokens: Tensor, logits: Tensor, top: torch.return_types.topk, q: Tensor, batch: int):
    """What engines do: q scattered into a dense tensor, rule token, chains of one length."""
    p = logits.softmax(dim=1).view(batch, DRAFTS + 1, -1)
    dense = torch.zeros_like(logits).scatter_(1, top.indices.to(logits.device), q.to(logits.device))
    dense = dense.view_as(p)
    drafts = tokens.view(batch, -1)[:, 1:, None]
    ratio = p[:, :-1].gather(2, drafts) / dense[:, :-1].gather(2, drafts)
    accepted = (torch.rand_like(ratio) < ratio)[..., 0].long().cumprod(dim=1).sum(dim=1)
    dense[:, -1] = 0
    at = accepted[:, None, None].expand(-1, 1, p.shape[2])
    residual = (p - dense).clamp(min=0).gather(1, at)[:, 0]
    return accepted, residual.multinomial(1)


PARENTS = [-1, 0, 0, 0, 1, 1, 2, 4, 4, 5, 6, 7, 8, 9, 10, 11]


def tree_case(device: torch.device, batch: int, rule: str) -> Case:
    """Trees of 16 rows; siblings are the top of one noise vector over 16 candidates."""
    g = torch.Generator().manual_seed(0)
    size = len(PARENTS)
    rows = batch * size
    logits = torch.randn(rows, VOCAB, generator=g) * 3
    top = (logits + torch.randn(rows, VOCAB, generator=g)).topk(CANDIDATES)
    q = top.values.softmax(dim=1)
    draws = top.indices.gather(1, torch.multinomial(q, 3, generator=g)).view(batch, size, 3)
    nth = [PARENTS[:i].count(parent) for i, parent in enumerate(PARENTS)]
    tokens = torch.stack([draws[:, max(p, 0), k] for p, k in zip(PARENTS, nth, strict=True)], dim=1)
    depth = [0] * size
    for i in range(1, size):
        depth[i] = depth[PARENTS[i]] + 1
    call = {
        "parents": torch.tensor(PARENTS).repeat(batch),
        "positions": torch.tensor(depth).repeat(batch),
        "cu_verify": torch.arange(0, rows + 1, size),
        "q": q,
        "q_ids": top.indices,
        "temperature": torch.ones(batch),
        "seeds": torch.arange(batch),
    }
    moved = {name: value.to(device) for name, value in call.items()}
    tokens, logits = tokens.flatten().to(device), logits.to(device)
    return Case(
        op="verify_tree",
        name=f"{rule}, B={batch}, rows={size}, K={CANDIDATES}, V={VOCAB}",
        ours=lambda: verify_tree(tokens, logits, rule=rule, max_path=max(depth), **moved),
        peers={"eager softmax alone": lambda: logits.softmax(dim=1)},
        bytes_moved=logits.nbytes,
        check=nothing_to_compare,
    )
