"""``generate``: text from a model, then what it cost."""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..adapters import ModelError, TextStream, Tokenizer, load
from ..adapters.progress import progress
from ..decoder import Drafter, Engine, Model, NgramDrafter, Settings, Stats

_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
_MAX_REQUESTS = 32  # prompts that run at a time; the others wait
_CHUNK = 64

NewText = Callable[[int, list[int], bool], None]  # prompt, its new tokens, whether it is done


class UserError(Exception):
    """Something that the user can put right; the message is one line."""


@dataclass
class _Run:
    token_ids: list[list[int]]
    stats: Stats
    kv_bytes: int


def generate(options: argparse.Namespace) -> None:
    """Prints the text while it comes, then a table; or one JSON object."""
    try:
        model, tokenizer, prompts, settings = _prepare(options)
    except (ModelError, ValueError) as error:
        raise UserError(" ".join(str(error).split())) from None

    def drafter() -> Drafter | None:
        if options.drafter == "none":
            return None
        return NgramDrafter(options.draft_len, options.tree_nodes)

    def run(make_drafter: Callable[[], Drafter | None], on_tokens: NewText | None) -> _Run:
        engine = {"page_size": options.page_size, "verify": options.verify}
        return _run(model, prompts, settings, make_drafter, engine, on_tokens)

    _run(model, [[0]], Settings(max_new_tokens=1), lambda: None, {}, None)  # the first call is slow
    result = run(drafter, None if options.json else _Printer(tokenizer, len(prompts)))
    plain = run(lambda: None, None) if options.compare else None
    report = _report(result, plain, tokenizer)
    if options.verify != "match" and not settings.is_greedy:
        report["identical_to_plain"] = None  # only the law is
    print(json.dumps(report) if options.json else "\n" + _table(report), flush=True)


def _prepare(
    options: argparse.Namespace,
) -> tuple[Model, Tokenizer, list[list[int]], Settings]:
    """Everything that can be refused is, before the tensors are loaded."""
    checkpoint = load(options.model)
    tokenizer, config = checkpoint.tokenizer(), checkpoint.config
    encode = tokenizer.encode if options.raw else tokenizer.encode_prompt
    if options.tree_nodes and options.verify != "match":
        raise ValueError(f"--verify {options.verify} takes chains, not --tree-nodes")
    if not all(prompt.strip() for prompt in options.prompts):
        raise ValueError("the prompt is empty")
    prompts = [encode(prompt) for prompt in options.prompts]
    longest = max(map(len, prompts))
    if longest >= config.max_position:
        raise ValueError(
            f"the prompt has {longest} tokens, the model's context {config.max_position}"
        )
    settings = Settings(
        max_new_tokens=options.max_new_tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        seed=options.seed,
        stop_ids=tokenizer.stop_ids,
    )
    num_drafts = options.tree_nodes or options.draft_len
    model = Model(
        config,
        checkpoint.weights(_DTYPES[options.dtype], as_stored=options.weights == "w4"),
        max_rows=max(_CHUNK, _MAX_REQUESTS * (1 + num_drafts)),
        max_position=min(config.max_position, longest + options.max_new_tokens),
    )
    return model, tokenizer, prompts, settings


def _run(
    model: Model,
    prompts: Sequence[Sequence[int]],
    settings: Settings,
    make_drafter: Callable[[], Drafter | None],
    options: dict[str, Any],
    on_tokens: NewText | None,
) -> _Run:
    lengths = [min(len(p) + settings.max_new_tokens, model.max_position) for p in prompts]
    engine = Engine(
        model,
        num_pages=sum(-(-length // options.get("page_size", 16)) for length in lengths),
        max_requests=min(len(prompts), _MAX_REQUESTS),
        chunk=_CHUNK,
        max_stops=max(1, len(settings.stop_ids)),
        **options,
    )
    requests = [engine.add(prompt, settings, make_drafter()) for prompt in prompts]
    numbers = {request: number for number, request in enumerate(requests)}
    waiting = set(requests)  # for their first token
    with progress(sum(map(len, prompts)), "prefilling", "token") as bar:
        while step := engine.step():
            if waiting:
                bar.update(sum(min(r.ctx_len, r.prompt_len) for r in requests) - bar.n)
                waiting -= {r for r in waiting if r.new_tokens}
                if not waiting:
                    bar.close()
            if on_tokens is not None:
                for request, tokens in zip(step.requests, step.emitted, strict=True):
                    on_tokens(numbers[request], tokens, request.finished)
    return _Run([r.new_tokens for r in requests], engine.stats, engine.cache.peak_bytes)


class _Printer:
    """The text of one prompt as it comes; that of several, each when it is done."""

    def __init__(self, tokenizer: Tokenizer, num_prompts: int):
        self._streams = [TextStream(tokenizer) for _ in range(num_prompts)]
        self._texts = [""] * num_prompts

    def __call__(self, number: int, tokens: list[int], done: bool) -> None:
        stream, single = self._streams[number], len(self._streams) == 1
        text = stream.push(tokens) + (stream.close() if done else "")
        if single:
            print(text, end="\n" if done else "", flush=True)
            return
        self._texts[number] += text
        if done:
            print(f"[{number + 1}] {self._texts[number]}", flush=True)


def _report(run: _Run, plain: _Run | None, tokenizer: Tokenizer) -> dict[str, Any]:
    texts = [tokenizer.decode(ids) for ids in run.token_ids]
    single = len(texts) == 1
    return {
        "text": texts[0] if single else texts,
        "token_ids": run.token_ids[0] if single else run.token_ids,
        **run.stats.report(),
        "kv_bytes": run.kv_bytes,
        "identical_to_plain": None if plain is None else run.token_ids == plain.token_ids,
        "speedup": None if plain is None else plain.stats.total_s / run.stats.total_s,
        "plain_tokens_per_s": None if plain is None else plain.stats.report()["tokens_per_s"],
    }


def _table(report: dict[str, Any]) -> str:
    accepted = report["acceptance_per_position"]
    rows = {
        "tokens": report["new_tokens"],
        "tokens/s": f"{report['tokens_per_s']:.1f}",
        "cycles": report["cycles"],
        "tokens per cycle": f"{report['tokens_per_cycle']:.2f}",
        "accepted, by position": " ".join(f"{rate:.0%}" for rate in accepted) or "no drafts",
        "time": ", ".join(
            f"{name} {report[name + '_s']:.3f} s"
            for name in ("prefill", "draft", "verify", "other")
        ),
        "KV memory": f"{report['kv_bytes'] / 2**20:.1f} MiB",
    }
    if report["speedup"] is not None:
        identity = {True: "identical ids", False: "OTHER IDS", None: "the same law"}
        same = identity[report["identical_to_plain"]]
        rows["against plain"] = (
            f"{same}, {report['speedup']:.2f} times as fast "
            f"({report['plain_tokens_per_s']:.1f} tokens/s)"
        )
    return "\n".join(f"{name:<22}{value}" for name, value in rows.items())
