"""Whole decoding runs of SmolLM2: speculative against plain, and against other engines."""

from collections.abc import Callable, Iterator

import engines
import mix
import torch
from case import Case

from dflash_ops.adapters import fetch, load
from dflash_ops.decoder import Drafter, Engine, Model, NgramDrafter, Settings

NEW_TOKENS = 80
PROMPTS_OF_A_SET = 4
DRAFTERS: dict[str, Callable[[], Drafter | None]] = {
    "chain of 8": lambda: NgramDrafter(8),
    "tree of 16": lambda: NgramDrafter(8, 16),
}


def cases(device: torch.device) -> Iterator[Case]:
    if device.type != "cpu":
        return
    checkpoint = load("smollm2")
    tokenizer = checkpoint.tokenizer()
    runs = {"bf16": Runner.of(checkpoint), "w4": Runner.of(checkpoint, as_stored=True)}

    for name in ("edit", "summary", "story"):
        prompt = tokenizer.encode_prompt(mix.own(name))
        for batch, temperature in ((1, 0.0), (1, 0.7), (8, 0.7)):
            for drafter_name, drafter in DRAFTERS.items():
                yield against_plain(
                    runs["bf16"],
                    f"{name}, {drafter_name}, B={batch}, T={temperature}",
                    prompt,
                    batch,
                    temperature,
                    drafter,
                )
    yield from against_engines(runs, tokenizer)


class Runner:
    """Decodes prompts, and knows the bytes that it read."""

    def __init__(self, model: Model, bytes_of_a_cycle: int) -> None:
        self.model, self.bytes_of_a_cycle = model, bytes_of_a_cycle
        self.bytes_moved = 0

    @classmethod
    def of(cls, checkpoint, as_stored: bool = False) -> "Runner":
        weights = checkpoint.weights(torch.bfloat16, as_stored=as_stored)
        model = Model(checkpoint.config, weights, max_rows=256, max_position=1024)
        matrices = [w for x in weights.layers for w in (x.qkv, x.o, x.gate_up, x.down)]
        return cls(model, sum(w.nbytes for w in (*matrices, weights.lm_head)))

    def __call__(
        self,
        prompts: list[list[int]],
        drafter: Callable[[], Drafter | None] = lambda: None,
        temperature: float = 0.0,
        batch: int = 1,
    ) -> list[list[int]]:
        """New tokens of each; `batch` at a time, each with its place as its seed."""
        engine = Engine(self.model, num_pages=64 * batch, max_requests=batch)
        requests = [
            engine.add(prompt, Settings(NEW_TOKENS, temperature, seed=seed), drafter())
            for seed, prompt in enumerate(prompts)
        ]
        engine.run()
        self.bytes_moved = engine.stats.cycles * self.bytes_of_a_cycle
        return [request.new_tokens for request in requests]


def same_ids(ours: list[list[int]], peer: list[list[int]]) -> None:
    assert ours == peer


def as_many(ours: list[list[int]], peer: int) -> None:
    """Other engines round differently, so only the number of tokens is the same."""
    assert sum(map(len, ours)) == peer


def against_plain(
    run: Runner,
    name: str,
    prompt: list[int],
    batch: int,
    temperature: float,
    drafter: Callable[[], Drafter | None],
) -> Case:
    prompts = [prompt] * batch
    run(prompts, drafter, temperature, batch)
    return Case(
        op="decode",
        name=name,
        ours=lambda: run(prompts, drafter, temperature, batch),
        peers={"plain decoding": lambda: run(prompts, temperature=temperature, batch=batch)},
        bytes_moved=run.bytes_moved,
        check=same_ids,
    )


def against_engines(runs: dict[str, Runner], tokenizer) -> Iterator[Case]:
    """Plain against plain, prompt lookup against prompt lookup; the file's own weights are w4."""
    sets = {"copying": [mix.own("edit"), mix.own("summary")]}
    sets |= {name: mix.prompts(name, PROMPTS_OF_A_SET) for name in mix.SETS}
    gguf = fetch.smollm2()
    for mode, peers, drafter in (
        ("plain", engines.plain(gguf), lambda: None),
        ("chain of 8", engines.speculative(gguf), DRAFTERS["chain of 8"]),
    ):
        running = {name: make() for name, make in peers.items()}
        for weights, run in runs.items():
            for name, texts in sets.items():
                prompts = [tokenizer.encode_prompt(text) for text in texts]
                run(prompts, drafter)
                yield Case(
                    op="decode",
                    name=f"{name}, {mode}, {weights}",
                    ours=lambda run=run, prompts=prompts, drafter=drafter: run(prompts, drafter),
                    peers={
                        engine: lambda f=f, prompts=prompts: f(prompts, NEW_TOKENS)
                        for engine, f in running.items()
                    },
                    bytes_moved=run.bytes_moved,
                    check=as_many,
                )
