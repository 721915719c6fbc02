"""Rejection verification of trees in float64: the papers' recursions, with laws normalised at every
step."""

from typing import Any

import torch
from torch import Tensor

from dflash_ops import Status, Verified
from dflash_ops.reference import noise
from dflash_ops.reference.rejection import draft_probs, target_probs
from dflash_ops.reference.sample import shape_logits, state_law


class _Request:
    """One request; rows are local."""

    def __init__(self, call: dict[str, Any], z: Tensor, b: int, state: int) -> None:
        self.call = call
        self.first, last = (int(x) for x in call["cu_verify"][b : b + 2])
        rows = slice(self.first, last)
        self.z, self.tokens = z[rows], call["tokens"][rows].tolist()
        self.parents = call["parents"][rows].tolist()
        self.positions = call["positions"][rows].tolist()
        seeds, options = call.get("seeds"), call["options"]
        self.seed = 0 if seeds is None else int(seeds[state])
        law = state_law(options, state)
        self.p = [target_probs(row, law, options.get("vocab_size")) for row in self.z]
        kind = call["draft_kind"]
        self.is_sampled = call["q"] is not None and (kind is None or bool(kind[b]))
        self.status = 0
        for i, parent in enumerate(self.parents):
            if not (parent == -1 if i == 0 else 0 <= parent < i):
                self.status |= Status.BAD_TREE
                self.parents = self.parents[: max(i, 1)]
                break
        size = len(self.parents)
        self.children: list[list[int]] = [[] for _ in range(size)]
        for i in range(1, size):
            if 0 <= self.tokens[i] < self.z.shape[1]:
                self.children[self.parents[i]].append(i)
            else:
                self.status |= Status.BAD_DRAFT_ID
        self.accept = torch.zeros(len(self.tokens), dtype=torch.float64)
        self.coins = torch.zeros_like(self.accept)
        self.weights = torch.zeros_like(self.z)

    def q(self, i: int) -> Tensor | None:
        """The law of the children of row i; None: it is bad."""
        law, ids = self.call["q"], self.call["q_ids"]
        row = self.first + i
        good = None
        if self.is_sampled:
            ids = None if ids is None else ids[row]
            good = draft_probs(law[row], ids, -1, self.z.shape[1], self.call["draft_to_target"])
        if good is None and self.children[i]:
            self.status |= Status.BAD_Q
        return good

    def without(self, q: Tensor, token: int) -> Tensor | None:
        """The law of the next sibling; None: every token is drawn."""
        if self.call["replacement"]:
            return q
        q = q.clone()
        q[token] = 0
        return q / q.sum() if q.sum() > 0 else None

    def coin(self, i: int) -> float:
        parent, anchor = self.parents[i], self.positions[0]
        u = noise.coin(self.seed, i, self.positions[parent] + 1, anchor, parent)
        self.coins[i] = u
        return u

    def draw(self, i: int) -> int:
        ids = torch.arange(self.z.shape[1])
        purpose = noise.purpose(noise.RESIDUAL, 0, i)
        g = noise.gumbel(self.seed, ids, self.positions[i] + 1, purpose, self.positions[0])
        return int((self.weights[i].log() + g).argmax())

    def rrs(self) -> int:
        """The last row of the path."""
        follows: dict[int, int] = {}
        for i, children in enumerate(self.children):
            p, q = self.p[i], self.q(i)
            for child in children if q is not None else []:
                if q is None:
                    self.status |= Status.BAD_Q
                    break
                d = self.tokens[child]
                self.accept[child] = float((p[d] / q[d]).clamp(max=1)) if p[d] > 0 else 0.0
                if self.coin(child) * q[d] < p[d]:
                    follows.setdefault(i, child)
                p = _residual(1.0, p, q)
                q = self.without(q, d)
            self.weights[i] = p
        at = 0
        while at in follows:
            at = follows[at]
        return at

    def traversal(self) -> int:
        kept: list[int] = []

        def visit(i: int, scale: float) -> None:
            p, q = self.p[i], self.q(i)
            for child in self.children[i] if q is not None else []:
                if q is None:
                    self.status |= Status.BAD_Q
                    break
                d = self.tokens[child]
                ratio = scale * float(p[d]) / float(q[d]) if q[d] > 0 else float(p[d] > 0)
                visit(child, min(ratio, 1.0))
                mass = float((scale * p - q).clamp(min=0).sum())
                p = _residual(scale, p, q)
                scale = 1.0 if scale == 1 else mass / (mass + 1 - scale)
                q = self.without(q, d)
            self.weights[i] = p
            if i > 0:
                self.accept[i] = scale
            if i == 0 or self.coin(i) < scale:
                kept.append(i)

        visit(0, 1.0)
        return kept[0]

    def target_only(self) -> int:
        self.weights[: len(self.children)] = torch.stack(self.p[: len(self.children)])
        at = 0
        while True:
            token = self.draw(at)
            equal = [child for child in self.children[at] if self.tokens[child] == token]
            if not equal:
                return at
            at = equal[0]

    def typical(self) -> int:
        self.weights[: len(self.children)] = torch.stack(self.p[: len(self.children)])
        eps, delta = self.call["typical_eps"], self.call["typical_delta"]
        depth = {0: 0}
        for i, children in enumerate(self.children):
            entropy = -torch.special.xlogy(self.p[i], self.p[i]).sum()
            least = min(eps, delta * float((-entropy).exp()))
            for child in children:
                self.accept[child] = float(self.p[i][self.tokens[child]] > least)
                if i in depth and self.accept[child]:
                    depth[child] = depth[i] + 1
        return min(depth, key=lambda i: (-depth[i], i))


