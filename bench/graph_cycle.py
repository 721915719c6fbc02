"""A cycle of speculative decoding as one CUDA graph, and decoding to the end without the host.

python bench/graph_cycle.py [--kind tree|chain] [--tokens N] [--json FILE] [--device cuda|cpu]

Three ways to the same tokens: ops launched one by one, a graph that is replayed, and a graph whose
while loop runs the cycle until every request has ended (cuda.core, if it is installed). With trees
the tokens must also be those of plain decoding. On a CPU: the first way and that comparison alone.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import cuda_loop
import torch
from cycle import KINDS, SMALL, TINY, Cycle, Shape
from output import write_json

from dflash_ops.decoder import Engine, Settings

PROMPT = 12


def settings_of(kind: str, num_tokens: int, shape: Shape) -> Settings:
    temperature = 0.0 if kind == "tree" else 1.0
    return Settings(num_tokens, temperature=temperature, stop_ids=(shape.vocab - 1,))


def prompts_of(shape: Shape, seed: int = 0) -> list[list[int]]:
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(shape.vocab - 1, (shape.requests, PROMPT), generator=g)
    return [row[: PROMPT - i % 3].tolist() for i, row in enumerate(ids)]


def make(shape: Shape, kind: str, num_tokens: int, device: torch.device, seed: int = 0) -> Cycle:
    settings = settings_of(kind, num_tokens, shape)
    return Cycle(shape, kind, prompts_of(shape, seed), settings, device)


def until_done(step: Callable[[], None], cycle: Cycle) -> None:
    """The host asks after each step."""
    while True:
        step()
        if not cycle.active.item():
            return


def plain(cycle: Cycle, kind: str, num_tokens: int, seed: int = 0) -> list[list[int]]:
    """The target alone, by the reference decoder."""
    shape = cycle.shape
    settings = settings_of(kind, num_tokens, shape)
    state = cycle.state
    pages = state.block_table.numel()
    engine = Engine(
        cycle.model, num_pages=pages, page_size=shape.page_size, max_requests=shape.requests
    )
    requests = [engine.add(prompt, settings) for prompt in prompts_of(shape, seed)]
    engine.run()
    return [request.tokens for request in requests]


def replayed(cycle: Cycle) -> Callable[[], None]:
    side = torch.cuda.Stream()  # as torch.cuda.graph asks: the first calls outside of it
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        cycle.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cycle.step()
    return graph.replay


def ways(cycle: Cycle) -> dict[str, Callable[[], None]]:
    """Each decodes from where the prompts end to where every request has ended."""
    found = {"ops one by one": lambda: until_done(cycle.step, cycle)}
    if cycle.active.device.type == "cuda":
        replay = replayed(cycle)
        found["graph of a cycle"] = lambda: until_done(replay, cycle)
        if cuda_loop.is_there():
            found["graph with a while loop"] = cuda_loop.WhileLoop(cycle.step, cycle.active)
        else:
            print("no cuda.core: the while loop is left out", file=sys.stderr)
    return found


def run(shape: Shape, kind: str, num_tokens: int, device: torch.device) -> list[dict]:
    cycle = make(shape, kind, num_tokens, device)
    rows, tokens = [], None
    for name, decode in ways(cycle).items():
        cycle.reset()
        begin = time.perf_counter()
        decode()
        seconds = time.perf_counter() - begin
        got = cycle.tokens()
        if tokens is None:
            tokens = got
            if kind == "tree":
                assert got == plain(cycle, kind, num_tokens), "not the target's tokens"
        assert got == tokens, f"{name}: other tokens"
        cycles = int(cycle.cycles)
        new = sum(map(len, got)) - sum(map(len, prompts_of(shape)))
        rows.append(
            {
                "op": "cycle",
                "case": f"{kind}, {name}",
                "device": device.type,
                "cycles": cycles,
                "tokens": new,
                "ms_of_a_cycle": round(1e3 * seconds / cycles, 4),
            }
        )
    return rows


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("graph_cycle", description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=KINDS, nargs="+", default=KINDS)
    parser.add_argument("--tokens", type=int, default=64, help="new tokens of a request, at most")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", type=Path, help="default: standard output")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.exit(2, "graph_cycle: no GPU found; --device cpu runs the ops one by one\n")
    shape = SMALL if options.device == "cuda" else TINY
    device = torch.device(options.device)
    rows = [r for kind in options.kind for r in run(shape, kind, options.tokens, device)]
    write_json(rows, options.json)


if __name__ == "__main__":
    main()
