"""Trees of drafts: from parents, from scores, from and to the engines' own formats."""

from typing import NamedTuple

import torch
from torch import Tensor

from ._check import Checks, status_or_scratch


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


class Tree(NamedTuple):
    """Trees of B requests, packed: request b has rows ``cu_rows[b] .. cu_rows[b + 1]``.

    Rows after ``cu_rows[B]`` hold -1, -1 and -inf.
    """

    tokens: Tensor
    """``[B * max_nodes]`` int64, the anchor, then drafts in the order in which they were chosen."""
    parents: Tensor
    """``[B * max_nodes]`` int64, local row of the parent, -1 for the anchor."""
    path_scores: Tensor
    """``[B * max_nodes]`` fp32, sum of the scores from the anchor, whose own is 0."""
    cu_rows: Tensor
    """``[B + 1]`` int64"""


def build_tree(
    anchors: Tensor,
    ids: Tensor,
    scores: Tensor,
    *,
    max_nodes: int,
    budgets: Tensor | None = None,
    num_drafts: Tensor | None = None,
    status: Tensor | None = None,
    out: Tree | None = None,
) -> Tree:
    """Grow each request's tree of drafts best-first, under its own budget.

    A node at depth d is a candidate of slot d - 1; its score is its parent's plus its own
    log-probability. The node with the highest score that is not in the tree joins it, until the
    budget is spent: for scores that are not positive, the ``budget`` best nodes of all. Ties go to
    the lower parent row, then the lower token id. Candidates may come in any order.

    The choice looks at the tokens' own scores, so such a tree is of the deterministic kind:
    verify it with match or target_only, never with a rejection rule.

    Args:
        anchors: ``[B]`` int, token of row 0. Below 0: padded, no rows.
        ids: ``[B, D, K]`` int, candidate tokens of each slot; below 0: absent.
        scores: ``[B, D, K]`` fp32 log-probabilities of each slot (DDTree), or ``[B, D, K, K]``
            from each candidate of the slot before to each of this one (DFlash 2; slot 0 reads its
            first row). NaN and -inf: never in the tree.
        max_nodes: most rows of one tree, anchor included.
        budgets: ``[B]`` int, rows of the tree, anchor included; 0: none. Default: max_nodes.
        num_drafts: ``[B]`` int, slots that count. Default: D.
        status: ``[B]`` int32, :class:`Status` bits are OR-ed in. BOUND_TOO_SMALL: max_nodes cut the
            budget, or D the slots.
        out: tensors to write into; ``path_scores`` fp32, the others int.

    int is int32 or int64. Every tensor may have any strides.

    Returns:
        A :class:`Tree`; ``out`` if given. What :func:`tree_metadata` takes.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape, device or bound is not as above.

    Source: DDTree (arXiv:2604.12989).
    Reference: :func:`dflash_ops.reference.build_tree`. Exact: results are equal, not close.
    """
    checks = Checks("build_tree", anchors)
    checks.index("anchors", anchors, "[B]", -1)
    batch = len(anchors)
    checks.index("ids", ids, "[B, D, K]", batch, -1, -1)
    shape = ids.shape
    fp32 = (torch.float32,)
    if scores.dim() == 4:
        checks.tensor("scores", scores, fp32, "[B, D, K, K]", *shape, shape[2])
    else:
        checks.tensor("scores", scores, fp32, "[B, D, K]", *shape)
    checks.at_least("max_nodes", max_nodes, 1)
    checks.index("budgets", budgets, "[B]", batch)
    checks.index("num_drafts", num_drafts, "[B]", batch)
    checks.tensor("status", status, (torch.int32,), "[B]", batch)

    args = (anchors, ids, scores)
    options = {
        "max_nodes": max_nodes,
        "budgets": budgets,
        "num_drafts": num_drafts,
        "status": status,
    }
    if out is None:
        return Tree(*torch.ops.dflash.build_tree(*args, **options))
    rows = batch * max_nodes
    checks.index("tokens", out.tokens, "[B * max_nodes]", rows)
    checks.index("parents", out.parents, "[B * max_nodes]", rows)
    checks.tensor("path_scores", out.path_scores, fp32, "[B * max_nodes]", rows)
    checks.index("cu_rows", out.cu_rows, "[B + 1]", batch + 1)
    torch.ops.dflash.build_tree.out(*args, **options, **out._asdict())
    return out


