"""Sampling in float64: the law of a row, and its draw by Gumbel noise."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dflash_ops import Status
from dflash_ops.reference import noise
from dflash_ops.sample import Sampled, SampledCandidates

INF = float("inf")


class Row(NamedTuple):
    """One row's law."""

    order: Tensor
    """Ids with a finite logit, in the order (logit descending, id ascending)."""
    num_kept: int
    """How many of them the filter keeps."""
    slack: float
    """Distance of the filter's decisions from their limits: rounding below it changes none."""


def shape_logits(logits: Tensor, **options: Any) -> Tensor:
    """Shaped logits [Tv, vocab_start + V] by id, float64: -inf for what never wins."""
    wanted = options.get("verify_rows")
    wanted = torch.arange(len(logits)) if wanted is None else wanted.long()
    z = logits.double()[wanted.clamp(0, max(len(logits) - 1, 0))]
    z = z * options.get("logit_scale", 1.0)
    if cap := options.get("softcap", 0.0):
        z = cap * (z / cap).tanh()
    start = options.get("vocab_start", 0)
    size = options.get("vocab_size")
    size = start + logits.shape[1] if size is None else size
    z = torch.cat([torch.full((len(z), start), -INF, dtype=z.dtype), z], dim=1)
    if (cu := options.get("adj_cu")) is not None:
        ids, values = options["adj_ids"], options["adj_values"]
        for i in range(len(z)):
            for j in range(int(cu[i]), int(cu[i + 1])):
                if start <= int(ids[j]) < z.shape[1]:
                    z[i, int(ids[j])] += values[j].double()
    z = z.nan_to_num(-INF, torch.finfo(torch.float32).max, -INF)
    if (mask := options.get("token_mask")) is not None:
        rows = options.get("mask_rows")
        rows = torch.arange(len(z)) if rows is None else rows.long()
        bits = (mask[rows.clamp(0), :, None] >> torch.arange(32)) & 1
        allowed = bits.flatten(1).bool()
        allowed = torch.nn.functional.pad(allowed, (0, max(z.shape[1] - allowed.shape[1], 0)))
        z = z.masked_fill((rows >= 0)[:, None] & ~allowed[:, : z.shape[1]], -INF)
    z[:, size:] = -INF
    return z


def row_law(
    z: Tensor,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    order: str = "k_then_p",
    vocab_size: int | None = None,
) -> Row:
    """The law of one row of shaped logits by id."""
    value = z.tolist()
    ids = sorted((i for i, x in enumerate(value) if x > -INF), key=lambda i: (-value[i], i))
    p = (z[ids] / temperature).softmax(dim=0).tolist() if ids else []
    top_k = top_k if 0 < top_k < (len(z) if vocab_size is None else vocab_size) else len(ids)
    total = sum(p[:top_k]) if order == "k_then_p" else 1.0
    kept, mass, slack = 0, 0.0, INF
    for i, x in enumerate(p[:top_k]):
        if i > 0:
            gaps = [top_p - mass / total] if top_p < 1 else []
            gaps += [x / p[0] - min_p] if min_p > 0 else []
            slack = min([slack, *map(abs, gaps)])
            if any(gap < 0 for gap in gaps) or (top_p < 1 and gaps[0] == 0):
                break
        kept, mass = kept + 1, mass + x
    return Row(torch.tensor(ids, dtype=torch.int64), kept, slack)


def scores(z: Tensor, temperature: float, seed: int, position: int) -> Tensor:
    """What the token is the argmax of, by id."""
    return z / temperature + noise.gumbel(seed, torch.arange(len(z)), position + 1)


def request_states(cu_verify: Tensor, req_rows: Tensor | None, num_rows: int) -> list[int]:
    """The state row of each row; -1: padded."""
    states = [-1] * num_rows
    cu = cu_verify.tolist()
    for b in reversed(range(len(cu) - 1)):
        if 0 <= cu[b] <= cu[b + 1] <= num_rows:
            state = b if req_rows is None else int(req_rows[b])
            states[cu[b] : cu[b + 1]] = [state] * (cu[b + 1] - cu[b])
    return states


