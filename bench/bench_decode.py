"""Whole decoding runs of SmolLM2 against plain decoding by the same kernels."""

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from case import Case

from dflash_ops.adapters import load
from dflash_ops.decoder import Drafter, Engine, Model, NgramDrafter, Settings

PROMPTS = Path(__file__).parent / "prompts"
NEW_TOKENS = 80
DRAFTERS: dict[str, Callable[[], Drafter | None]] = {
    "chain of 8": lambda: NgramDrafter(8),
    "tree of 16": lambda: NgramDrafter(8, 16),
}


def cases(device: torch.device) -> Iterator[Case]:
    if device.type != "cpu":
        return
    checkpoint = load("smollm2")
    tokenizer = checkpoint.tokenizer()
    weights = checkpoint.weights(torch.bfloat16)
    model = Model(checkpoint.config, weights, max_rows=256, max_position=512)
    matrices = [w for x in weights.layers for w in (x.qkv, x.o, x.gate_up, x.down)]
    bytes_of_a_cycle = sum(w.nbytes for w in (*matrices, weights.lm_head))

    def run(
        name: str, batch: int, temperature: float, drafter: Callable[[], Drafter | None]
    ) -> tuple[list[list[int]], int]:
        engine = Engine(model, num_pages=32 * batch, max_requests=batch)
        prompt = tokenizer.encode_prompt((PROMPTS / f"{name}.txt").read_text())
        requests = [
            engine.add(prompt, Settings(NEW_TOKENS, temperature, seed=seed), drafter())
            for seed in range(batch)
        ]
        engine.run()
        return [r.new_tokens for r in requests], engine.stats.cycles

    def same_ids(ours: tuple[list[list[int]], int], peer: tuple[list[list[int]], int]) -> None:
        assert ours[0] == peer[0]

    for name in ("edit", "summary", "story"):
        for batch, temperature in ((1, 0.0), (1, 0.7), (8, 0.7)):
            for drafter_name, drafter in DRAFTERS.items():
                args = name, batch, temperature
                yield Case(
                    op="decode",
                    name=f"{name}, {drafter_name}, B={batch}, T={temperature}",
                    ours=lambda args=args, drafter=drafter: run(*args, drafter),
                    peers={"plain decoding": lambda args=args: run(*args, lambda: None)},
                    bytes_moved=run(*args, drafter)[1] * bytes_of_a_cycle,
                    check=same_ids,
                )
