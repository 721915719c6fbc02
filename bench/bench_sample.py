from collections.abc import Iterator

import peers as installed
import torch
from case import Case
from torch import Tensor

from dflash_ops import sample_candidates, sample_logits


def cases(device: torch.device) -> Iterator[Case]:
    for rows in (1, 16):
        for name, law in LAWS.items():
            yield logits_case(device, rows, name, law)
    yield candidates_case(device, 256)


LAWS: dict[str, dict[str, float]] = {
    "greedy": {},
    "T=1": {"temperature": 1.0},
    "T=0.7, top_k=20, top_p=0.8": {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
    "T=1, top_p=0.95": {"temperature": 1.0, "top_p": 0.95},
}
VOCAB = 151_936


def call(device: torch.device, rows: int, law: dict[str, float]) -> dict[str, Tensor]:
    cu_verify = torch.arange(rows + 1, device=device)
    state = {
        name: torch.full((rows,), value, dtype=torch.int64 if name == "top_k" else torch.float32)
        for name, value in law.items()
    }
    state |= {"seeds": torch.arange(rows)} if law else {}
    return {
        "positions": cu_verify[:-1],
        "cu_verify": cu_verify,
        **{name: value.to(device) for name, value in state.items()},
    }


def logits_case(device: torch.device, rows: int, name: str, law: dict[str, float]) -> Case:
    """Logits with a peaked head and a long tail, as a language model's."""
    g = torch.Generator().manual_seed(0)
    logits = (torch.randn(rows, VOCAB, generator=g) * 3).to(device)
    args = call(device, rows, law)
    return Case(
        op="sample_logits",
        name=f"{name}, rows={rows}, V={VOCAB}",
        ours=lambda: sample_logits(logits, **args),
        peers={
            "eager softmax, sort and multinomial": lambda: eager(logits, **law),
            **installed.sampling(logits, **law),
        },
        bytes_moved=logits.nbytes,
        check=same_if_greedy if not law else nothing_to_compare,
    )


def candidates_case(device: torch.device, rows: int) -> Case:
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, 4096, generator=g) * 3
    values, ids = (x.to(device) for x in logits.topk(64))
    lse = logits.logsumexp(dim=1).to(device)
    args = call(device, rows, {"temperature": 0.7, "top_k": 20, "top_p": 0.8})
    return Case(
        op="sample_candidates",
        name=f"K=64, top_k=20, top_p=0.8, rows={rows}",
        ours=lambda: sample_candidates(values, ids, lse, **args),
        peers={},
        bytes_moved=values.nbytes + ids.nbytes,
        check=nothing_to_compare,
    )


def same_if_greedy(ours: tuple[Tensor, ...], peer: tuple[Tensor, ...]) -> None:
    assert torch.equal(ours[0], peer[0])


def nothing_to_compare(ours: object, peer: object) -> None:
    """The peer draws other noise; tests/sample compares the draws with float64."""


def eager(
    logits: Tensor, temperature: float = 0.0, top_k: float = 0, top_p: float = 1.0
) -> tuple[Tensor, Tensor]:
    """What engines write in PyTorch."""
    logprobs = logits.log_softmax(dim=1)
    if temperature == 0:
        ids = logits.argmax(dim=1)
        return ids, logprobs.gather(1, ids[:, None])
    z = logits / temperature
    if top_k or top_p < 1:
        z, order = z.sort(dim=1, descending=True)
        if top_k:
            z[:, int(top_k) :] = -torch.inf
        p = z.softmax(dim=1)
        p = p.masked_fill(p.cumsum(dim=1) - p >= top_p, 0)
        ids = order.gather(1, p.multinomial(1))
    else:
        ids = z.softmax(dim=1).multinomial(1)
    return ids[:, 0], logprobs.gather(1, ids)
