"""Rejection verification of chains in float64, from the papers' definitions."""

from typing import Any

import torch
from torch import Tensor

from dflash_ops import Status, Verified
from dflash_ops.reference import noise
from dflash_ops.reference.sample import row_law, shape_logits, state_law

INF = float("inf")


def target_probs(z: Tensor, law: dict[str, Any], vocab_size: int | None = None) -> Tensor:
    """The target's law after one row, by id; one-hot if greedy or without a finite logit."""
    p = torch.zeros_like(z)
    if not (z > -INF).any():
        p[0] = 1.0
    elif law["temperature"] == 0:
        p[int(z.argmax())] = 1.0
    else:
        row = row_law(z, **law, vocab_size=vocab_size)
        kept = row.order[: row.num_kept]
        p[kept] = (z[kept] / law["temperature"]).softmax(dim=0)
    return p


def draft_probs(
    q: Tensor | None,
    q_ids: Tensor | None,
    token: int,
    vocab: int,
    draft_to_target: Tensor | None = None,
) -> Tensor | None:
    """The drafter's law after one row, by the target's id; None: it is bad."""
    dense = torch.zeros(vocab, dtype=torch.float64)
    if q is None:
        dense[token] = 1.0
        return dense
    to_target = torch.arange(vocab) if draft_to_target is None else draft_to_target.long()
    there = q != 0 if q_ids is None else q_ids != -1
    draft_ids = torch.arange(len(q)) if q_ids is None else q_ids
    draft_ids, q = draft_ids[there].long(), q[there]
    if ((draft_ids < 0) | (draft_ids >= len(to_target))).any():
        return None
    ids = to_target[draft_ids]
    if ((ids < 0) | (ids >= vocab)).any():
        return None
    dense.index_add_(0, ids, q.double())
    if not (q >= 0).all() or not 0 < float(dense.sum()) < INF:
        return None
    return dense / dense.sum()


def verify_chain(
    tokens: Tensor,
    logits: Tensor,
    *,
    positions: Tensor,
    cu_verify: Tensor,
    q: Tensor | None = None,
    q_ids: Tensor | None = None,
    draft_to_target: Tensor | None = None,
    draft_kind: Tensor | None = None,
    rule: str = "token",
    max_path: int,
    status: Tensor | None = None,
    **options: Any,
) -> Verified:
    """Well-formed rows only. `counters` are left empty."""
    z = shape_logits(logits, **options)
    rows, vocab = z.shape
    batch = len(cu_verify) - 1
    status = torch.zeros(batch, dtype=torch.int32) if status is None else status
    float64 = torch.float64
    out = Verified(
        torch.full((batch, max_path + 1), -1),
        torch.zeros(batch, dtype=torch.int64),
        torch.zeros(batch, dtype=torch.int64),
        torch.full((batch, max_path + 1), -1),
        torch.zeros(batch, max_path + 1, dtype=float64),
        torch.zeros(rows, dtype=float64),
        torch.zeros(rows, dtype=float64),
        torch.zeros(0, dtype=torch.int64),
        torch.zeros(rows, vocab, dtype=float64),
    )
    req_rows = options.get("req_rows")
    for b in range(batch):
        first, last = int(cu_verify[b]), int(cu_verify[b + 1])
        state = b if req_rows is None else int(req_rows[b])
        if first == last or state < 0:
            continue
        law = state_law(options, state)
        seeds = options.get("seeds")
        seed = 0 if seeds is None else int(seeds[state])
        anchor = int(positions[first])
        p = [target_probs(z[r], law, options.get("vocab_size")) for r in range(first, last)]
        sampled = q is not None and (draft_kind is None or bool(draft_kind[b]))
        qs: list[Tensor] = []
        for row in range(first, last - 1):
            token = int(tokens[row + 1])
            if not 0 <= token < vocab:
                status[b] |= Status.BAD_DRAFT_ID
                break
            ids = q_ids[row] if q_ids is not None and sampled else None
            law_of_draft = draft_probs(
                q[row] if sampled else None,  # type: ignore[index]
                ids,
                token,
                vocab,
                draft_to_target,
            )
            if law_of_draft is None:
                status[b] |= Status.BAD_Q
                break
            qs.append(law_of_draft)
        drafts = tokens[first + 1 : first + 1 + len(qs)].tolist()

        def coin(i: int, seed: int = seed, first: int = first, anchor: int = anchor) -> float:
            return noise.coin(seed, i, int(positions[first + i - 1]) + 1, anchor, i - 1)

        scale, scales, accepted, rejected = 1.0, [1.0], 0, False
        for i, token in enumerate(drafts, start=1):
            p_draft, q_draft = float(p[i - 1][token]), float(qs[i - 1][token])
            u = out.coins[first + i] = coin(i)
            if rule == "token":
                ratio = (
                    1.0 if p_draft > 0 and q_draft <= p_draft else p_draft / max(q_draft, 1e-300)
                )
                out.accept_probs[first + i] = ratio
                rejected = rejected or not u * q_draft < p_draft
                accepted = accepted if rejected else i
            else:
                grown = scale * p_draft
                scale = 1.0 if grown >= q_draft and p_draft > 0 else grown / max(q_draft, 1e-300)
                h = scale
                if i < len(drafts):
                    mass = float((scale * p[i] - qs[i]).clamp(min=0).sum())
                    h = mass / max(mass + 1 - scale, 1e-300)
                out.accept_probs[first + i] = h
                accepted = i if u < h else accepted
            scales.append(scale)
        for i in range(len(drafts) + 1):
            w = p[i]
            if i < len(drafts):
                w = (scales[i] * p[i] - qs[i]).clamp(min=0)
                w = w if w.sum() > 1e-12 else p[i]
            out.weights[first + i] = w

        path = [0, *range(1, accepted + 1)][: max_path + 1]
        if accepted > max_path:
            status[b] |= Status.BOUND_TOO_SMALL
            last_token = drafts[max_path]
        else:
            g = noise.gumbel(
                seed,
                torch.arange(vocab),
                int(positions[first + accepted]) + 1,
                noise.purpose(noise.RESIDUAL, 0, accepted),
                anchor,
            )
            last_token = int((out.weights[first + accepted].log() + g).argmax())
        emitted = [*drafts[: len(path) - 1], last_token]
        out.emitted[b, : len(path)] = torch.tensor(emitted)
        out.num_accepted[b], out.num_emitted[b] = len(path) - 1, len(path)
        packed = options.get("verify_rows")
        for j, i in enumerate(path):
            out.accepted_rows[b, j] = first + i if packed is None else packed[first + i]
            out.logprobs[b, j] = z[first + i, emitted[j]] - z[first + i].logsumexp(dim=0)
    return out
