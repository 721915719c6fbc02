"""Trees of drafts: from parents, from scores, from and to the engines' own formats."""

from typing import NamedTuple

import torch
from torch import Tensor

from ._check import Checks


class TreeMetadata(NamedTuple):
    """What follows from the parents of T packed rows; int32. Links are local rows, -1: none."""

    depth: Tensor
    """``[T]`` distance from the anchor: the row's position is the context length plus this."""
    mask_bits: Tensor
    """``[T, ceil(max_rows / 32)]`` bit j of a row: it may see row j of its request."""
    first_child: Tensor
    """``[T]``"""
    next_sibling: Tensor
    """``[T]`` next child of the same parent, in row order."""


def tree_metadata(
    parents: Tensor,
    cu_rows: Tensor,
    *,
    max_rows: int,
    tree_nodes: Tensor | None = None,
    status: Tensor | None = None,
    out: TreeMetadata | None = None,
) -> TreeMetadata:
    """Derive depth, visibility and links of every node of every request's tree.

    A node sees itself and its ancestors. Its depth is the number of them.

    Args:
        parents: ``[T]`` int, index of the parent within the request, smaller than the row's own;
            -1 for the anchor.
        cu_rows: ``[B + 1]`` int, rows of request b: ``cu_rows[b] .. cu_rows[b + 1]``.
        max_rows: most nodes of one tree.
        tree_nodes: ``[B]`` int, > 0: the rows of request b are nodes of a tree; else they are a
            chain of any length, whatever ``parents`` says, and its mask holds what fits. Default:
            all are trees.
        status: ``[B]`` int32, :class:`Status` bits are OR-ed in. BAD_TREE: the rows from the first
            bad parent on were dropped. BOUND_TOO_SMALL: the tree's rows from ``max_rows`` on were
            dropped. OUT_OF_RANGE: cu_rows leaves the rows; none was written.
        out: tensors to write into; ``mask_bits`` int32, the others int.

    int is int32 or int64. Every tensor may have any strides.

    Returns:
        A :class:`TreeMetadata`; ``out`` if given. Dropped rows and rows of no request have depth
        0, an empty mask and no links. The anchor always stays.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape, device or bound is not as above.

    Reference: :func:`dflash_ops.reference.tree_metadata`. Exact: results are equal, not close.
    """
    checks = Checks("tree_metadata", parents)
    checks.index("parents", parents, "[T]", -1)
    num_rows = len(parents)
    checks.index("cu_rows", cu_rows, "[B + 1]", -1)
    checks.at_least("len(cu_rows)", len(cu_rows), 1)
    batch = len(cu_rows) - 1
    checks.at_least("max_rows", max_rows, 1)
    checks.index("tree_nodes", tree_nodes, "[B]", batch)
    checks.tensor("status", status, (torch.int32,), "[B]", batch)

    options = {"max_rows": max_rows, "tree_nodes": tree_nodes, "status": status}
    if out is None:
        return TreeMetadata(*torch.ops.dflash.tree_metadata(parents, cu_rows, **options))
    words = (max_rows + 31) // 32
    checks.index("depth", out.depth, "[T]", num_rows)
    dims = "[T, ceil(max_rows / 32)]"
    checks.tensor("mask_bits", out.mask_bits, (torch.int32,), dims, num_rows, words)
    checks.index("first_child", out.first_child, "[T]", num_rows)
    checks.index("next_sibling", out.next_sibling, "[T]", num_rows)
    torch.ops.dflash.tree_metadata.out(parents, cu_rows, **options, **out._asdict())
    return out


@torch.library.register_fake("dflash::tree_metadata")
def _(parents, cu_rows, *, max_rows, tree_nodes=None, status=None):
    rows = parents.shape[0]
    shapes = (rows,), (rows, (max_rows + 31) // 32), (rows,), (rows,)
    return tuple(parents.new_empty(shape, dtype=torch.int32) for shape in shapes)


@torch.library.register_fake("dflash::tree_metadata.out")
def _(*args, **kwargs):
    return None
