import heapq
from collections.abc import Iterator

import torch
from case import Case
from torch import Tensor

from dflash_ops import (
    build_tree,
    tree_from_mask,
    tree_from_retrieve,
    tree_metadata,
    tree_to_paths,
)


def cases(device: torch.device) -> Iterator[Case]:
    for batch, nodes in ((1, 64), (64, 64), (8, 256)):
        yield tree_metadata_trees(device, batch, nodes)
        yield build_tree_marginals(device, batch, nodes)
        yield from conversions(device, batch, nodes)


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


def build_tree_marginals(device: torch.device, batch: int, nodes: int) -> Case:
    """7 slots of 16 candidates; the peer is the heap that engines run on the host."""
    g = torch.Generator().manual_seed(0)
    scores = torch.randn(batch, 7, 16, generator=g).mul(2).log_softmax(-1).sort(descending=True)[0]
    ids = torch.arange(batch * 7 * 16).reshape(batch, 7, 16)
    anchors = torch.zeros(batch, dtype=torch.int64, device=device)
    moved = ids.to(device), scores.to(device)
    return Case(
        op="build_tree",
        name=f"B={batch}, nodes={nodes}, 7 slots, K=16",
        ours=lambda: build_tree(anchors, *moved, max_nodes=nodes)[:2],
        peers={"heapq on the host": lambda: heap_trees(*moved, nodes)},
        bytes_moved=batch * (7 * 16 * 12 + nodes * 20),
    )


def heap_trees(ids: Tensor, scores: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """DDTree over sorted candidates: a popped node pushes its sibling and its first child."""
    tokens, parents = [], []
    for id_rows, score_rows in zip(ids.tolist(), scores.tolist(), strict=True):
        tokens.append(0)
        parents.append(-1)
        heap = [(-score_rows[0][0], 0, 0, 0)]
        for row in range(1, nodes):
            if not heap:
                break
            negative, parent, slot, k = heapq.heappop(heap)
            tokens.append(id_rows[slot][k])
            parents.append(parent)
            if k + 1 < len(id_rows[slot]):
                sibling = negative + score_rows[slot][k] - score_rows[slot][k + 1]
                heapq.heappush(heap, (sibling, parent, slot, k + 1))
            if slot + 1 < len(id_rows):
                heapq.heappush(heap, (negative - score_rows[slot + 1][0], row, slot + 1, 0))
    return torch.tensor(tokens, device=ids.device), torch.tensor(parents, device=ids.device)


def conversions(device: torch.device, batch: int, nodes: int) -> Iterator[Case]:
    """There and back; without a peer, since engines do these on the host, once per tree."""
    g = torch.Generator().manual_seed(0)
    parents = (torch.rand(batch, nodes, generator=g) * torch.arange(nodes)).long()
    parents[:, 0] = -1
    flat = parents.flatten().to(device)
    cu_rows = torch.arange(0, batch * nodes + 1, nodes, device=device)
    tree = tree_metadata(flat, cu_rows, max_rows=nodes)
    links = tree.first_child.reshape(batch, nodes), tree.next_sibling.reshape(batch, nodes)
    rows, words = batch * nodes, (nodes + 31) // 32
    for op, ours, size in (
        ("tree_from_mask", lambda: tree_from_mask(tree.mask_bits, cu_rows), 4 * words + 8),
        ("tree_from_retrieve", lambda: tree_from_retrieve(*links), 16),
        (
            "tree_to_paths",
            lambda: tree_to_paths(flat, cu_rows, max_paths=nodes // 2, max_path=15),
            8 + 64,
        ),
    ):
        name = f"B={batch}, nodes={nodes}"
        yield Case(op=op, name=name, ours=ours, peers={}, bytes_moved=rows * size)