class Paths(NamedTuple):
    """Root-to-leaf paths of B trees; int64."""

    paths: Tensor
    """``[B, max_paths, max_path + 1]`` local rows from the anchor to each leaf, then -1."""
    num_paths: Tensor
    """``[B]``"""


def tree_to_paths(
    parents: Tensor,
    cu_rows: Tensor,
    *,
    max_paths: int,
    max_path: int,
    status: Tensor | None = None,
    out: Paths | None = None,
) -> Paths:
    """List the rows from the anchor to each leaf, leaves in row order (Medusa's retrieve indices).

    Args:
        parents: ``[T]`` int, as for :func:`tree_metadata`.
        cu_rows: ``[B + 1]`` int, rows of request b: ``cu_rows[b] .. cu_rows[b + 1]``.
        max_paths: most leaves of one tree.
        max_path: most rows of a path after the anchor.
        status: ``[B]`` int32, :class:`Status` bits are OR-ed in. BAD_TREE: the rows from the first
            bad parent on were dropped. BOUND_TOO_SMALL: paths were left out or cut. OUT_OF_RANGE:
            cu_rows leaves the rows; there are no paths.
        out: int tensors to write into.

    int is int32 or int64. Every tensor may have any strides.

    Returns:
        A :class:`Paths`; ``out`` if given.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape, device or bound is not as above.

    Reference: :func:`dflash_ops.reference.tree_to_paths`. Exact: results are equal, not close.
    """
    checks = Checks("tree_to_paths", parents)
    checks.index("parents", parents, "[T]", -1)
    checks.index("cu_rows", cu_rows, "[B + 1]", -1)
    checks.at_least("len(cu_rows)", len(cu_rows), 1)
    batch = len(cu_rows) - 1
    checks.at_least("max_paths", max_paths, 0)
    checks.at_least("max_path", max_path, 0)
    checks.tensor("status", status, (torch.int32,), "[B]", batch)

    options = {"max_paths": max_paths, "max_path": max_path, "status": status}
    if out is None:
        return Paths(*torch.ops.dflash.tree_to_paths(parents, cu_rows, **options))
    dims = "[B, max_paths, max_path + 1]"
    checks.index("paths", out.paths, dims, batch, max_paths, max_path + 1)
    checks.index("num_paths", out.num_paths, "[B]", batch)
    torch.ops.dflash.tree_to_paths.out(parents, cu_rows, **options, **out._asdict())
    return out


