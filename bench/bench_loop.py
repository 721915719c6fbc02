from collections.abc import Iterator

import torch
from case import Case
from torch import Tensor

from dflash_ops import commit, prepare_block


def cases(device: torch.device) -> Iterator[Case]:
    for batch in (1, 64, 256):
        yield commit_chain(device, batch, 16)
    for batch in (1, 64, 256):
        yield prepare_block_of_16(device, batch)


def commit_chain(device: torch.device, batch: int, size: int) -> Case:
    """One stop token per request, which does not occur; nothing moves on, so calls can repeat."""
    g = torch.Generator().manual_seed(0)
    tokens = torch.zeros(batch, 4096, dtype=torch.int64, device=device)
    emitted = torch.randint(248_320, (batch, size), generator=g).to(device)
    num_emitted = torch.randint(1, size + 1, (batch,), generator=g).to(device)
    cu_rows = torch.arange(0, batch * size + 1, size, device=device)
    stop_ids = torch.full((batch, 1), 248_321, device=device)
    ones = torch.full((batch,), 100, device=device)
    finished = torch.zeros(batch, dtype=torch.bool, device=device)

    def ours() -> Tensor:
        state = ones.clone(), ones.clone(), finished.clone()
        return commit(tokens, *state, emitted, num_emitted, cu_rows, stop_ids=stop_ids)

    def peer() -> Tensor:
        state = ones.clone(), ones.clone(), finished.clone()
        return eager_commit(tokens, *state, emitted, num_emitted, stop_ids)

    return Case(
        op="commit",
        name=f"B={batch}, E={size}, 1 stop token",
        ours=ours,
        peers={"eager": peer},
        bytes_moved=8 * batch * (2 * size + 10),
    )


def eager_commit(
    tokens: Tensor,
    lengths: Tensor,
    ctx_lens: Tensor,
    finished: Tensor,
    emitted: Tensor,
    num_emitted: Tensor,
    stop_ids: Tensor,
) -> Tensor:
    """What engines write in PyTorch, without a host synchronisation."""
    slot = torch.arange(emitted.shape[1], device=tokens.device)
    is_stop = (emitted[:, :, None] == stop_ids[:, None]).any(2) & (slot < num_emitted[:, None])
    first = torch.where(is_stop, slot, emitted.shape[1]).amin(1) + 1
    kept = torch.where(finished, 0, torch.minimum(num_emitted, first))
    kept = torch.minimum(kept, tokens.shape[1] - lengths)
    at = (lengths[:, None] + slot).clamp(max=tokens.shape[1] - 1)
    old = tokens.gather(1, at)
    tokens.scatter_(1, at, torch.where(slot < kept[:, None], emitted, old))
    finished |= is_stop.any(1)
    lengths += kept
    ctx_lens += kept
    return kept


def prepare_block_of_16(device: torch.device, batch: int) -> Case:
    """Blocks of 16 at random places of a context of 4096, pages of 16."""
    g = torch.Generator().manual_seed(0)
    size, page_size, capacity = 16, 16, 4096
    tokens = torch.randint(248_000, (batch, capacity), generator=g).to(device)
    ctx_lens = torch.randint(capacity - size, (batch,), generator=g).to(device)
    table = torch.randperm(batch * capacity // page_size, generator=g).reshape(batch, -1).to(device)
    options = {"max_block": size, "mask_id": 248_070, "page_size": page_size}

    def eager() -> tuple[Tensor, ...]:
        positions = ctx_lens[:, None] + torch.arange(size, device=device)
        ids = torch.full_like(positions, 248_070)
        ids[:, 0] = tokens.gather(1, ctx_lens[:, None])[:, 0]
        slots = table.gather(1, positions // page_size) * page_size + positions % page_size
        return ids, positions, slots

    return Case(
        op="prepare_block",
        name=f"B={batch}, block of 16",
        ours=lambda: prepare_block(tokens, ctx_lens, table, num_pages=table.numel(), **options)[:3],
        peers={"eager": eager},
        bytes_moved=8 * batch * (4 * size + 6),
    )
