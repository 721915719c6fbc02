"""A cycle of speculative decoding as ops alone: draft, verify, accept, commit, compact, ingest.

Nothing waits for the device, no size depends on data, and requests that have ended stay as padded
ones, so a cycle is one CUDA graph: bench/graph_cycle.py. Target and drafter have random weights.
"""

import math
from dataclasses import dataclass

import torch
from cycle_drafter import Draft, Drafter, Random
from torch import Tensor

from dflash_ops import (
    accept_match,
    build_tree,
    commit,
    compact_kv,
    lm_head_verify,
    pack_weight,
    select_path,
    tree_metadata,
    verify_chain,
    verify_gemm,
)
from dflash_ops.decoder import LayerWeights, Model, ModelConfig, Settings, Weights
from dflash_ops.decoder.batch import Batch, Share, pack
from dflash_ops.decoder.cache import KVCache
from dflash_ops.decoder.state import State

KINDS = ("tree", "chain")
RANK = 64  # of the candidate selector's codebooks
EPS = 1e-6


@dataclass(frozen=True)
class Shape:
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    layers: int
    drafter_layers: int
    requests: int
    drafts: int = 7
    candidates: int = 16
    nodes: int = 32  # rows of a tree
    page_size: int = 16

    def config(self, layers: int, max_position: int) -> ModelConfig:
        dim = self.head_dim
        return ModelConfig(
            vocab_size=self.vocab,
            hidden=self.hidden,
            intermediate=self.intermediate,
            num_layers=layers,
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=dim,
            max_position=max_position,
            eps=EPS,
            inv_freq=tuple(1e6 ** (-2 * i / dim) for i in range(dim // 2)),
        )


# So few tokens that drafts of random weights are often right.
TINY = Shape(32, 64, 4, 2, 16, 24, 1, 1, requests=3, drafts=3, nodes=24, page_size=4)
SMALL = Shape(1024, 3072, 16, 8, 128, 151_936, 8, 2, requests=8)  # layers of Qwen3-0.6B


def random_weights(config: ModelConfig, random: Random) -> Weights:
    hidden, inner = config.hidden, config.intermediate
    q_size, kv_size = (n * config.head_dim for n in (config.num_heads, config.num_kv_heads))
    layers = [
        LayerWeights(
            attn_norm=random.norm(hidden),
            qkv=random(q_size + 2 * kv_size, hidden, scale=2.0),
            qkv_bias=None,
            q_norm=random.norm(config.head_dim),
            k_norm=random.norm(config.head_dim),
            o=random(hidden, q_size),
            mlp_norm=random.norm(hidden),
            gate_up=random(2 * inner, hidden),
            down=random(hidden, inner),
        )
        for _ in range(config.num_layers)
    ]
    vocab = config.vocab_size
    head = random(vocab, hidden, scale=2.0)
    return Weights(random(vocab, hidden, scale=hidden**0.5), layers, random.norm(hidden), head)


class Cycle:
    """
    Args:
        kind: "tree": best-first trees of the drafter's candidates, verified by match, so that the
            tokens are those of the target alone. "chain": DFlash 2's walk through the candidates,
            verified by rejection with its own q.
        prompts: one a request.
    """

    def __init__(
        self,
        shape: Shape,
        kind: str,
        prompts: list[list[int]],
        settings: Settings,
        device: torch.device,
        dtype: torch.dtype = torch.bfloat16,
        seed: int = 0,
    ) -> None:
        self.shape, self.kind = shape, kind
        batch = shape.requests
        rows = shape.nodes if kind == "tree" else shape.drafts + 1
        most = max(map(len, prompts)) + settings.max_new_tokens + shape.nodes + shape.drafts
        max_pages = -(-most // shape.page_size)
        config = shape.config(shape.layers, max_pages * shape.page_size)
        random = Random(seed, dtype, device)
        weights = random_weights(config, random)
        self.max_rows = max(batch * rows, sum(map(len, prompts)))
        self.model = Model(
            config, weights, max_rows=self.max_rows, max_position=config.max_position
        )
        pages = {"num_pages": batch * max_pages, "page_size": shape.page_size}
        self.cache = KVCache(config, dtype=dtype, device=device, **pages)
        for memory in (*self.cache.k, *self.cache.v):
            memory.fill_(math.nan)  # what nobody has written must not be read
        self._head = {"weight": pack_weight(weights.lm_head), "vocab_size": shape.vocab}
        self._final_norm = weights.final_norm
        self.drafter = Drafter(
            shape.config(shape.drafter_layers, config.max_position),
            self._head,
            weights.embed,
            config.cos_sin(config.max_position).to(device),
            self.cache.k[0].shape,
            shape.drafts,
            random,
        )
        self._selector = pack_weight(random(RANK, shape.hidden))
        self._codebooks = random(shape.vocab, RANK), random(shape.vocab, RANK)
        self.state = State(batch, most, max_pages, len(settings.stop_ids) or 1, device)
        self.active = torch.ones((), dtype=torch.int32, device=device)  # is there a next cycle?
        self.cycles = torch.zeros((), dtype=torch.int64, device=device)
        self._every_request = torch.arange(batch, device=device)
        self._every_row = torch.arange(batch * rows, device=device)
        self._prefill(prompts, settings)
        self._written = (
            *(self.state.tokens, self.state.lengths, self.state.ctx_lens, self.state.finished),
            *(self.active, self.cycles),
        )
        self._before = [x.clone() for x in self._written]

    def reset(self) -> None:
        """To where the prompts end, in the same memory."""
        for tensor, before in zip(self._written, self._before, strict=True):
            tensor.copy_(before)

    def _prefill(self, prompts: list[list[int]], settings: Settings) -> None:
        """All but the last token of each prompt, which is the first anchor."""
        state, shares = self.state, []
        pages_each = state.block_table.shape[1]
        for row, prompt in enumerate(prompts):
            pages = list(range(row * pages_each, (row + 1) * pages_each))
            state.admit(row, prompt, len(prompt) + settings.max_new_tokens, settings)
            state.block_table[row] = torch.tensor(pages)
            state.seeds[row] += row
            shares.append(Share(row, 0, prompt[:-1], 0, pages=pages))
        batch = pack(shares, self.shape.page_size, state.tokens.device)
        hidden = self.model.forward(batch, self.cache, state)
        self.drafter.ingest(hidden, batch.positions, batch.slots)
        state.ctx_lens.copy_(state.lengths - 1)

    def step(self) -> None:
        state = self.state
        live = torch.where(state.finished, -1, self._every_request)
        draft = self.drafter.propose(state, live, self.shape.candidates)
        anchors = draft.block.ids[:, 0]
        if self.kind == "tree":
            tokens, batch = self._tree(draft, torch.where(live < 0, -1, anchors), live)
            hidden = self.model.forward(batch, self.cache, state)
            path = self.drafter.drafts
            ids = self.model.sample(hidden, batch, state)
            parents = batch.verify_parents
            got = accept_match(tokens, batch.cu_rows, ids, parents, max_path=path)
        else:
            tokens, q, q_ids, batch = self._chain(draft, anchors, live)
            hidden = self.model.forward(batch, self.cache, state)
            got = self._reject(hidden, tokens, q, q_ids, batch)
        self._accept(got.emitted, got.num_emitted, got.accepted_rows, hidden, batch)

    def _tree(self, draft: Draft, anchors: Tensor, live: Tensor) -> tuple[Tensor, Batch]:
        scores = draft.values - draft.lse[..., None]
        tree = build_tree(anchors, draft.ids, scores, max_nodes=self.shape.nodes)
        meta = tree_metadata(tree.parents, tree.cu_rows, max_rows=self.shape.nodes)
        nodes = tree.cu_rows.diff()
        view = {"tree_nodes": nodes, "mask_bits": meta.mask_bits, "depth": meta.depth}
        packed = self._rows(tree.tokens, tree.parents, tree.cu_rows, meta.depth, live, view)
        return tree.tokens, packed

    def _chain(
        self, draft: Draft, anchors: Tensor, live: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Batch]:
        hidden = verify_gemm(draft.hidden.flatten(0, 1), self._selector, num_outputs=RANK)
        state, size = self.state, self.drafter.drafts + 1
        walk = select_path(
            draft.values,
            draft.ids,
            hidden.view(*draft.ids.shape[:2], -1),
            anchors,
            *self._codebooks,
            ctx_lens=state.ctx_lens,
            req_rows=live,
            num_drafts=draft.block.num_drafts,
            temperature=state.temperature,
            seeds=state.seeds,
        )
        tokens = torch.cat([anchors[:, None], walk.tokens], dim=1).flatten()
        # Nothing is drawn from the last row's.
        q = torch.nn.functional.pad(walk.q, (0, 0, 0, 1)).flatten(0, 1)
        q_ids = torch.nn.functional.pad(draft.ids, (0, 0, 0, 1), value=-1).flatten(0, 1)
        cu_rows = torch.arange(0, len(tokens) + 1, size, device=tokens.device)
        depth = self._every_row % size
        return tokens, q, q_ids, self._rows(tokens, depth - 1, cu_rows, depth, live, {})

    def _rows(
        self, tokens: Tensor, parents: Tensor, cu_rows: Tensor, depth: Tensor, live: Tensor, tree
    ) -> Batch:
        """Rows of no request, and those of one that has ended: position and slot -1."""
        state, rows = self.state, self._every_row
        request = torch.searchsorted(cu_rows, rows, right=True) - 1
        request = request.clamp(max=len(live) - 1)
        is_padded = (live[request] < 0) | (rows >= cu_rows[-1])
        ctx = state.ctx_lens[request]
        positions = torch.where(is_padded, -1, ctx + depth)
        slots = self._slots(request, ctx + rows - cu_rows[request])
        return Batch(
            ids=tokens.clamp(min=0),
            positions=positions,
            slots=torch.where(is_padded, -1, slots),
            cu_rows=cu_rows,
            req_rows=live,
            cu_verify=cu_rows,
            verify_rows=rows,
            verify_ids=tokens,
            verify_positions=positions,
            verify_parents=parents,
            tree=tree,
            draft_depths=[self.drafter.drafts] * len(live),
        )

    def _slots(self, request: Tensor, index: Tensor) -> Tensor:
        """Of sequence indices."""
        table, size = self.state.block_table, self.shape.page_size
        page = torch.div(index, size, rounding_mode="floor").clamp(0, table.shape[1] - 1)
        return table[request, page].long() * size + index % size

    def _reject(self, hidden: Tensor, tokens: Tensor, q: Tensor, q_ids: Tensor, batch: Batch):
        state = self.state
        ids = torch.cat([q_ids, tokens.roll(-1)[:, None]], dim=1)
        laws = {
            "positions": batch.verify_positions,
            "cu_verify": batch.cu_verify,
            "req_rows": batch.req_rows,
            "temperature": state.temperature,
            "seeds": state.seeds,
        }
        norm = {"norm_weight": self._final_norm, "eps": EPS}
        record = lm_head_verify(hidden, ids=ids, **laws, **norm, **self._head)
        return verify_chain(
            tokens,
            record_ids=ids,
            record=record,
            q=q,
            q_ids=q_ids,
            vocab_size=self.shape.vocab,
            max_path=self.drafter.drafts,
            **laws,
        )

    def _accept(
        self, emitted: Tensor, num_emitted: Tensor, accepted: Tensor, hidden: Tensor, batch: Batch
    ) -> None:
        state = self.state
        ctx_lens = state.ctx_lens.clone()  # as they were
        num_kept = commit(
            state.tokens,
            state.lengths,
            state.ctx_lens,
            state.finished,
            emitted,
            num_emitted,
            batch.cu_rows,
            req_rows=batch.req_rows,
            stop_ids=state.stop_ids,
            max_lens=state.max_lens,
        )
        compact_kv(
            self.cache.k,
            self.cache.v,
            block_tables=[state.block_table],
            accepted_rows=accepted,
            cu_rows=batch.cu_rows,
            num_kept=num_kept,
            ctx_lens=ctx_lens,
            req_rows=batch.req_rows,
        )
        entry = torch.arange(accepted.shape[1], device=accepted.device)
        is_kept = entry < num_kept[:, None]
        to = self._slots(self._every_request[:, None], ctx_lens[:, None] + entry)
        slots = torch.full((len(self._every_row) + 1,), -1, device=to.device)  # the last: nobody's
        row = torch.where(is_kept, accepted, len(self._every_row))
        slots.scatter_(0, row.flatten(), torch.where(is_kept, to, -1).flatten())
        self.drafter.ingest(hidden, batch.positions, slots[:-1])
        self.active.copy_(state.finished.logical_not().any())
        self.cycles += 1

    def tokens(self) -> list[list[int]]:
        """Of every request, its prompt included; waits for the device."""
        lengths = self.state.lengths.tolist()
        return [row[:n] for row, n in zip(self.state.tokens.tolist(), lengths, strict=True)]
