import torch
from torch import Tensor

from dflash_ops import Status


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
