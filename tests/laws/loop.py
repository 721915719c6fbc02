"""The real loop over many seeds at once: draft, verify, repeat. No hand-made randomness: drafts come
from stream 1, coins and tokens from the ops.

The next token's law depends on the class of the last token, so that a word's law is known whatever
the vocabulary: see `law_of_cells`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dflash_ops import (
    accept_match,
    lm_head_verify,
    sample_logits,
    select_path,
    verify_chain,
    verify_tree,
)
from dflash_ops.reference import noise

CHAIN_RULES = ["token", "block"]
TREE_RULES = ["rrs", "rrs+replacement", "traversal", "traversal+replacement", "target_only"]
RULES = ["match", "match coupled", *CHAIN_RULES, *TREE_RULES]
GAMMA = 3
# Where the anchor's index is even, and where it is odd: row 3 and its parent stand one deeper in the
# first, so that after a step of one token they stand for the same token again.
TREES = [[-1, 0, 1, 2, 0, 4], [-1, 0, 0, 2, 2, 3]]


def depth_of(parents: list[int]) -> list[int]:
    depth = [0]
    for parent in parents[1:]:
        depth.append(depth[parent] + 1)
    return depth


@dataclass
class Language:
    logits: Tensor  # [C, V]: the target's after a token of class id % C
    cand_ids: Tensor  # [K]: what the drafter proposes from
    draft_logits: Tensor  # [C, K]
    temperature: float = 1.0

    @property
    def num_classes(self) -> int:
        return len(self.logits)


def draft_chain(lang: Language, anchors: Tensor, ctx: Tensor, seeds: Tensor, coupled: bool):
    """[n, GAMMA] tokens and the q of each, by select_path: its codebooks pick the class's row."""
    n, (classes, count) = len(anchors), lang.draft_logits.shape
    successor = torch.zeros(lang.logits.shape[1], classes)
    successor[lang.cand_ids] = lang.draft_logits.T
    predecessor = torch.eye(classes)[torch.arange(lang.logits.shape[1]) % classes]
    return select_path(
        torch.zeros(n, GAMMA, count),
        lang.cand_ids.expand(n, GAMMA, -1),
        torch.ones(n, GAMMA, classes),
        anchors,
        predecessor,
        successor,
        ctx_lens=ctx,
        temperature=torch.ones(n),
        seeds=seeds,
        coupled=coupled,
    )


def siblings(lang: Language, q: Tensor, token_idx, ctx, seeds, parent, count, replacement: bool):
    """[n, count] tokens drawn from q [n, K] as the children of one row."""
    ids, n = lang.cand_ids, len(q)

    def scores(ordinal: int) -> Tensor:
        fixed = (token_idx, torch.full((n,), noise.purpose(noise.DRAFT, ordinal, parent)), ctx)
        words_1_to_3 = (x[:, None].expand(-1, len(ids)) for x in fixed)
        counter = torch.stack([(ids >> 2).expand(n, -1), *words_1_to_3], dim=-1)
        words = noise.philox(seeds[:, None].expand(-1, len(ids)), counter)
        word = words.gather(2, (ids & 3).expand(n, -1)[..., None])[..., 0]
        low = torch.full_like(word, 2**31)  # of words that are refined: their middle
        return q.double().log() + noise.gumbel_of(word, low)

    if replacement:
        columns = torch.stack([scores(k).argmax(dim=1) for k in range(count)], dim=1)
    else:
        columns = scores(0).topk(count, dim=1).indices
    return ids[columns]


def draft_tree(lang: Language, tree: list[int], anchors: Tensor, ctx, seeds, replacement: bool):
    """[n, N] tokens and [n, N, K] q of the children of each row."""
    laws, depth = lang.draft_logits.softmax(dim=1), depth_of(tree)
    tokens, q = anchors[:, None].repeat(1, len(tree)), []
    for i in range(len(tree)):
        q.append(laws[tokens[:, i] % lang.num_classes])
        children = [j for j, parent in enumerate(tree) if parent == i]
        if children:
            at = (ctx + depth[i] + 1, ctx, seeds)
            tokens[:, children] = siblings(lang, q[i], *at, i, len(children), replacement)
    return tokens, torch.stack(q, dim=1)


