from collections.abc import Iterator

import torch
from case import Case
from torch import Tensor

from dflash_ops import commit_state, release_pages, rmsnorm, sum_shards


def cases(device: torch.device) -> Iterator[Case]:
    for batch in (1, 64):
        yield release_of_two_pages(device, batch)
        yield commit_state_of_layers(device, batch)
    for rows in (1, 64):
        yield sum_of_four_shards(device, rows)


def release_of_two_pages(device: torch.device, batch: int) -> Case:
    """A table of 256 pages, of which the last two go back; the peer keeps no owners."""
    table = torch.arange(batch * 256, device=device).reshape(batch, 256)
    keep = torch.full((batch,), 254 * 16, device=device)
    free = torch.zeros(batch * 256, dtype=torch.int64, device=device)

    def ours() -> Tensor:
        now, top = table.clone(), torch.zeros(1, dtype=torch.int64, device=device)
        release_pages(now, free, top, keep, page_size=16, num_pages=batch * 256)
        return now

    def peer() -> Tensor:
        now = table.clone()
        spare = torch.arange(256, device=device) * 16 >= keep[:, None]
        pages = now[spare]
        free[: len(pages)] = pages
        now[spare] = -1
        return now

    return Case(
        op="release_pages",
        name=f"B={batch}, 2 of 256 pages",
        ours=ours,
        peers={"eager, host size": peer},
        bytes_moved=batch * (8 * 256 + 32),
    )


def commit_state_of_layers(device: torch.device, batch: int) -> Case:
    """24 layers with states of 16 heads of 64 x 64 in fp32, trees of 8 rows."""
    layers, rows = 24, 8 * batch
    states = [torch.zeros(batch, 16, 64, device=device) for _ in range(layers)]
    row_states = [torch.ones(rows, 16, 64, device=device) for _ in range(layers)]
    accepted = (torch.arange(batch, device=device) * 8 + 5)[:, None]

    def ours() -> list[Tensor]:
        commit_state(states, row_states, accepted)
        return states

    def peer() -> list[Tensor]:
        for state, row_state in zip(states, row_states, strict=True):
            state[:] = row_state[accepted[:, 0]]
        return states

    return Case(
        op="commit_state",
        name=f"B={batch}, 24 layers, 4 KB a row",
        ours=ours,
        peers={"eager": peer},
        bytes_moved=2 * layers * batch * 16 * 64 * 4,
    )


def sum_of_four_shards(device: torch.device, rows: int) -> Case:
    """H 4096, bf16, residual and norm."""
    g = torch.Generator().manual_seed(0)
    shards, residual, weight = (
        torch.randn(shape, generator=g).bfloat16().to(device)
        for shape in ((4, rows, 4096), (rows, 4096), (4096,))
    )

    def eager() -> tuple[Tensor, Tensor]:
        total = ((shards[0].float() + shards[1]) + shards[2]) + shards[3] + residual
        total = total.bfloat16()
        return total, rmsnorm(total, weight)

    return Case(
        op="sum_shards",
        name=f"S=4, M={rows}, N=4096, bf16, residual, norm",
        ours=lambda: sum_shards(shards, residual=residual, norm_weight=weight),
        peers={"eager, rmsnorm": eager},
        bytes_moved=2 * rows * 4096 * 7,
    )
