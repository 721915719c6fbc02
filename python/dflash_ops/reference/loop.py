import torch
from torch import Tensor

from dflash_ops import Block, Status


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
) -> Tensor:
    batch, capacity = len(emitted), tokens.shape[1]
    status = torch.zeros(batch, dtype=torch.int32) if status is None else status
    num_kept = torch.zeros(batch, dtype=torch.int64)
    state_rows = list(range(batch)) if req_rows is None else req_rows.tolist()
    for b, r in enumerate(state_rows):
        if r == -1:
            continue
        first, last = cu_rows[b : b + 2].tolist()
        verify_first, verify_last = (first, last)
        if cu_verify is not None:
            verify_first, verify_last = cu_verify[b : b + 2].tolist()
        rows, verify = last - first, verify_last - verify_first
        ordered = 0 <= first <= last and 0 <= verify_first <= verify_last and verify <= rows
        if not 0 <= r < len(tokens) or not ordered or not 0 <= lengths[r] <= capacity:
            status[b] |= Status.OUT_OF_RANGE
            continue
        if finished[r]:
            continue
        ctx_lens[r] += rows - verify
        if verify == 0:
            continue
        if not 0 <= num_emitted[b] <= emitted.shape[1]:
            status[b] |= Status.OUT_OF_RANGE
            continue

        new = emitted[b, : num_emitted[b]].tolist()
        if any(token < 0 for token in new):
            bad = next(i for i, token in enumerate(new) if token < 0)
        else:
            bad = len(new)
        stops = set() if stop_ids is None else set(stop_ids[r].tolist())
        earliest = 0 if min_lens is None else int(min_lens[r]) - int(lengths[r]) - 1
        ends = [i + 1 for i in range(bad) if new[i] in stops and i >= earliest]
        room = capacity if max_lens is None else min(capacity, int(max_lens[r]))
        room = max(0, room - int(lengths[r]))
        stop = ends[0] if ends else len(new) + 1
        kept = new[: min(bad, stop, room)]
        if bad < len(new) and len(kept) == bad < room and stop > bad:
            status[b] |= Status.BAD_DRAFT_ID
        if len(kept) == stop or len(kept) == room:
            finished[r] = True
            full = max_lens is None or capacity < max_lens[r]
            if len(kept) != stop and full:
                status[b] |= Status.BOUND_TOO_SMALL
        tokens[r, lengths[r] : lengths[r] + len(kept)] = torch.tensor(kept, dtype=tokens.dtype)
        lengths[r] += len(kept)
        ctx_lens[r] += len(kept)
        num_kept[b] = len(kept)
    return num_kept


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
) -> Block:
    state_rows = list(range(len(tokens))) if req_rows is None else req_rows.tolist()
    batch = len(state_rows)
    status = torch.zeros(batch, dtype=torch.int32) if status is None else status
    out = Block(
        ids=torch.full((batch, max_block), mask_id),
        positions=torch.full((batch, max_block), -1),
        slots=torch.full((batch, max_block), -1),
        draft_rows=torch.full((batch, max_block - (not sample_from_anchor)), -1),
        num_drafts=torch.zeros(batch, dtype=torch.int64),
    )
    for b, r in enumerate(state_rows):
        size = max_block if block_lens is None else int(block_lens[b])
        if r == -1:
            continue
        if not 0 <= r < len(tokens):
            status[b] |= Status.OUT_OF_RANGE
            continue
        if size <= 0:
            continue
        if size > max_block:
            status[b] |= Status.BOUND_TOO_SMALL
        start = int(ctx_lens[r])
        if not 0 <= start < tokens.shape[1]:
            status[b] |= Status.OUT_OF_RANGE
            continue
        if tokens[r, start] < 0:
            status[b] |= Status.BAD_DRAFT_ID
            continue
        # Every sequence index that has a page, in order; the block ends at the first gap.
        table_first = 0 if table_start is None else int(table_start[r])
        slot_of = {
            table_first + entry * page_size + offset: page * page_size + offset
            for entry, page in enumerate(block_table[r].tolist())
            if 0 <= page < num_pages and page != null_page
            for offset in range(page_size)
        }
        for i in range(min(size, max_block)):
            if start + i not in slot_of:
                status[b] |= Status.OUT_OF_RANGE
                break
            if i == 0:
                out.ids[b, 0] = tokens[r, start]
            out.positions[b, i] = start + i
            out.slots[b, i] = slot_of[start + i]
        rows = (out.slots[b] >= 0).nonzero().flatten() + b * max_block
        rows = rows if sample_from_anchor else rows[1:]
        out.draft_rows[b, : len(rows)] = rows
        out.num_drafts[b] = len(rows)
    return out
