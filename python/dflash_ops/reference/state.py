from collections.abc import Sequence

import torch
from torch import Tensor

from dflash_ops import Status


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
    rows = list(range(len(block_table))) if req_rows is None else req_rows.tolist()
    status = torch.zeros(len(rows), dtype=torch.int32) if status is None else status
    for b, r in enumerate(rows):
        if not -1 <= r < len(block_table):
            status[b] |= Status.OUT_OF_RANGE
        if not 0 <= r < len(block_table):
            continue
        start = 0 if table_start is None else int(table_start[r])
        for entry, page in enumerate(block_table[r].tolist()):
            first_index = start + entry * page_size
            if first_index < keep_lens[r] or not 0 <= page < num_pages or page == null_page:
                continue
            owners = 1 if ref_counts is None else int(ref_counts[page])
            top = int(num_free)
            if owners == 1 and not 0 <= top < len(free_pages):
                status[b] |= Status.BOUND_TOO_SMALL
                continue
            block_table[r, entry] = null_page
            if owners < 1:
                status[b] |= Status.OUT_OF_RANGE
                continue
            if owners == 1:
                free_pages[top] = page
                num_free += 1
            if ref_counts is not None:
                ref_counts[page] -= 1


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
    batch, slots = len(accepted_rows), len(states[0])
    status = torch.zeros(batch, dtype=torch.int32) if status is None else status
    slot_of = list(range(slots)) if state_slots is None else state_slots.tolist()
    state_rows = list(range(batch)) if req_rows is None else req_rows.tolist()
    for b, r in enumerate(state_rows):
        if r == -1:
            continue
        path = accepted_rows[b].tolist()
        kept = [row for row in path if row >= 0] if num_kept is None else path
        count = len(kept) if num_kept is None else int(num_kept[b])
        if 0 <= r < len(slot_of) and count == 0:
            continue
        row = kept[count - 1] if 0 < count <= len(kept) else -1
        good = 0 <= r < len(slot_of) and 0 <= slot_of[r] < slots and 0 <= row < len(row_states[0])
        if not good:
            status[b] |= Status.OUT_OF_RANGE
            continue
        for state, row_state in zip(states, row_states, strict=True):
            state[slot_of[r]] = row_state[row]