def verify(lang: Language, rule: str, tree: list[int], anchors: Tensor, ctx: Tensor, seeds: Tensor):
    """One cycle of n requests: [n, GAMMA + 1] tokens that were emitted, and their number."""
    n, replacement = len(anchors), rule.endswith("+replacement")
    name = rule.removesuffix("+replacement").removesuffix(" by record")
    if name in ("rrs", "traversal", "target_only"):
        tokens, q = draft_tree(lang, tree, anchors, ctx, seeds, replacement)
        depth = torch.tensor(depth_of(tree))
    else:
        drafts, q = draft_chain(lang, anchors, ctx, seeds, rule == "match coupled")
        tokens = torch.cat([anchors[:, None], drafts], dim=1)
        q = torch.cat([q, q[:, :1]], dim=1)  # nothing is drawn from the last row's
        depth = torch.arange(GAMMA + 1)
    rows = tokens.shape[1]
    call = {
        "positions": (ctx[:, None] + depth).flatten(),
        "cu_verify": torch.arange(0, n * rows + 1, rows),
        "verify_rows": tokens.flatten() % lang.num_classes,
        "temperature": torch.full((n,), lang.temperature),
        "seeds": seeds,
    }
    if name.startswith("match"):
        ids = sample_logits(lang.logits, **call).ids
        got = accept_match(tokens.flatten(), call["cu_verify"], ids, max_path=GAMMA)
    else:
        call |= {"q": q.flatten(0, 1), "q_ids": lang.cand_ids.expand(n * rows, -1)}
        call |= {"rule": name, "max_path": GAMMA}
        if rule.endswith(" by record"):
            got = verify_chain(tokens.flatten(), **by_record(lang, tokens, call))
        elif name in CHAIN_RULES:
            got = verify_chain(tokens.flatten(), lang.logits, **call)
        else:
            parents = torch.tensor(tree).repeat(n)
            call["replacement"] = replacement
            got = verify_tree(tokens.flatten(), lang.logits, parents, **call)
    return got.emitted, got.num_emitted


def by_record(lang: Language, tokens: Tensor, call: dict):
    """The call without logits: a head whose hidden states are the classes."""
    ids = torch.cat([call["q_ids"], tokens.roll(-1, 1).flatten()[:, None]], dim=1)
    names = ("positions", "cu_verify", "temperature", "seeds")
    laws = {name: call[name] for name in names}
    h = torch.eye(lang.num_classes)[call.pop("verify_rows")]
    record = lm_head_verify(h, lang.logits.T.contiguous(), ids, **laws)
    vocab_size = lang.logits.shape[1]
    return call | {"record_ids": ids, "record": record, "vocab_size": vocab_size}


def play(lang: Language, rule: str, seeds: Tensor, length: int) -> tuple[Tensor, float]:
    """[n, length] words after an anchor 0, and the mean number of drafts accepted in a cycle."""
    n = len(seeds)
    words = torch.full((n, length + GAMMA), -1)
    lengths, anchors = torch.zeros(n, dtype=torch.int64), torch.zeros(n, dtype=torch.int64)
    accepted = cycles = 0
    while len(todo := (lengths < length).nonzero()[:, 0]):
        groups = [todo[lengths[todo] % 2 == parity] for parity in (0, 1)]
        for tree, active in zip(TREES, groups, strict=True):
            at = (anchors[active], lengths[active], seeds[active])
            emitted, count = verify(lang, rule, tree, *at)
            for j in range(GAMMA + 1):
                here = active[count > j]
                words[here, lengths[here] + j] = emitted[count > j, j]
            anchors[active] = emitted.gather(1, count[:, None] - 1)[:, 0]
            accepted, cycles = accepted + int(count.sum()) - len(count), cycles + len(count)
            lengths[active] += count
    return words[:, :length], accepted / cycles


def plain(lang: Language, seeds: Tensor, length: int) -> Tensor:
    """[n, length] words of the target alone."""
    n = len(seeds)
    words, last = [], torch.zeros(n, dtype=torch.int64)
    for i in range(length):
        last = sample_logits(
            lang.logits,
            positions=torch.full((n,), i),
            cu_verify=torch.arange(n + 1),
            verify_rows=last % lang.num_classes,
            temperature=torch.full((n,), lang.temperature),
            seeds=seeds,
        ).ids
        words.append(last)
    return torch.stack(words, dim=1)


def law_of_cells(lang: Language, cell_of: Tensor, length: int) -> Tensor:
    """[cells ** length] float64: the law of words, each token seen through `cell_of` [V]."""
    classes, cells = lang.num_classes, int(cell_of.max()) + 1
    p = (lang.logits.double() / lang.temperature).softmax(dim=1)
    joint = torch.zeros(
        classes, cells * classes, dtype=torch.float64
    )  # of a token's cell and class
    at = cell_of * classes + torch.arange(len(cell_of)) % classes
    joint.index_add_(1, at, p)
    joint = joint.view(classes, cells, classes)
    law = torch.zeros(1, classes, dtype=torch.float64)
    law[0, 0] = 1.0  # the anchor is token 0
    for _ in range(length):
        law = torch.einsum("wc,cxd->wxd", law, joint).flatten(0, 1)
    return law.sum(dim=1)


def frequencies(words: Tensor, cell_of: Tensor) -> Tensor:
    """[cells ** length] counts."""
    cells, length = int(cell_of.max()) + 1, words.shape[1]
    code = torch.zeros(len(words), dtype=torch.int64)
    for i in range(length):
        code = code * cells + cell_of[words[:, i]]
    return torch.bincount(code, minlength=cells**length).double()