def state_law(options: dict[str, Any], state: int) -> dict[str, Any]:
    """The arguments of :func:`row_law` in a state row; temperature 0 for a greedy one."""
    law: dict[str, Any] = {"temperature": 0.0, "order": options.get("order", "k_then_p")}
    for name in ("temperature", "top_k", "top_p", "min_p"):
        if (values := options.get(name)) is not None:
            law[name] = values[state].item()
    if not law["temperature"] >= 1e-5:
        law["temperature"] = 0.0
    return law


def sample_logits(
    logits: Tensor,
    *,
    positions: Tensor,
    cu_verify: Tensor,
    status: Tensor | None = None,
    **options: Any,
) -> Sampled:
    z = shape_logits(logits, **options)
    wanted = options.get("verify_rows")
    wanted = torch.arange(len(logits)) if wanted is None else wanted
    out = Sampled(torch.full((len(z),), -1), torch.zeros(len(z), dtype=torch.float64))
    states = request_states(cu_verify, options.get("req_rows"), len(z))
    start = options.get("vocab_start", 0)
    for i, state in enumerate(states):
        if state < 0 or not 0 <= int(wanted[i]) < len(logits):
            continue
        law = state_law(options, state)
        allowed = z[i] > -INF
        if not allowed.any():
            if status is not None:
                status[i] |= Status.NO_FINITE_LOGIT
            out.ids[i], out.logprobs[i] = start, -INF
            continue
        if law["temperature"] == 0:
            token = int(z[i].argmax())
        else:
            size = options.get("vocab_size")
            row = row_law(z[i], **law, vocab_size=size)
            kept = row.order[: row.num_kept]
            seed = int(options["seeds"][state])
            by_id = scores(z[i], law["temperature"], seed, int(positions[i]))
            token = int(kept[by_id[kept].argmax()])
        out.ids[i] = token
        out.logprobs[i] = z[i, token] - z[i].logsumexp(dim=0)
    return out


def sample_candidates(
    values: Tensor,
    cand_ids: Tensor,
    lse: Tensor,
    *,
    positions: Tensor,
    cu_verify: Tensor,
    vocab_size: int | None = None,
    status: Tensor | None = None,
    **options: Any,
) -> SampledCandidates:
    rows, count = values.shape
    out = SampledCandidates(
        torch.full((rows,), -1), torch.zeros(rows, dtype=torch.float64), torch.zeros(rows).bool()
    )
    for i, state in enumerate(request_states(cu_verify, options.get("req_rows"), rows)):
        ids = [*cand_ids[i].tolist(), -1]
        ids = ids[: ids.index(-1)]
        if state < 0 or not ids:
            continue
        law = state_law(options, state)
        z = values[i, : len(ids)].double()
        kept = 1
        if law["temperature"] > 0:
            kept = _provably_kept(z, float(lse[i]), law, len(ids) < count)
            if kept == 0:
                continue
            noisy = z / law["temperature"] + noise.gumbel(
                int(options["seeds"][state]),
                torch.tensor(ids),
                int(positions[i]) + 1,
            )
            best = int(noisy[:kept].argmax())
        else:
            best = 0
        out.ids[i], out.covered[i] = ids[best], True
        out.logprobs[i] = z[best] - lse[i]
    return out


def _provably_kept(z: Tensor, lse: float, law: dict[str, Any], complete: bool) -> int:
    """How many candidates the filter keeps, whatever the rest of the law is; 0: it may matter."""
    p = (z / law["temperature"]).softmax(dim=0)
    top_k, top_p, min_p = law.get("top_k", 0), law.get("top_p", 1.0), law.get("min_p", 0.0)
    total = 1.0
    if top_p < 1 and (top_k <= 0 or law["order"] == "joint"):
        if law["temperature"] != 1:
            return 0  # lse is that of temperature 1
        total = math.exp(lse - z.logsumexp(dim=0))
    elif top_p < 1:
        if top_k > len(z) and not complete:
            return 0
        total = float(p[:top_k].sum())

    def is_past(i: int) -> bool:
        return i == top_k or (top_p < 1 and bool(p[:i].sum() >= top_p * total))

    for i in range(1, len(z)):
        if is_past(i) or p[i] < min_p * p[0]:
            return i
    return len(z) if complete or is_past(len(z)) else 0
