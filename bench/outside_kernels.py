"""What a decoding step costs outside the kernels: python bench/outside_kernels.py [--threads N]

A step is timed as it is; its calls of ops are recorded once and timed alone, one after another,
with the same arguments. The difference is everything else: scheduling, packing, the calls' Python.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import mix
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dflash_ops.adapters import load
from dflash_ops.decoder import Engine, Model, Settings

STEPS = 100


class Recorder(TorchDispatchMode):
    """Keeps the calls of the library's ops."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Callable, tuple, dict]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        if func.namespace == "dflash":
            self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def seconds(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def measure(model: Model, prompt: list[int], batch: int) -> tuple[int, float, float]:
    """Calls of ops in a step of plain decoding; median seconds of a step and of its ops."""
    engine = Engine(model, num_pages=64 * batch, max_requests=batch)
    for _ in range(batch):
        engine.add(prompt, Settings(2 * STEPS))
    while len(step := engine.step().emitted) < batch or not all(step):
        pass
    recorder = Recorder()
    with recorder:
        engine.step()

    def replay() -> None:
        for func, args, kwargs in recorder.calls:
            func(*args, **kwargs)

    state = [x for x in vars(engine.state).values() if torch.is_tensor(x)]
    pairs = []
    while len(pairs) < STEPS and engine.has_work:
        # Replayed calls write what they wrote before; a request's own state is kept from them.
        kept = [x.clone() for x in state]
        ops = seconds(replay)
        for x, value in zip(state, kept, strict=True):
            x.copy_(value)
        pairs.append((seconds(engine.step), ops))
    steps, ops = zip(*pairs, strict=True)
    return len(recorder.calls), statistics.median(steps), statistics.median(ops)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    torch.set_num_threads(parser.parse_args().threads)
    checkpoint = load("smollm2")
    prompt = checkpoint.tokenizer().encode_prompt(mix.own("story"))
    for name, as_stored in (("bf16", False), ("w4", True)):
        weights = checkpoint.weights(torch.bfloat16, as_stored=as_stored)
        model = Model(checkpoint.config, weights, max_rows=256, max_position=1024)
        for batch in (1, 8):
            calls, step, ops = measure(model, prompt, batch)
            print(
                f"{name}, B={batch}: {calls} calls, step {1e3 * step:.2f} ms, "
                f"ops {1e3 * ops:.2f} ms, outside {1e3 * (step - ops):.2f} ms"
            )


if __name__ == "__main__":
    main()
