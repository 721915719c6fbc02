from collections.abc import Iterator

import torch
from case import Case
from torch import Tensor

from dflash_ops import tree_metadata


def cases(device: torch.device) -> Iterator[Case]:
    for batch, nodes in ((1, 64), (64, 64), (8, 256)):
        yield tree_metadata_trees(device, batch, nodes)


def tree_metadata_trees(device: torch.device, batch: int, nodes: int) -> Case:
    """Random trees of equal size; the peer squares the adjacency matrix, as engines do in eager."""
    g = torch.Generator().manual_seed(0)
    parents = (torch.rand(batch, nodes, generator=g) * torch.arange(nodes)).long()
    parents[:, 0] = -1
    parents = parents.to(device)
    cu_rows = torch.arange(0, batch * nodes + 1, nodes, device=device)
    words = (nodes + 31) // 32
    return Case(
        op="tree_metadata",
        name=f"B={batch}, nodes={nodes}",
        ours=lambda: tree_metadata(parents.flatten(), cu_rows, max_rows=nodes)[:2],
        peers={"eager": lambda: eager_tree(parents, words)},
        bytes_moved=batch * nodes * (8 + 4 * (3 + words)),
    )


def eager_tree(parents: Tensor, words: int) -> tuple[Tensor, Tensor]:
    batch, nodes = parents.shape
    sees = torch.eye(nodes, device=parents.device).repeat(batch, 1, 1)
    sees.scatter_(2, parents.clamp(min=0)[:, :, None], 1)
    for _ in range((nodes - 1).bit_length()):
        sees = (sees @ sees).clamp(max=1)
    depth = sees.sum(2).int() - 1
    bits = torch.zeros(batch * nodes, words * 32, dtype=torch.int64, device=parents.device)
    bits[:, :nodes] = sees.flatten(0, 1).long()
    shifts = torch.arange(32, device=parents.device)
    return depth.flatten(), (bits.unflatten(1, (words, 32)) << shifts).sum(2).int()
