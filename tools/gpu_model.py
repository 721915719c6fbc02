"""Modelled times of dflash's CUDA kernels on A100, H100, H200 and B200, at the shapes of Qwen3-8B.

python tools/gpu_model.py [verify_gemm|tree_attention] [--rows 1 8 32] [--sample 2]

A model, not a measurement: tools/ptxrun/README.md says what it knows. Grids have their real size; a
sample of their CTAs is executed, and their counters are multiplied by what they stand for.
"""

import argparse
from collections.abc import Iterator
from typing import Any

import ptxrun
import torch

from dflash_ops import tree_attention, verify_gemm

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, MLP = 32, 8, 128, 4096, 12288
WEIGHTS = {
    "qkv": ((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN),
    "o": (HIDDEN, HEADS * HEAD_DIM),
    "gate, up": (2 * MLP, HIDDEN),
    "down": (HIDDEN, MLP),
}


def gemm_calls(rows: int) -> Iterator[tuple[str, Any]]:
    for name, (outputs, depth) in WEIGHTS.items():
        weight = torch.zeros(outputs, depth, dtype=torch.bfloat16)
        x = torch.zeros(rows, depth, dtype=torch.bfloat16)
        yield (
            f"verify_gemm, {name}: {rows} x {depth} by {outputs}",
            lambda x=x, weight=weight: verify_gemm(x, weight),
        )


def attention_calls(rows: int, keys: int = 32768, page: int = 16) -> Iterator[tuple[str, Any]]:
    pages = (keys + rows + page - 1) // page
    caches = torch.zeros(2, pages, page, KV_HEADS, HEAD_DIM, dtype=torch.bfloat16)
    q = torch.zeros(rows, HEADS, HEAD_DIM, dtype=torch.bfloat16)
    layout = {
        "block_table": torch.arange(pages).reshape(1, -1),
        "cu_rows": torch.tensor([0, rows]),
        "ctx_lens": torch.tensor([keys]),
    }
    yield (
        f"tree_attention: {rows} rows, {keys} keys",
        lambda: tree_attention(q, caches[0], caches[1], **layout),
    )


CALLS = {"verify_gemm": gemm_calls, "tree_attention": attention_calls}


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("op", nargs="*", choices=[*CALLS, []])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--sample", type=int, default=2, help="CTAs of each grid that run")
    options = parser.parse_args()
    for op in options.op or CALLS:
        for rows in options.rows:
            for name, call in CALLS[op](rows):
                print(f"\n{name} (a model)")
                print(ptxrun.model_table(ptxrun.model_of(call, options.sample)))


if __name__ == "__main__":
    main()