def _residual(scale: float, p: Tensor, q: Tensor) -> Tensor:
    w = (scale * p - q).clamp(min=0)
    return w / w.sum() if w.sum() > 1e-12 else p


def verify_tree(
    tokens: Tensor,
    logits: Tensor,
    parents: Tensor,
    *,
    positions: Tensor,
    cu_verify: Tensor,
    q: Tensor | None = None,
    q_ids: Tensor | None = None,
    draft_to_target: Tensor | None = None,
    draft_kind: Tensor | None = None,
    rule: str = "rrs",
    replacement: bool = False,
    typical_eps: float = 0.3,
    typical_delta: float = 0.09,
    max_path: int,
    status: Tensor | None = None,
    **options: Any,
) -> Verified:
    """Rows that can be read only. `counters` are left empty."""
    z = shape_logits(logits, **options)
    rows, vocab = z.shape
    batch = len(cu_verify) - 1
    call = {**options, **locals()}
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
    req_rows, packed = options.get("req_rows"), options.get("verify_rows")
    for b in range(batch):
        first, last = int(cu_verify[b]), int(cu_verify[b + 1])
        state = b if req_rows is None else int(req_rows[b])
        if first == last or state < 0:
            continue
        request = _Request(call, z, b, state)
        end = getattr(request, rule)()
        path = [end]
        while path[0] > 0:
            path.insert(0, request.parents[path[0]])
        emitted = [*(request.tokens[i] for i in path[1:]), request.draw(end)]
        if len(path) > max_path + 1:
            request.status |= Status.BOUND_TOO_SMALL
        path = path[: max_path + 1]
        out.num_accepted[b], out.num_emitted[b] = len(path) - 1, len(path)
        for j, i in enumerate(path):
            out.emitted[b, j] = emitted[j]
            out.accepted_rows[b, j] = first + i if packed is None else packed[first + i]
            out.logprobs[b, j] = request.z[i, emitted[j]] - request.z[i].logsumexp(dim=0)
        out.accept_probs[first:last] = request.accept
        out.coins[first:last] = request.coins
        out.weights[first:last] = request.weights
        if status is not None:
            status[b] |= request.status
    return out
