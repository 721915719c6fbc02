from itertools import pairwise

import torch
from torch import Tensor

from dflash_ops import Status, TreeMetadata


def tree_metadata(
    parents: Tensor,
    cu_rows: Tensor,
    *,
    max_rows: int,
    tree_nodes: Tensor | None = None,
    status: Tensor | None = None,
) -> TreeMetadata:
    rows, batch = len(parents), len(cu_rows) - 1
    status = torch.zeros(batch, dtype=torch.int32) if status is None else status
    may_see = torch.zeros(rows, (max_rows + 31) // 32, 32, dtype=torch.int64)
    depth = torch.zeros(rows, dtype=torch.int32)
    first_child, next_sibling = torch.full((2, rows), -1, dtype=torch.int32)

    for b, (begin, end) in enumerate(pairwise(cu_rows.tolist())):
        if not 0 <= begin <= end <= rows:
            status[b] |= Status.OUT_OF_RANGE
            continue
        parent = parents[begin:end].tolist()
        if tree_nodes is not None and tree_nodes[b] <= 0:
            parent = list(range(-1, end - begin - 1))
        else:
            if len(parent) > max_rows:
                status[b] |= Status.BOUND_TOO_SMALL
                parent = parent[:max_rows]
            good = [p in range(i) if i > 0 else p == -1 for i, p in enumerate(parent)]
            if not all(good):
                status[b] |= Status.BAD_TREE
                parent = [-1, *parent[1 : good.index(False)]]

        for i in range(len(parent)):
            path = [i]  # from the node up to the anchor
            while path[-1] > 0:
                path.append(parent[path[-1]])
            depth[begin + i] = len(path) - 1
            for j in path:
                if j < max_rows:
                    may_see[begin + i, j // 32, j % 32] = 1
            children = [c for c, p in enumerate(parent) if p == i]
            if children:
                first_child[begin + i] = children[0]
            for c, sibling in pairwise(children):
                next_sibling[begin + c] = sibling
    mask_bits = (may_see << torch.arange(32)).sum(2).to(torch.int32)
    return TreeMetadata(depth, mask_bits, first_child, next_sibling)