def tree_from_retrieve(
    next_token: Tensor,
    next_sibling: Tensor,
    *,
    status: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Parents from first-child and next-sibling links (SGLang's retrieve tensors).

    Args:
        next_token: ``[B, N]`` int, local row of the first child, -1: none.
        next_sibling: ``[B, N]`` int, local row of the next child of the same parent, -1: none.
        status: ``[B]`` int32, :class:`Status` bits are OR-ed in. BAD_TREE: a link that leaves the
            rows, goes to a row not below its parent, or to one that has a parent; that list of
            children ends there.
        out: ``[B, N]`` int to write into.

    int is int32 or int64. Every tensor may have any strides.

    Returns:
        ``[B, N]`` int64, local row of each node's parent; -1 for the anchor, row 0, and for rows
        that no link reaches; ``out`` if given.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape or device is not as above.

    Reference: :func:`dflash_ops.reference.tree_from_retrieve`. Exact.
    """
    checks = Checks("tree_from_retrieve", next_token)
    checks.index("next_token", next_token, "[B, N]", -1, -1)
    checks.index("next_sibling", next_sibling, "[B, N]", *next_token.shape)
    checks.tensor("status", status, (torch.int32,), "[B]", len(next_token))
    status = status_or_scratch(status, next_token, len(next_token))
    op = torch.ops.dflash.tree_from_retrieve
    if out is None:
        return op(next_token, next_sibling, status=status)
    checks.index("parents", out, "[B, N]", *next_token.shape)
    op.out(next_token, next_sibling, status=status, parents=out)
    return out


def tree_from_mask(
    mask: Tensor,
    cu_rows: Tensor,
    *,
    status: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Parents from who may see whom: the inverse of :func:`tree_metadata`'s ``mask_bits``.

    A node's parent is the highest row below its own that it sees.

    Args:
        mask: ``[T, W]`` int32, bit ``j % 32`` of word ``j / 32``: the row sees row j of its
            request; or ``[T, N]`` bool. Columns past the request's own rows are False.
        cu_rows: ``[B + 1]`` int, rows of request b: ``cu_rows[b] .. cu_rows[b + 1]``.
        status: ``[B]`` int32, :class:`Status` bits are OR-ed in. BAD_TREE: a row that does not see
            itself and exactly what its parent sees; the rows from it on were dropped.
            OUT_OF_RANGE: cu_rows leaves the rows; none was written.
        out: ``[T]`` int to write into.

    int is int32 or int64. Every tensor may have any strides.

    Returns:
        ``[T]`` int64, local row of each node's parent; -1 for anchors, dropped rows and rows of no
        request; ``out`` if given.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape or device is not as above.

    Reference: :func:`dflash_ops.reference.tree_from_mask`. Exact.
    """
    checks = Checks("tree_from_mask", mask)
    checks.tensor("mask", mask, (torch.int32, torch.bool), "[T, W] or [T, N]", -1, -1)
    checks.index("cu_rows", cu_rows, "[B + 1]", -1)
    checks.at_least("len(cu_rows)", len(cu_rows), 1)
    checks.tensor("status", status, (torch.int32,), "[B]", len(cu_rows) - 1)
    status = status_or_scratch(status, mask, len(cu_rows) - 1)
    if out is None:
        return torch.ops.dflash.tree_from_mask(mask, cu_rows, status=status)
    checks.index("parents", out, "[T]", len(mask))
    torch.ops.dflash.tree_from_mask.out(mask, cu_rows, status=status, parents=out)
    return out


@torch.library.register_fake("dflash::build_tree")
def _(anchors, ids, scores, *, max_nodes, budgets=None, num_drafts=None, status=None):
    batch = anchors.shape[0]
    rows = batch * max_nodes
    ints = [anchors.new_empty(n, dtype=torch.int64) for n in (rows, rows, batch + 1)]
    return ints[0], ints[1], anchors.new_empty(rows, dtype=torch.float32), ints[2]


@torch.library.register_fake("dflash::tree_to_paths")
def _(parents, cu_rows, *, max_paths, max_path, status=None):
    batch = cu_rows.shape[0] - 1
    shapes = (batch, max_paths, max_path + 1), (batch,)
    return tuple(parents.new_empty(shape, dtype=torch.int64) for shape in shapes)


@torch.library.register_fake("dflash::tree_from_retrieve")
def _(next_token, next_sibling, *, status=None):
    return next_token.new_empty(next_token.shape, dtype=torch.int64)


@torch.library.register_fake("dflash::tree_from_mask")
def _(mask, cu_rows, *, status=None):
    return mask.new_empty(mask.shape[0], dtype=torch.int64)


for _name in ("build_tree", "tree_to_paths", "tree_from_retrieve", "tree_from_mask"):
    torch.library.register_fake(f"dflash::{_name}.out", lambda *args, **kwargs: None)
