"""Rows that lie more than 2^31 and 2^32 elements apart, and vocabularies whose rows add up to as much:
each tensor whose strides verification, candidates and heads take, one after another. The memory is
virtual: few pages of it are touched."""

import pytest
import torch
from chains import RULES

from dflash_ops import (
    Verified,
    accept_match,
    lm_head_gather,
    lm_head_sample,
    lm_head_topk,
    lm_head_verify,
    sample_candidates,
    sample_logits,
    verify_chain,
    verify_tree,
)

STRIDE, ROWS, VOCAB = 2**31, 3, 100


def far(x):
    """A copy of x [3, ..] whose rows are 2^31 elements apart; ids as int32."""
    x = x if x.is_floating_point() else x.int()
    buffer = torch.empty(2 * STRIDE + x[0].numel(), dtype=x.dtype, device=x.device)
    copy = buffer.as_strided(x.shape, (STRIDE, *x.stride()[1:]))
    return copy.copy_(x)


def chain():
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(ROWS, VOCAB, generator=g)
    top = (logits * 2).topk(4, dim=1)
    return {
        "tokens": torch.tensor([0, int(top.indices[0, 0]), int(top.indices[1, 1])]),
        "logits": logits,
        "positions": torch.arange(ROWS),
        "cu_verify": torch.tensor([0, ROWS]),
        "q": top.values.softmax(dim=1),
        "q_ids": top.indices,
        "temperature": torch.ones(1),
        "seeds": torch.ones(1).long(),
    }


def head():
    call = chain()
    h = torch.randn(ROWS, 16, generator=torch.Generator().manual_seed(1))
    weight = torch.randn(ROWS, 16, generator=torch.Generator().manual_seed(2))  # V = 3
    laws = {k: call[k] for k in ("positions", "cu_verify", "temperature", "seeds")}
    return {"h": h, "weight": weight, "ids": call["q_ids"] % ROWS, **laws}


def candidates():
    call = chain()
    best = call["logits"].topk(32, dim=1)
    laws = {k: call[k] for k in ("positions", "cu_verify", "temperature", "seeds")}
    lse = call["logits"].logsumexp(dim=1)
    return {"values": best.values, "cand_ids": best.indices, "lse": lse, **laws}


def run_rejection(rule):
    def run(**call):
        if rule in ("token", "block"):
            return verify_chain(**call, rule=rule, max_path=2, probe=True)
        return verify_tree(
            **call,
            parents=torch.arange(ROWS, device=call["tokens"].device) - 1,
            rule=rule,
            max_path=2,
            probe=True,
        )

    return run


def run_match(tokens, logits, q, q_ids, **laws):
    ids = sample_logits(logits, **laws).ids
    return accept_match(tokens, laws["cu_verify"], ids, max_path=2)


def without_ids(function, **more):
    return lambda ids, positions, cu_verify, temperature, seeds, **call: function(**call, **more)


CASES = [
    *((r, run_match if r == "match" else run_rejection(r), chain, n) for r in RULES for n in ("tokens", "logits", "q", "q_ids")),
    *(("lm_head_verify", lm_head_verify, head, n) for n in ("h", "weight", "ids")),
    *(("lm_head_topk", without_ids(lm_head_topk, k=2), head, n) for n in ("h", "weight")),
    *(("lm_head_sample", lambda ids, **call: lm_head_sample(**call), head, n) for n in ("h", "weight")),
    *(
        (
            "lm_head_gather",
            lambda h, weight, ids, **_: lm_head_gather(h, weight, ids),
            head,
            n,
        )
        for n in ("h", "weight", "ids")
    ),
    *(("sample_candidates", sample_candidates, candidates, n) for n in ("values", "cand_ids")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("run", "make", "name"), [c[1:] for c in CASES], ids=[f"{c[0]} {c[3]}" for c in CASES]
)
def test_inputs(device, run, make, name):
    call = {key: x.to(device) for key, x in make().items()}
    want = run(**call)
    got = run(**call | {name: far(call[name])})
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("rule", [r for r in RULES if r != "match"])
def test_outputs(device, rule):
    """Three requests, whose rows of every output are as far apart; with all that a probe writes."""
    call = chain() | {"cu_verify": torch.arange(ROWS + 1)}
    call |= {"temperature": torch.ones(ROWS), "seeds": torch.arange(ROWS)}
    call = {key: x.to(device) for key, x in call.items()}
    want = run_rejection(rule)(**call)
    out = Verified(
        *(
            x.clone() if name == "counters" else far(torch.zeros_like(x))
            for name, x in want._asdict().items()
        )
    )
    run_rejection(rule)(**call, out=out)
    assert all(torch.equal(a.to(b.dtype), b) for a, b in zip(out, want, strict=True))


@pytest.mark.parametrize("rule", RULES)
def test_a_row_times_the_vocabulary_past_32_bits(device, rule):
    """963 requests of 16 rows over 151936 ids are past 2^31 elements: the last rows of such logits,
    every other one a view of the same row."""
    vocab, rows = 151_936, 15_408
    buffer = torch.empty(rows, vocab, dtype=torch.float16, device=device)  # two rows are touched
    assert buffer.numel() > 2**31
    buffer[0], buffer[-1] = -5.0, -5.0
    buffer[0, 7], buffer[-1, 150_000] = 5.0, 5.0
    picked = torch.tensor([0, rows - 1, 0, rows - 1])
    call = {
        "tokens": torch.tensor([3, 7, 150_000, 9]),
        "logits": buffer,
        "verify_rows": picked,
        "positions": torch.arange(4),
        "cu_verify": torch.tensor([0, 4]),
        "temperature": torch.zeros(1),
        "seeds": torch.zeros(1).long(),
        "q": torch.ones(4, 1),
        "q_ids": torch.tensor([[7], [150_000], [9], [0]]),
    }
    call = {key: x.to(device) for key, x in call.items()}
    if rule == "match":
        got = run_match(**call)
    elif rule in ("token", "block"):
        got = verify_chain(**call, rule=rule, max_path=3)
    else:
        parents = torch.arange(4, device=device) - 1
        got = verify_tree(**call, parents=parents, rule=rule, max_path=3)
    assert got.emitted[0, :3].tolist() == [7, 150_000, 7] and got.num_accepted.tolist() == [2]
