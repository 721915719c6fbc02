import math
from itertools import pairwise

import torch
from torch import Tensor

from dflash_ops import Paths, Status, Tree, TreeMetadata


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


def build_tree(
    anchors: Tensor,
    ids: Tensor,
    scores: Tensor,
    *,
    max_nodes: int,
    budgets: Tensor | None = None,
    num_drafts: Tensor | None = None,
    status: Tensor | None = None,
) -> Tree:
    """Every child of the tree so far is a contender; the best of them joins."""
    batch, slots, candidates = ids.shape
    status = torch.zeros(batch, dtype=torch.int32) if status is None else status
    edges = scores if scores.dim() == 4 else scores[:, :, None].expand(-1, -1, candidates, -1)
    tokens: list[int] = []
    parents: list[int] = []
    path_scores: list[float] = []
    cu_rows = [0]
    for b, anchor in enumerate(anchors.tolist()):
        budget = max_nodes if budgets is None else int(budgets[b])
        depth = slots if num_drafts is None else int(num_drafts[b])
        if anchor < 0 or budget <= 0:
            cu_rows.append(len(tokens))
            continue
        if budget > max_nodes or depth > slots:
            status[b] |= Status.BOUND_TOO_SMALL
        nodes = [(anchor, -1, torch.zeros(()), -1, 0)]  # token, parent, score, slot, candidate
        while len(nodes) < min(budget, max_nodes):
            taken = {(parent, candidate) for _, parent, _, _, candidate in nodes}
            contenders = [
                (-float(total), row, int(ids[b, slot + 1, k]), k)
                for row, (_, _, score, slot, candidate) in enumerate(nodes)
                if slot + 1 < min(depth, slots)
                for k in range(candidates)
                if (total := score + edges[b, slot + 1, candidate, k]) > -math.inf
                and ids[b, slot + 1, k] >= 0
                and (row, k) not in taken
            ]
            if not contenders:
                break
            _, row, token, k = min(contenders)
            slot = nodes[row][3] + 1
            score = nodes[row][2] + edges[b, slot, nodes[row][4], k]
            nodes.append((token, row, score, slot, k))
        tokens += [node[0] for node in nodes]
        parents += [node[1] for node in nodes]
        path_scores += [float(node[2]) for node in nodes]
        cu_rows.append(len(tokens))
    rest = batch * max_nodes - len(tokens)
    return Tree(
        torch.tensor(tokens + [-1] * rest, dtype=torch.int64),
        torch.tensor(parents + [-1] * rest, dtype=torch.int64),
        torch.tensor(path_scores + [-math.inf] * rest, dtype=torch.float32),
        torch.tensor(cu_rows),
    )


def tree_to_paths(
    parents: Tensor,
    cu_rows: Tensor,
    *,
    max_paths: int,
    max_path: int,
    status: Tensor | None = None,
) -> Paths:
    batch = len(cu_rows) - 1
    status = torch.zeros(batch, dtype=torch.int32) if status is None else status
    out = Paths(torch.full((batch, max_paths, max_path + 1), -1), torch.zeros(batch).long())
    for b, (begin, end) in enumerate(pairwise(cu_rows.tolist())):
        if not 0 <= begin <= end <= len(parents):
            status[b] |= Status.OUT_OF_RANGE
            continue
        parent = parents[begin:end].tolist()
        good = [p in range(i) if i > 0 else p == -1 for i, p in enumerate(parent)]
        if not all(good):
            status[b] |= Status.BAD_TREE
            parent = [-1, *parent[1 : good.index(False)]]

        def path_to(row: int, parent: list[int] = parent) -> list[int]:
            return [*path_to(parent[row]), row] if row > 0 else [0]

        paths = [path_to(i) for i in range(len(parent)) if i not in parent]
        if len(paths) > max_paths or any(len(p) > max_path + 1 for p in paths[:max_paths]):
            status[b] |= Status.BOUND_TOO_SMALL
        for i, path in enumerate(paths[:max_paths]):
            path = path[: max_path + 1]
            out.paths[b, i, : len(path)] = torch.tensor(path)
        out.num_paths[b] = min(len(paths), max_paths)
    return out


def tree_from_retrieve(
    next_token: Tensor, next_sibling: Tensor, *, status: Tensor | None = None
) -> Tensor:
    batch, nodes = next_token.shape
    status = torch.zeros(batch, dtype=torch.int32) if status is None else status
    parents = torch.full((batch, nodes), -1)
    for b in range(batch):
        reached = [0] if nodes else []
        for row in range(nodes):
            if row not in reached:
                continue
            child = int(next_token[b, row])
            while child != -1:
                if not row < child < nodes or child in reached:
                    status[b] |= Status.BAD_TREE
                    break
                reached.append(child)
                parents[b, child] = row
                child = int(next_sibling[b, child])
    return parents


def tree_from_mask(mask: Tensor, cu_rows: Tensor, *, status: Tensor | None = None) -> Tensor:
    batch = len(cu_rows) - 1
    status = torch.zeros(batch, dtype=torch.int32) if status is None else status
    if mask.dtype != torch.bool:
        mask = (mask[:, :, None] >> torch.arange(32) & 1).flatten(1).bool()
    sees = [set(row.nonzero().flatten().tolist()) for row in mask]
    parents = torch.full((len(mask),), -1)
    for b, (begin, end) in enumerate(pairwise(cu_rows.tolist())):
        if not 0 <= begin <= end <= len(mask):
            status[b] |= Status.OUT_OF_RANGE
            continue
        for i in range(end - begin):
            parent = max((j for j in sees[begin + i] if j < i), default=-1)
            seen_by_parent = sees[begin + parent] if parent >= 0 else set()
            if (i > 0 and parent < 0) or sees[begin + i] != seen_by_parent | {i}:
                status[b] |= Status.BAD_TREE
                break
            parents[begin + i] = parent
    return parents
