"""What a committed step leaves behind: pages that are free again, states that go on."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ._check import Checks


def release_pages(
    block_table: Tensor,
    free_pages: Tensor,
    num_free: Tensor,
    keep_lens: Tensor,
    *,
    ref_counts: Tensor | None = None,
    req_rows: Tensor | None = None,
    table_start: Tensor | None = None,
    page_size: int,
    num_pages: int,
    null_page: int = -1,
    status: Tensor | None = None,
) -> None:
    """Take back the pages behind each request's kept length.

    A page all of whose sequence indices are ``keep_lens[r]`` or more leaves the table: its entry
    becomes ``null_page``. If nobody else owns it, it goes to the end of the free list, in order of
    request and entry; else it has one owner less.

    Args:
        block_table: ``[R, max_pages]`` int. Written.
        free_pages: ``[capacity]`` int, the free list, its last entry on top. Written.
        num_free: ``[1]`` int, entries of the free list. Written.
        keep_lens: ``[R]`` int, sequence indices below this are needed: the context and what the
            next step may write. 0 releases all.
        ref_counts: ``[num_pages]`` int, owners of each page. Written. Default: one each.
        req_rows: ``[B]`` int, state row of request b; -1: padded. Default: the same numbers, B = R.
        table_start: ``[R]`` int, sequence index of the table row's first entry. Default: 0.
        page_size: rows of a page.
        num_pages: pages of the cache.
        null_page: a table entry that holds nothing.
        status: ``[B]`` int32, :class:`Status` bits are OR-ed in. OUT_OF_RANGE: a state row that
            does not exist, or a page that is free already. BOUND_TOO_SMALL: the free list is full;
            the page stays in the table.

    int is int32 or int64. Every tensor may have any strides. No two requests share a state row.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape, device or bound is not as above.

    Reference: :func:`dflash_ops.reference.release_pages`. Exact: results are equal, not close.
    """
    checks = Checks("release_pages", block_table)
    checks.index("block_table", block_table, "[R, max_pages]", -1, -1)
    state_rows = len(block_table)
    checks.index("free_pages", free_pages, "[capacity]", -1)
    checks.index("num_free", num_free, "[1]", 1)
    checks.index("keep_lens", keep_lens, "[R]", state_rows)
    checks.at_least("page_size", page_size, 1)
    checks.at_least("num_pages", num_pages, 0)
    checks.index("ref_counts", ref_counts, "[num_pages]", num_pages)
    checks.index("req_rows", req_rows, "[B]", -1)
    checks.index("table_start", table_start, "[R]", state_rows)
    batch = state_rows if req_rows is None else len(req_rows)
    checks.tensor("status", status, (torch.int32,), "[B]", batch)
    torch.ops.dflash.release_pages(
        block_table,
        free_pages,
        num_free,
        keep_lens,
        ref_counts=ref_counts,
        req_rows=req_rows,
        table_start=table_start,
        page_size=page_size,
        num_pages=num_pages,
        null_page=null_page,
        status=status,
    )


def commit_state(
    states: Sequence[Tensor],
    row_states: Sequence[Tensor],
    accepted_rows: Tensor,
    *,
    num_kept: Tensor | None = None,
    state_slots: Tensor | None = None,
    req_rows: Tensor | None = None,
    status: Tensor | None = None,
) -> None:
    """Make the recurrent state after each request's last kept row its state, in every layer.

    ``states[l][slot] = row_states[l][accepted_rows[b, num_kept[b] - 1]]``, as bytes.

    Args:
        states: one ``[num_slots, ...]`` per layer, any dtype; rows contiguous. Written.
        row_states: one ``[T, ...]`` per layer, the state after each packed row; rows contiguous.
        accepted_rows: ``[B, P]`` int, packed rows of the anchor and the accepted drafts, then -1.
        num_kept: ``[B]`` int, entries that count. Default: all that are not -1.
        state_slots: ``[R]`` int, slot of each state row. Default: the same numbers.
        req_rows: ``[B]`` int, state row of request b; -1: padded. Default: the same numbers.
        status: ``[B]`` int32, :class:`Status` bits are OR-ed in. OUT_OF_RANGE: a row, slot, state
            row or count that does not exist; the request's states stay as they are.

    int is int32 or int64, any strides. No two requests share a slot.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape, length, stride or device is not as above.

    Reference: :func:`dflash_ops.reference.commit_state`. Exact: bytes are moved.
    """
    checks = Checks("commit_state", accepted_rows)
    checks.index("accepted_rows", accepted_rows, "[B, P]", -1, -1)
    batch = len(accepted_rows)
    checks.index("num_kept", num_kept, "[B]", batch)
    checks.index("state_slots", state_slots, "[R]", -1)
    checks.at_least("len(states)", len(states), 1)
    if len(row_states) != len(states):
        raise ValueError(
            f"commit_state: len(row_states) must be {len(states)}, got {len(row_states)}"
        )
    slots, rows = (x.shape[0] if x.dim() > 0 else 0 for x in (states[0], row_states[0]))
    for i, (state, row_state) in enumerate(zip(states, row_states, strict=True)):
        name, row_name = f"states[{i}]", f"row_states[{i}]"
        checks.tensor(row_name, row_state, (state.dtype,), "[T, ...]", *row_state.shape)
        for label, tensor in ((name, state), (row_name, row_state)):
            if tensor.dim() == 0:
                raise ValueError(f"commit_state: {label} must have a first dimension, got shape []")
            if len(tensor) and not tensor[0].is_contiguous():
                strides = list(tensor.stride())
                raise ValueError(
                    f"commit_state: {label} must have contiguous rows, got strides {strides}"
                )
        wanted, got = list(state.shape[1:]), list(row_state.shape[1:])
        if wanted != got:
            raise ValueError(
                f"commit_state: {row_name} must have rows of shape {wanted}, got {got}"
            )
        checks.any_tensor(name, state, "[num_slots, ...]", *state.shape)
        for label, tensor, count in ((name, state, slots), (row_name, row_state, rows)):
            if len(tensor) != count:
                raise ValueError(f"commit_state: {label} must have {count} rows, got {len(tensor)}")
    checks.index("req_rows", req_rows, "[B]", batch)
    checks.tensor("status", status, (torch.int32,), "[B]", batch)
    torch.ops.dflash.commit_state(
        states,
        row_states,
        accepted_rows,
        num_kept=num_kept,
        state_slots=state_slots,
        req_rows=req_rows,
        status=status,
    )


@torch.library.register_fake("dflash::release_pages")
def _(*args, **kwargs):
    return None


@torch.library.register_fake("dflash::commit_state")
def _(*args, **kwargs):
    return None
