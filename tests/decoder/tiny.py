"""Tiny random models, and runs of the engine that keep every committed token's bits."""

from dataclasses import dataclass, field
from functools import cache

import torch
from quant_sources import w4_call, w8_call

from dflash_ops.adapters.build import inv_freq
from dflash_ops.decoder import (
    Draft,
    Engine,
    LayerWeights,
    Model,
    ModelConfig,
    QuantisedMatrix,
    Settings,
    Weights,
)

MAX_POSITION = 1200


def config(kind="llama", layers=2):
    """Sizes that are no multiples of a tile: hidden 40, 72 rows of qkv, intermediate 56.

    w4: Q4_1 and a Q8_0 head, whose rows are whole blocks of 32."""
    dim = 8
    if kind == "w4":
        hidden, intermediate, num_heads, num_kv_heads = 64, 96, 4, 1
    else:
        hidden, intermediate = 40, 56
        num_heads, num_kv_heads = (5, 1) if kind == "llama" else (6, 2)
    return ModelConfig(
        vocab_size=101,
        hidden=hidden,
        intermediate=intermediate,
        num_layers=layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=dim,
        max_position=MAX_POSITION,
        eps=1e-5,
        inv_freq=tuple(inv_freq(dim, 10_000.0)),
    )


def weights(c, dtype, kind, seed):
    g = torch.Generator().manual_seed(seed)

    def rand(*shape, scale=1.0):
        return (scale * torch.randn(*shape, generator=g) / shape[-1] ** 0.5).to(dtype)

    def matrix(*shape, scale=1.0, source="q4_1"):
        if kind != "w4":
            return rand(*shape, scale=scale)
        make = w8_call if source == "q8_0" else w4_call
        call = make(int(torch.randint(2**31, (), generator=g)), source, *shape)
        return QuantisedMatrix(source, call["weight"])

    def norm(size):
        return (1 + 0.2 * torch.randn(size, generator=g)).to(dtype)

    qkv = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim
    return Weights(
        embed=rand(c.vocab_size, c.hidden, scale=c.hidden**0.5),
        layers=[
            LayerWeights(
                attn_norm=norm(c.hidden),
                qkv=matrix(qkv, c.hidden, scale=2.0),
                qkv_bias=rand(qkv, scale=3.0) if kind == "qwen2" else None,
                q_norm=norm(c.head_dim) if kind == "qwen3" else None,
                k_norm=norm(c.head_dim) if kind == "qwen3" else None,
                o=matrix(c.hidden, c.num_heads * c.head_dim),
                mlp_norm=norm(c.hidden),
                gate_up=matrix(2 * c.intermediate, c.hidden),
                down=matrix(c.hidden, c.intermediate),
            )
            for _ in range(c.num_layers)
        ],
        final_norm=norm(c.hidden),
        lm_head=matrix(c.vocab_size, c.hidden, scale=2.0, source="q8_0"),
    )


@cache
def model(dtype, kind="llama", seed=0):
    c = config(kind)
    return Model(c, weights(c, dtype, kind, seed), max_rows=1200, max_position=MAX_POSITION)


def prompt(length, seed=0, vocab=101):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(vocab, (length,), generator=g).tolist()


@dataclass
class Ask:
    """A request: what it wants, what drafts for it, and the step at which it joins."""

    prompt: list[int]
    settings: Settings = field(default_factory=Settings)
    drafter: object = None
    joins_at: int = 0


@dataclass
class Trace:
    tokens: list[int]
    hidden: dict[int, torch.Tensor] = field(default_factory=dict)  # by position
    kv: dict[int, torch.Tensor] = field(default_factory=dict)  # [layers, 2, Hkv, D] by position


def run(model, asks, *, num_pages=2000, page_size=16, chunk=64, max_requests=8, engine=None):
    """One Trace per ask, and the engine. A token computed twice must have the same bits."""
    engine = engine or Engine(
        model, num_pages=num_pages, page_size=page_size, chunk=chunk, max_requests=max_requests
    )
    if engine.stats.cycles == 0:
        for memory in (*engine.cache.k, *engine.cache.v):
            memory.fill_(float("nan"))  # what was not written shows
    traces, steps = {}, 0
    while len(traces) < len(asks) or engine.has_work:
        for ask in asks:
            if ask.joins_at == steps or (ask.joins_at < steps and not engine.has_work):
                if id(ask) not in traces:
                    request = engine.add(ask.prompt, ask.settings, ask.drafter)
                    traces[id(ask)] = request, Trace([])
        by_request = {request: trace for request, trace in traces.values()}
        step = engine.step()
        if step is not None:
            keep(engine, step, by_request)
        steps += 1
        assert steps < 10_000
    assert engine.step() is None
    assert engine.cache.pool.num_available == engine.cache.pool.num_pages
    for request, trace in traces.values():
        trace.tokens = request.tokens
    return [traces[id(ask)][1] for ask in asks], engine


def keep(engine, step, traces):
    batch, page_size = step.batch, engine.cache.pool.page_size
    cu_rows, cu_verify = batch.cu_rows.tolist(), batch.cu_verify.tolist()
    for b, request in enumerate(step.requests):
        trace = traces[request]
        num_verify = cu_verify[b + 1] - cu_verify[b]
        rows = list(range(cu_rows[b], cu_rows[b + 1] - num_verify))
        rows += step.accepted_rows[b, : step.num_kept[b]].tolist()
        for row in rows:
            position = int(batch.positions[row])
            put(trace.hidden, position, step.hidden[row].clone())
            page, offset = request.pages[position // page_size], position % page_size
            layers = zip(engine.cache.k, engine.cache.v, strict=True)
            kv = torch.stack([torch.stack([k[page, offset], v[page, offset]]) for k, v in layers])
            put(trace.kv, position, kv)


def put(known, position, bits):
    if position in known:
        assert torch.equal(known[position], bits), f"position {position} was computed anew"
    known[position] = bits


def assert_same(got, want, computed=None):
    """Equal ids, and equal bits of every token that both computed."""
    assert got.tokens == want.tokens
    everything = set(range(len(want.tokens) - 1))  # the last token has no KV yet
    assert set(want.hidden) == everything
    assert set(got.hidden) == (everything if computed is None else computed)
    for position in got.hidden:
        assert torch.equal(got.hidden[position], want.hidden[position]), position
        assert torch.equal(got.kv[position], want.kv[position]), position
        assert got.hidden[position].isfinite().all()


class DecoyDrafter:
    """Knows the answer and hides it: before every true node stand wrong siblings with children."""

    def __init__(self, truth, depth=4, decoys=2, first_wrong=None):
        self.truth, self.depth, self.decoys = truth, depth, decoys
        self.first_wrong = first_wrong  # from this depth on nothing is true

    def propose(self, tokens, limit):
        draft, parents, parent = [], [], 0
        future = self.truth[len(tokens) : len(tokens) + self.depth]
        for depth, true in enumerate(future):
            if len(draft) + 2 * self.decoys + 1 > limit:
                break
            for i in range(self.decoys):
                draft += [(true + 1 + i) % 101, true]  # wrong, then what would come next
                parents += [parent, len(draft) - 1]
            draft.append(true if self.first_wrong is None or depth < self.first_wrong else true + 9)
            draft[-1] %= 101
            parents.append(parent)
            parent = len(draft)
        return Draft(draft, parents)
