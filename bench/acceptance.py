"""Accepted drafts per cycle of every rule on the same inputs: a table, and docs/verification.svg.

python bench/acceptance.py [--requests N] [--svg FILE]

A target whose law depends on the class of the last token, and drafters that know it more or less
well: their logits are the target's plus noise. Every rule gets eight drafts a cycle: a chain, a
sampled tree, or the best-first tree of build_tree. Counts come from the ops with real seeds.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

from dflash_ops import (
    accept_match,
    build_tree,
    sample_logits,
    select_path,
    verify_chain,
    verify_tree,
)

VOCAB, CLASSES, CANDIDATES, DRAFTS = 64, 16, 32, 8
# Three children of the anchor, two and one below the first two of them, one path of four.
TREE = [-1, 0, 0, 0, 1, 1, 2, 4, 7]
NOISE = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0]
RULES = {
    "chain": [
        ("match, argmax drafts", "#888888"),
        ("match, sampled drafts", "#bcbd22"),
        ("match, coupled drafts", "#2ca02c"),
        ("token", "#1f77b4"),
        ("block", "#d62728"),
    ],
    "tree": [
        ("match, best-first tree", "#888888"),
        ("target_only, sampled tree", "#bcbd22"),
        ("rrs, with replacement", "#17becf"),
        ("rrs", "#1f77b4"),
        ("traversal, with replacement", "#ff7f0e"),
        ("traversal", "#d62728"),
        ("typical, best-first tree (lossy)", "#9467bd"),
    ],
}


class Inputs:
    """A target, a drafter, and one cycle of n requests."""

    def __init__(self, noise: float, n: int) -> None:
        g = torch.Generator().manual_seed(0)
        self.n = n
        self.logits = torch.randn(CLASSES, VOCAB, generator=g) * 3
        self.ids = self.logits.exp().sum(dim=0).topk(CANDIDATES).indices.sort().values
        draft = self.logits + torch.randn(CLASSES, VOCAB, generator=g) * noise
        self.draft = draft[:, self.ids]
        self.anchors = torch.randint(VOCAB, (n,), generator=g)
        self.state = {"temperature": torch.ones(n), "seeds": torch.arange(n)}

    def distance(self) -> float:
        """Mean total variation between the two laws."""
        q = torch.zeros(CLASSES, VOCAB)
        q[:, self.ids] = self.draft.softmax(dim=1)
        return float((self.logits.softmax(dim=1) - q).abs().sum(dim=1).mean()) / 2

    def chain(self, coupled: bool = False, greedy: bool = False) -> tuple[Tensor, Tensor]:
        """Tokens [n, 1 + DRAFTS] and q [n, 1 + DRAFTS, K]."""
        successor = torch.zeros(VOCAB, CLASSES)
        successor[self.ids] = self.draft.T
        got = select_path(
            torch.zeros(self.n, DRAFTS, CANDIDATES),
            self.ids.expand(self.n, DRAFTS, -1),
            torch.ones(self.n, DRAFTS, CLASSES),
            self.anchors,
            torch.eye(CLASSES)[torch.arange(VOCAB) % CLASSES],
            successor,
            coupled=coupled,
            **({} if greedy else {"ctx_lens": torch.zeros(self.n).long(), **self.state}),
        )
        tokens = torch.cat([self.anchors[:, None], got.tokens], dim=1)
        return tokens, torch.cat([got.q, got.q[:, :1]], dim=1)

    def sampled_tree(self, replacement: bool) -> tuple[Tensor, Tensor]:
        g = torch.Generator().manual_seed(1)
        tokens = self.anchors[:, None].repeat(1, len(TREE))
        q = torch.zeros(self.n, len(TREE), CANDIDATES)
        for i in range(len(TREE)):
            q[:, i] = self.draft.softmax(dim=1)[tokens[:, i] % CLASSES]
            children = [j for j, parent in enumerate(TREE) if parent == i]
            if children:
                drawn = torch.multinomial(q[:, i], len(children), replacement, generator=g)
                tokens[:, children] = self.ids[drawn]
        return tokens, q

    def best_first_tree(self) -> tuple[Tensor, Tensor]:
        """Tokens and parents of the DRAFTS likeliest nodes."""
        law = self.draft.log_softmax(dim=1)
        edges = law[self.ids % CLASSES].expand(self.n, DRAFTS, -1, -1).clone()
        edges[:, 0] = law[self.anchors % CLASSES][:, None]
        ids = self.ids.expand(self.n, DRAFTS, -1)
        tree = build_tree(self.anchors, ids, edges, max_nodes=DRAFTS + 1)
        return tree.tokens.view(self.n, -1), tree.parents.view(self.n, -1)

    def accepted(self, rule: str) -> Tensor:
        """[n] accepted drafts."""
        name, _, kind = rule.partition(", ")
        parents = torch.tensor(TREE).expand(self.n, -1)
        if name in ("token", "block") or kind.endswith(" drafts"):
            tokens, q = self.chain(kind.startswith("coupled"), kind.startswith("argmax"))
            parents = (torch.arange(DRAFTS + 1) - 1).expand(self.n, -1)
        elif kind.startswith("best-first"):
            (tokens, parents), q = self.best_first_tree(), None
        else:
            tokens, q = self.sampled_tree(kind == "with replacement")
        depth = torch.zeros_like(parents)
        for i in range(1, DRAFTS + 1):
            depth[:, i] = depth.gather(1, parents[:, i : i + 1])[:, 0] + 1
        rows = self.n * (DRAFTS + 1)
        call = {
            "positions": depth.flatten(),
            "cu_verify": torch.arange(0, rows + 1, DRAFTS + 1),
            "verify_rows": tokens.flatten() % CLASSES,
            **self.state,
        }
        flat = tokens.flatten()
        if name == "match":
            target = sample_logits(self.logits, **call).ids
            tree = parents.flatten()
            return accept_match(flat, call["cu_verify"], target, tree, max_path=DRAFTS).num_accepted
        if q is not None:
            call |= {"q": q.flatten(0, 1), "q_ids": self.ids.expand(rows, -1)}
        call |= {"rule": name, "max_path": DRAFTS}
        if name in ("token", "block"):
            return verify_chain(flat, self.logits, **call).num_accepted
        call["replacement"] = kind == "with replacement"
        return verify_tree(flat, self.logits, parents.flatten(), **call).num_accepted


def table(found: dict[str, list[float]], distances: list[float], n: int) -> str:
    lines = ["| rule | " + " | ".join(f"TV {d:.2f}" for d in distances) + " |"]
    lines.append("|---" * (len(distances) + 1) + "|")
    lines += [
        f"| {rule} | " + " | ".join(f"{x:.2f}" for x in values) + " |"
        for rule, values in found.items()
    ]
    return "\n".join(lines) + f"\n\n{n} requests a number"


WIDTH, HEIGHT, LEFT, TOP = 420, 260, 46, 30


def svg(found: dict[str, list[float]], distances: list[float]) -> str:
    """Two panels: accepted drafts over the distance between the laws."""
    top = max(map(max, found.values())) * 1.05
    size = f'width="{2 * (WIDTH + LEFT) + 20}" height="{HEIGHT + 200}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
        '<rect width="100%" height="100%" fill="white"/>'
    ]
    for panel, (title, rules) in enumerate(RULES.items()):
        left = LEFT + panel * (WIDTH + LEFT)

        def at(distance: float, value: float, left: int = left) -> str:
            x = left + distance / max(distances) * (WIDTH - 30)
            return f"{x:.1f},{TOP + HEIGHT * (1 - value / top):.1f}"

        heading = f"{title}: drafts accepted of {DRAFTS}"
        parts.append(f'<text x="{left}" y="18" font-weight="bold">{heading}</text>')
        for value in range(int(top) + 1):
            y = TOP + HEIGHT * (1 - value / top)
            parts.append(
                f'<path d="M{left} {y:.1f}h{WIDTH - 30}" stroke="#dddddd"/>'
                f'<text x="{left - 14}" y="{y + 4:.1f}">{value}</text>'
            )
        for distance in distances:
            x = at(distance, 0).split(",")[0]
            parts.append(
                f'<text x="{x}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{distance:.2f}</text>'
            )
        parts.append(
            f'<text x="{left}" y="{TOP + HEIGHT + 34}">total variation between q and p</text>'
        )
        for k, (rule, color) in enumerate(rules):
            line = " ".join(at(d, v) for d, v in zip(distances, found[rule], strict=True))
            y = TOP + HEIGHT + 54 + 16 * k
            dash = ' stroke-dasharray="5 4"' if "lossy" in rule else ""
            parts.append(
                f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"{dash}/>'
                f'<path d="M{left} {y - 4}h24" stroke="{color}" stroke-width="2"{dash}/>'
                f'<text x="{left + 30}" y="{y}">{rule}</text>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--svg", type=Path, help="where to write the plot")
    arguments = parser.parse_args()
    inputs = [Inputs(noise, arguments.requests) for noise in NOISE]
    distances = [one.distance() for one in inputs]
    found = {
        rule: [float(one.accepted(rule).double().mean()) for one in inputs]
        for rules in RULES.values()
        for rule, _ in rules
    }
    print(table(found, distances, arguments.requests))
    if arguments.svg:
        arguments.svg.write_text(svg(found, distances))


if __name__ == "__main__":
    main()
