from itertools import pairwise

import torch
from torch import Tensor

from dflash_ops import Selected, Status

from . import noise


def block_conv(
    x: Tensor,
    delta: Tensor,
    base: Tensor,
    *,
    cu_rows: Tensor | None = None,
    block_size: int | None = None,
    residual: Tensor | None = None,
    status: Tensor | None = None,
) -> Tensor:
    """In float64: every block is padded with zero rows in front and shifted."""
    rows, channels = x.shape
    taps, groups = delta.shape[1:]
    if cu_rows is None:
        assert block_size is not None
        cu_rows = torch.tensor([*range(0, rows, block_size), rows])
    weight = base.double() + delta.double().repeat_interleave(channels // max(groups, 1), dim=2)
    out = torch.zeros(rows, channels, dtype=torch.float64)
    for b, (begin, end) in enumerate(pairwise(cu_rows.tolist())):
        if not 0 <= begin <= end <= rows:
            if status is not None:
                status[b] |= Status.OUT_OF_RANGE
            continue
        block = torch.nn.functional.pad(x[begin:end].double(), (0, 0, taps, 0))
        for tap in range(taps):
            out[begin:end] += weight[begin:end, tap] * block[taps - tap :][: end - begin]
        if residual is not None:
            out[begin:end] += residual[begin:end].double()
    return out


def edge_scores(
    values: Tensor, cand_ids: Tensor, hidden: Tensor, predecessor: Tensor, successor: Tensor
) -> Tensor:
    """Scores of one slot, [V, K]: from each predecessor to each candidate."""
    scaled = predecessor.double() * hidden.double()
    return values.double() + scaled @ successor[cand_ids.clamp(0, len(successor) - 1)].double().T


def select_path(
    values: Tensor,
    cand_ids: Tensor,
    hidden: Tensor,
    anchors: Tensor,
    predecessor: Tensor,
    successor: Tensor,
    *,
    ctx_lens: Tensor | None = None,
    req_rows: Tensor | None = None,
    num_drafts: Tensor | None = None,
    temperature: Tensor | None = None,
    seeds: Tensor | None = None,
    coupled: bool = False,
    status: Tensor | None = None,
) -> Selected:
    """In float64; q too."""
    batch, slots, candidates = values.shape
    vocab = len(predecessor)
    status = torch.zeros(batch, dtype=torch.int32) if status is None else status
    state_rows = list(range(batch)) if req_rows is None else req_rows.tolist()
    limit = 2**62 if temperature is None else len(temperature)
    tokens = torch.full((batch, slots), -1)
    q = torch.zeros(batch, slots, candidates, dtype=torch.float64)
    for b, r in enumerate(state_rows):
        if r == -1:
            continue
        if not 0 <= r < limit:
            status[b] |= Status.OUT_OF_RANGE
            continue
        count = slots if num_drafts is None else int(num_drafts[b])
        if count > slots:
            status[b] |= Status.BOUND_TOO_SMALL
        t = 0.0 if temperature is None else float(temperature[r])
        token = int(anchors[b])
        for slot in range(min(count, slots)):
            ids = cand_ids[b, slot]
            if not 0 <= token < vocab:
                status[b] |= Status.BAD_DRAFT_ID
                score = values[b, slot].double()
            else:
                score = edge_scores(values[b, slot], ids, hidden[b, slot], predecessor, successor)[
                    token
                ]
            if (ids >= vocab).any():
                status[b] |= Status.BAD_DRAFT_ID
            present = (ids >= 0) & (ids < vocab)
            if not present.any():
                break
            score = score.nan_to_num(nan=-torch.inf, posinf=3.4e38, neginf=-torch.inf)
            score = score.where(present, -torch.inf)
            rank, law = score, None
            if score.max() == -torch.inf:
                status[b] |= Status.NO_FINITE_LOGIT
            elif t >= 1e-5:
                assert ctx_lens is not None and seeds is not None
                anchor_idx = int(ctx_lens[r])
                purpose = noise.purpose(noise.DRAFT, 0, slot)
                key = (noise.TARGET, 0) if coupled else (purpose, anchor_idx)
                seed = int(seeds[r])
                rank = score / t + noise.gumbel(seed, ids.long(), anchor_idx + 1 + slot, *key)
                law = (score / t).softmax(0)
            best = rank.where(present, -torch.inf)
            tied = present & (best == best.max())
            token = int(ids[tied].min())
            tokens[b, slot] = token
            first = int((tied & (ids == token)).nonzero()[0])
            q[b, slot] = torch.eye(candidates)[first] if law is None else law
    return Selected(tokens, q)
