"""Row invariance at the models' own shapes: do rows have the same bits in calls of other sizes?"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from dflash_ops import lm_head_topk, pack_weight, tree_attention, verify_gemm

from .shapes import Model

MOST_ROWS = 64
COUNTS = (1, 2, 7, 8, 9, 16, 31, 32, 33)
PAGE_SIZE, CONTEXT = 16, 3001  # keys: not whole blocks


def equal_rows(run: Callable[[int, int], tuple[Tensor, ...]], counts: tuple[int, ...], most: int):
    """run(first, end): results of these rows. So many at either end, against all `most` at once."""
    whole = run(0, most)
    for count in counts:
        for first in (0, most - count):
            part = run(first, first + count)
            rows = slice(first, first + count)
            equal = all(torch.equal(a, b[rows]) for a, b in zip(part, whole, strict=True))
            yield count, first, equal


def products(model: Model, device: torch.device) -> Iterator[dict]:
    g = torch.Generator(device).manual_seed(0)

    def random(*shape: int) -> Tensor:
        x = torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(generator=g)
        return x / shape[-1] ** 0.5

    matrices = model.matrices | {"head": (model.vocab, model.hidden)}
    for name, (outputs, depth) in matrices.items():
        x, weight = random(MOST_ROWS, depth), pack_weight(random(outputs, depth))

        def gemm(first: int, end: int, x=x, weight=weight, n=outputs) -> tuple[Tensor, ...]:
            return (verify_gemm(x[first:end], weight, num_outputs=n),)

        def head(first: int, end: int, x=x, weight=weight, n=outputs) -> tuple[Tensor, ...]:
            return lm_head_topk(x[first:end], weight, k=16, vocab_size=n)

        op, run = ("lm_head_topk", head) if name == "head" else ("verify_gemm", gemm)
        for count, first, equal in equal_rows(run, COUNTS, MOST_ROWS):
            yield {"op": op, "case": name, "rows": count, "first": first, "equal": equal}


def attention(model: Model, device: torch.device) -> Iterator[dict]:
    """The last 16 rows of one request, or some of them: the keys before are in the cache."""
    g = torch.Generator(device).manual_seed(0)
    rows, pages = 16, -(-CONTEXT // PAGE_SIZE) + 1
    like = {"dtype": torch.bfloat16, "device": device}
    shape = 2, pages, PAGE_SIZE, model.kv_heads, model.head_dim
    caches = torch.empty(shape, **like).normal_(generator=g)
    q = torch.empty(rows, model.heads, model.head_dim, **like).normal_(generator=g)
    table = torch.arange(pages, device=device)[None]

    def run(first: int, end: int) -> tuple[Tensor, ...]:
        cu_rows = torch.tensor([0, end - first], device=device)
        ctx_lens = torch.tensor([CONTEXT - rows + first], device=device)
        call = {"block_table": table, "cu_rows": cu_rows, "ctx_lens": ctx_lens}
        return tree_attention(q[first:end], caches[0], caches[1], **call)

    for count, first, equal in equal_rows(run, (1, 2, 5, 8), rows):
        found = {"rows": count, "first": first, "equal": equal}
        yield {"op": "tree_attention", "case": f"{CONTEXT} keys", **found}


def rows(models: list[Model], device: torch.device) -> Iterator[dict]:
    """A part that fails has its error as its last row."""
    for model in models:
        for part in (attention, products):
            try:
                for row in part(model, device):
                    yield {"model": model.name, **row}
            except Exception as error:
                text = f"{type(error).__name__}: {error}"[:300]
                row = {"op": part.__name__, "case": text, "rows": 0, "first": 0, "equal": False}
                yield {"model": model.name, **row}
