"""From one step to the next, without the host."""

from typing import NamedTuple

import torch
from torch import Tensor

from ._check import Checks


def commit(
    tokens: Tensor,
    lengths: Tensor,
    ctx_lens: Tensor,
    finished: Tensor,
    emitted: Tensor,
    num_emitted: Tensor,
    cu_rows: Tensor,
    cu_verify: Tensor | None = None,
    *,
    req_rows: Tensor | None = None,
    stop_ids: Tensor | None = None,
    min_lens: Tensor | None = None,
    max_lens: Tensor | None = None,
    status: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Append what a step emitted to each request's tokens, and move its lengths on.

    Of request b, in state row r, the first ``m`` emitted tokens are appended: all of them, or up to
    the first stop token that is at least the ``min_lens[r]``-th token of the request, or up to
    ``max_lens[r]`` tokens. The last of them is the next anchor, so the keys of the ``m`` rows
    before it stay: ``num_kept[b] = m``, ``lengths[r] += m`` and
    ``ctx_lens[r] += rows - verify_rows + m``. A stop token or a full buffer sets ``finished[r]``.

    Args:
        tokens: ``[R, capacity]`` int, each request's prompt and output. Written.
        lengths: ``[R]`` int, tokens in the buffer; the last one is the anchor. Written.
        ctx_lens: ``[R]`` int, keys in the cache; ``lengths - 1`` while decoding. Written.
        finished: ``[R]`` bool, sticky: a finished request appends and keeps nothing. Written.
        emitted: ``[B, E]`` int, accepted drafts, then the bonus token, as :func:`accept_match`.
        num_emitted: ``[B]`` int.
        cu_rows: ``[B + 1]`` int, model rows of request b: ``cu_rows[b] .. cu_rows[b + 1]``.
        cu_verify: ``[B + 1]`` int, verify rows. A request with none is a prefill chunk with more to
            come: only ``ctx_lens`` rises, by its rows. Default: every row is verified.
        req_rows: ``[B]`` int, state row of request b; -1: padded. Default: the same numbers.
        stop_ids: ``[R, S]`` int, stop tokens; -1: none.
        min_lens: ``[R]`` int, tokens, prompt included, before which no stop token counts.
        max_lens: ``[R]`` int, most tokens, prompt included. Default: capacity.
        status: ``[B]`` int32, :class:`Status` bits are OR-ed in. OUT_OF_RANGE: a state row, row
            range, length or count that does not exist; nothing was appended. BAD_DRAFT_ID: a
            negative token; those from it on were dropped. BOUND_TOO_SMALL: the request ended
            because ``tokens`` is full.
        out: ``[B]`` int to write into.

    int is int32 or int64. Every tensor may have any strides. No two requests share a state row.

    Returns:
        ``[B]`` int64, ``num_kept``: rows of the path (the anchor, then accepted drafts) whose keys
        stay, and the number of tokens appended; ``out`` if given.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape or device is not as above.

    Reference: :func:`dflash_ops.reference.commit`. Exact: results are equal, not close.
    """
    checks = Checks("commit", tokens)
    checks.index("tokens", tokens, "[R, capacity]", -1, -1)
    state_rows = len(tokens)
    checks.index("lengths", lengths, "[R]", state_rows)
    checks.index("ctx_lens", ctx_lens, "[R]", state_rows)
    checks.tensor("finished", finished, (torch.bool,), "[R]", state_rows)
    checks.index("emitted", emitted, "[B, E]", -1, -1)
    batch = len(emitted)
    checks.index("num_emitted", num_emitted, "[B]", batch)
    checks.index("cu_rows", cu_rows, "[B + 1]", batch + 1)
    checks.index("cu_verify", cu_verify, "[B + 1]", batch + 1)
    checks.index("req_rows", req_rows, "[B]", batch)
    checks.index("stop_ids", stop_ids, "[R, S]", state_rows, -1)
    checks.index("min_lens", min_lens, "[R]", state_rows)
    checks.index("max_lens", max_lens, "[R]", state_rows)
    checks.tensor("status", status, (torch.int32,), "[B]", batch)

    args = (tokens, lengths, ctx_lens, finished, emitted, num_emitted, cu_rows, cu_verify)
    options = {
        "req_rows": req_rows,
        "stop_ids": stop_ids,
        "min_lens": min_lens,
        "max_lens": max_lens,
        "status": status,
    }
    if out is None:
        return torch.ops.dflash.commit(*args, **options)
    checks.index("num_kept", out, "[B]", batch)
    torch.ops.dflash.commit.out(*args, **options, num_kept=out)
    return out


@torch.library.register_fake("dflash::commit")
def _(tokens, lengths, ctx_lens, finished, emitted, *args, **kwargs):
    return tokens.new_empty(emitted.shape[0], dtype=torch.int64)


@torch.library.register_fake("dflash::commit.out")
def _(*args, **kwargs):
    return None


class Block(NamedTuple):
    """A drafter's input for B requests; int64."""

    ids: Tensor
    """``[B, max_block]`` the anchor, then ``mask_id``, also where there is no row."""
    positions: Tensor
    """``[B, max_block]`` sequence index of each row; -1: no row."""
    slots: Tensor
    """``[B, max_block]`` where the row's keys go; -1: no row."""
    draft_rows: Tensor
    """``[B, max_drafts]`` rows, of the ``B * max_block``, that draft a token; then -1."""
    num_drafts: Tensor
    """``[B]``"""


def prepare_block(
    tokens: Tensor,
    ctx_lens: Tensor,
    block_table: Tensor,
    *,
    req_rows: Tensor | None = None,
    table_start: Tensor | None = None,
    block_lens: Tensor | None = None,
    max_block: int,
    mask_id: int,
    page_size: int,
    num_pages: int,
    sample_from_anchor: bool = False,
    null_page: int = -1,
    status: Tensor | None = None,
    out: Block | None = None,
) -> Block:
    """Build the block that a parallel drafter fills in: the anchor, then masks.

    The anchor is the token whose keys come next, ``tokens[r, ctx_lens[r]]``; row i of the block
    stands at sequence index ``ctx_lens[r] + i``. A DFlash row drafts the token at its own index, so
    the anchor's row drafts none; with ``sample_from_anchor`` (DSpark) every row drafts the token
    after it. Either way draft j is the token at ``ctx_lens[r] + 1 + j``.

    Args:
        tokens: ``[R, capacity]`` int, each request's prompt and output.
        ctx_lens: ``[R]`` int, keys in the cache.
        block_table: ``[R, max_pages]`` int, the drafter's pages.
        req_rows: ``[B]`` int, state row of request b; -1: padded. Default: the same numbers, B = R.
        table_start: ``[R]`` int, sequence index of the table row's first entry. Default: 0.
        block_lens: ``[B]`` int, rows of the block, anchor included; 0: none. Default: max_block.
        max_block: most rows of a block.
        mask_id: token of the rows after the anchor, and of padding: ids can always be embedded.
        page_size: rows of a page.
        num_pages: pages of the cache.
        sample_from_anchor: which rows draft.
        null_page: a table entry that holds nothing.
        status: ``[B]`` int32, :class:`Status` bits are OR-ed in. OUT_OF_RANGE: a state row or
            length that does not exist: no block; or a row without a page: the block ends before
            it. BAD_DRAFT_ID: the anchor is negative: no block. BOUND_TOO_SMALL: ``max_block`` cut
            the block.
        out: int tensors to write into.

    int is int32 or int64. Every tensor may have any strides.

    Returns:
        A :class:`Block`; ``out`` if given. ``max_drafts`` is ``max_block - 1``, or ``max_block``
        with ``sample_from_anchor``.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape, device or bound is not as above.

    Reference: :func:`dflash_ops.reference.prepare_block`. Exact: results are equal, not close.
    """
    checks = Checks("prepare_block", tokens)
    checks.index("tokens", tokens, "[R, capacity]", -1, -1)
    state_rows = len(tokens)
    checks.index("ctx_lens", ctx_lens, "[R]", state_rows)
    checks.index("block_table", block_table, "[R, max_pages]", state_rows, -1)
    checks.index("table_start", table_start, "[R]", state_rows)
    checks.index("req_rows", req_rows, "[B]", -1)
    batch = state_rows if req_rows is None else len(req_rows)
    checks.index("block_lens", block_lens, "[B]", batch)
    checks.at_least("max_block", max_block, 1)
    checks.at_least("mask_id", mask_id, 0)
    checks.at_least("page_size", page_size, 1)
    checks.at_least("num_pages", num_pages, 0)
    checks.tensor("status", status, (torch.int32,), "[B]", batch)

    args = (tokens, ctx_lens, block_table)
    options = {
        "req_rows": req_rows,
        "table_start": table_start,
        "block_lens": block_lens,
        "max_block": max_block,
        "mask_id": mask_id,
        "page_size": page_size,
        "num_pages": num_pages,
        "sample_from_anchor": sample_from_anchor,
        "null_page": null_page,
        "status": status,
    }
    if out is None:
        return Block(*torch.ops.dflash.prepare_block(*args, **options))
    for name in ("ids", "positions", "slots"):
        checks.index(name, getattr(out, name), "[B, max_block]", batch, max_block)
    max_drafts = max_block - (0 if sample_from_anchor else 1)
    checks.index("draft_rows", out.draft_rows, "[B, max_drafts]", batch, max_drafts)
    checks.index("num_drafts", out.num_drafts, "[B]", batch)
    torch.ops.dflash.prepare_block.out(*args, **options, **out._asdict())
    return out


@torch.library.register_fake("dflash::prepare_block")
def _(tokens, ctx_lens, block_table, *, req_rows=None, max_block, sample_from_anchor=False, **_):
    batch = (tokens if req_rows is None else req_rows).shape[0]
    rows = batch, max_block
    drafts = batch, max_block - (0 if sample_from_anchor else 1)
    shapes = rows, rows, rows, drafts, (batch,)
    return tuple(tokens.new_empty(shape, dtype=torch.int64) for shape in shapes)


@torch.library.register_fake("dflash::prepare_block.out")
def _(*args, **kwargs):
    return None
