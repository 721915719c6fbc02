"""Packs what the requests do in one step into the tensors that the ops take."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

_tree_metadata = torch.ops.dflash.tree_metadata.default


class Share(NamedTuple):
    """What one request does in a step: a prefill chunk, or its anchor and drafts."""

    state_row: int  # -1: padded
    ctx_len: int
    tokens: Sequence[int]  # of its rows
    num_verify: int  # its last rows, which are verified or sampled
    parents: Sequence[int] | None = None  # of a tree: [-1, ..]; its rows are all verified
    pages: Sequence[int] = ()


@dataclass
class Batch:
    """T rows of B requests. Names and shapes are those of the ops."""

    ids: Tensor
    positions: Tensor
    slots: Tensor
    cu_rows: Tensor
    req_rows: Tensor
    cu_verify: Tensor
    verify_rows: Tensor
    verify_ids: Tensor
    verify_positions: Tensor
    verify_parents: Tensor | None  # None: chains only
    tree: dict[str, Tensor]  # tree_nodes, mask_bits and depth; empty: chains only
    draft_depths: list[int]  # drafts on the longest path of each request


def pack(shares: Sequence[Share], page_size: int, device: torch.device) -> Batch:
    sizes = [len(share.tokens) for share in shares]
    cu_rows = [0, *accumulate(sizes)]
    cu_verify = [0, *accumulate(share.num_verify for share in shares)]
    verify_rows = [
        row
        for end, share in zip(cu_rows[1:], shares, strict=True)
        for row in range(end - share.num_verify, end)
    ]
    # Stacked, so that one copy to the device carries all that is per row.
    rows = np.empty((5, cu_rows[-1]), np.int64)
    ids, bases, slots, depths, parents = rows
    for begin, end, share in zip(cu_rows, cu_rows[1:], shares, strict=False):
        here = slice(begin, end)
        local = np.arange(end - begin)
        ids[here] = share.tokens
        depths[here] = local
        parents[here] = local - 1
        if share.state_row < 0:
            bases[here], slots[here] = -1 - local, -1  # position -1
            continue
        bases[here] = share.ctx_len
        index = share.ctx_len + local
        slots[here] = np.asarray(share.pages)[index // page_size] * page_size + index % page_size
        if share.parents is not None:
            parents[here] = share.parents
    packed = torch.from_numpy(rows).to(device)

    def ints(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    cu, verify = ints(cu_rows), ints(verify_rows)
    depth, verify_parents, tree = packed[3], None, {}
    tree_sizes = [n if s.parents is not None else 0 for n, s in zip(sizes, shares, strict=True)]
    if any(tree_sizes):
        nodes = ints(tree_sizes)
        depth, mask_bits, _, _ = _tree_metadata(
            packed[4], cu, max_rows=max(tree_sizes), tree_nodes=nodes
        )
        tree = {"tree_nodes": nodes, "mask_bits": mask_bits, "depth": depth}
        verify_parents = packed[4][verify]
    positions = packed[1] + depth
    return Batch(
        ids=packed[0],
        positions=positions,
        slots=packed[2],
        cu_rows=cu,
        req_rows=ints([share.state_row for share in shares]),
        cu_verify=ints(cu_verify),
        verify_rows=verify,
        verify_ids=packed[0][verify],
        verify_positions=positions[verify],
        verify_parents=verify_parents,
        tree=tree,
        draft_depths=[_draft_depth(share) for share in shares],
    )


def _draft_depth(share: Share) -> int:
    if share.parents is None:
        return max(share.num_verify - 1, 0)
    depths = [0]
    for parent in share.parents[1:]:
        depths.append(depths[parent] + 1)
    return max(depths)
