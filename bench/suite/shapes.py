"""What is timed: the benchmarks' own cases at the shapes of three models, small ones on request."""

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import bench_attention
import bench_gemm
import torch
from case import Case


@dataclass(frozen=True)
class Model:
    """One rank's share; `heads` are those of queries."""

    name: str
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    vocab: int
    head_dim: int = 128
    rows: tuple[int, ...] = (1, 8, 32, 64)
    keys: tuple[int, ...] = (4096, 32768)

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """[outputs, inputs]"""
        dim = self.head_dim
        return {
            "qkv": ((self.heads + 2 * self.kv_heads) * dim, self.hidden),
            "o": (self.hidden, self.heads * dim),
            "gate, up": (2 * self.inner, self.hidden),
            "down": (self.hidden, self.inner),
        }

    def small(self) -> "Model":
        """The same proportions of heads, for a run that only shows that everything works."""
        group = self.heads // self.kv_heads
        sizes = {"hidden": 64, "inner": 128, "heads": 2 * group, "kv_heads": 2, "vocab": 8192}
        return replace(self, **sizes, head_dim=32, rows=(1, 8), keys=(256,))


# The third: heads are those of Qwen3.8-27B-DFlash2, the drafter; hidden, inner and vocabulary are
# the target's too.
MODELS = (
    Model("Qwen3-8B", 4096, 12288, 32, 8, 151_936),
    Model("Llama-3.1-70B, TP 8", 8192, 28672 // 8, 64 // 8, 8 // 8, 128_256 // 8),
    Model("Qwen3.8-27B with DFlash 2", 5120, 17408, 32, 8, 248_320),
)
OWN = "as benchmarked"  # cases that have no model's sizes, or those of one in their name
RESIZED = ("bench_gemm", "bench_attention", "bench_lm_head")
# These are no ops on their own, or need what a GPU machine may not have.
OTHERS = ("bench_decode", "bench_ptxrun")


def models(is_quick: bool) -> list[Model]:
    return [model.small() if is_quick else model for model in MODELS]


def resized(module: ModuleType, device: torch.device, **sizes: object) -> Iterator[Case]:
    """A benchmark's cases with other values of the constants that hold its sizes."""
    before = {name: vars(module)[name] for name in sizes}
    vars(module).update(sizes)
    try:
        yield from module.cases(device)
    finally:
        vars(module).update(before)


def gemms(model: Model, device: torch.device) -> Iterator[Case]:
    for outputs, depth in model.matrices.values():
        yield from bench_gemm.gemm_cases(device, outputs, depth, model.rows)


def attention(model: Model, device: torch.device) -> Iterator[Case]:
    group = model.heads // model.kv_heads
    shape = {"num_kv_heads": model.kv_heads, "group": group, "dim": model.head_dim}
    for keys in model.keys:
        for rows in (1, 8, 16):
            yield bench_attention.attention_chain(device, rows, keys, **shape)


def heads(model: Model, device: torch.device) -> Iterator[Case]:
    module = importlib.import_module("bench_lm_head")
    return resized(module, device, HIDDEN=model.hidden, VOCAB=model.vocab)


def other_benchmarks() -> list[str]:
    stems = sorted(path.stem for path in Path(bench_gemm.__file__).parent.glob("bench_*.py"))
    return [stem for stem in stems if stem not in (*RESIZED, *OTHERS)]


def others(stem: str, device: torch.device, models: list[Model]) -> Iterator[Case]:
    """With the largest vocabulary, and the MLP of the first model where weights are quantised."""
    module = importlib.import_module(stem)
    shapes = tuple(models[0].matrices[name] for name in ("gate, up", "down"))
    sizes = {"VOCAB": models[-1].vocab, "SHAPES": shapes, "ROWS": models[0].rows}
    return resized(module, device, **{k: v for k, v in sizes.items() if k in vars(module)})


def small_ones(device: torch.device) -> Iterator[Case]:
    """Of the resized benchmarks: cases that do not depend on a model."""
    yield bench_attention.merge(device, rows=64, num_heads=32, dim=128)
    for rows in (1, 64):
        yield bench_gemm.norm(device, rows)
    yield bench_gemm.packing(device, inverse=False)
    yield bench_gemm.packing(device, inverse=True)


def groups(device: torch.device, is_quick: bool) -> Iterator[tuple[str, str, Iterator[Case]]]:
    """Model, what, cases. What decides speed comes first: time may run out."""
    chosen = models(is_quick)
    for what, make in (("gemm", gemms), ("attention", attention), ("head", heads)):
        for model in chosen:
            yield model.name, what, make(model, device)
    yield OWN, "small", small_ones(device)
    for stem in other_benchmarks():
        yield OWN, stem.removeprefix("bench_"), others(stem, device, chosen)
