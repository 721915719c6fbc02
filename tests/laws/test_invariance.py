"""The same seeds give the same tokens whatever the slot, the batch, its order, the padding and the
number of threads: one body for every op that decides or draws. Requests without drafts stand at the
front, in the middle and at the end; greedy and sampled ones are mixed."""

import pytest
import torch

from dflash_ops import (
    accept_match,
    lm_head_sample,
    lm_head_topk,
    lm_head_verify,
    sample_candidates,
    sample_logits,
    select_path,
    verify_chain,
    verify_tree,
)

SIZES = [1, 4, 0, 6, 1, 3, 9, 0, 5, 1]
VOCAB, HIDDEN, SLOTS = 200, 16, 3
NAN = float("nan")
G = torch.Generator().manual_seed(0)
WEIGHT = torch.randn(VOCAB, HIDDEN, generator=G)


def requests():
    """One dict a request: what it alone knows. State is a row of [R] tensors."""
    g = torch.Generator().manual_seed(1)
    found = []
    for b, n in enumerate(SIZES):
        h = torch.randn(n, HIDDEN, generator=g)
        top = (h @ WEIGHT.T + torch.randn(n, VOCAB, generator=g)).topk(8, dim=1)
        parents = [-1] + [int(torch.randint(i, (), generator=g)) for i in range(1, n)]
        depth = []
        for i in range(n):
            depth.append(depth[parents[i]] + 1 if i else 0)
        drafts = top.indices.gather(1, torch.multinomial(top.values.softmax(1), 1, generator=g))
        found.append(
            {
                "h": h,
                "logits": h @ WEIGHT.T,
                "tokens": torch.cat([torch.zeros(min(n, 1)).long(), drafts[:-1, 0]]),
                "parents": torch.tensor(parents[:n], dtype=torch.int64),
                "chain": torch.arange(n) + 30 * b,
                "tree": torch.tensor(depth, dtype=torch.int64) + 30 * b,
                "q": top.values.softmax(dim=1),
                "q_ids": top.indices,
                "state": {
                    "temperature": [0.0, 1.0, 0.7, 1.5][b % 4],
                    "top_k": [0, 0, 5, 0, 40][b % 5],
                    "top_p": [1.0, 0.9, 1.0][b % 3],
                    "seeds": 1000 + 17 * b,
                    "ctx_lens": 30 * b,
                },
                "values": torch.randn(SLOTS, 8, generator=g),
                "cand_ids": torch.randperm(VOCAB, generator=g)[: 8 * SLOTS].view(SLOTS, 8),
                "hidden": torch.randn(SLOTS, HIDDEN, generator=g),
                "anchor": torch.tensor([b]),
            }
        )
    return found


PER_ROW = ("h", "logits", "tokens", "parents", "chain", "tree", "q", "q_ids")
PER_REQUEST = ("values", "cand_ids", "hidden", "anchor")
DTYPES = {"temperature": torch.float32, "top_p": torch.float32}


def padding(like, rows):
    """A request of the batch that is none: NaN, and ids that must not be read."""

    def wrong(x, n):
        return torch.full((n, *x.shape[1:]), NAN if x.is_floating_point() else 2**40, dtype=x.dtype)

    return {k: wrong(like[k], rows) for k in PER_ROW} | {
        k: wrong(like[k], len(like[k])) for k in PER_REQUEST
    }


def batch_of(entries, slots):
    """entries: requests, or the number of rows of a padded one; slots: state row of each request."""
    real = requests()
    rows = [real[e] if e >= 0 else padding(real[1], -e - 1) for e in entries]
    state_rows = max(slots.values(), default=0) + 1
    state = {
        name: torch.full(
            (state_rows,), NAN if name in DTYPES else -7, dtype=DTYPES.get(name, torch.int64)
        )
        for name in real[0]["state"]
    }
    for b, slot in slots.items():
        for name, value in real[b]["state"].items():
            state[name][slot] = value
    call = {k: torch.cat([real[0][k][:0], *(r[k] for r in rows)]) for k in PER_ROW}
    call |= {k: torch.stack([real[0][k], *(r[k] for r in rows)])[1:] for k in PER_REQUEST}
    call["cu"] = torch.tensor([0, *(len(r["tokens"]) for r in rows)]).cumsum(0)
    call["req_rows"] = torch.tensor([slots[e] if e >= 0 else -1 for e in entries]).long()
    return call | {"state": state}


def sampling(call, positions, *names):
    state = {k: call["state"][k] for k in ("temperature", "seeds", *names)}
    return {
        "positions": call[positions],
        "cu_verify": call["cu"],
        "req_rows": call["req_rows"],
        **state,
    }


def by_request(call, *outputs):
    """Outputs of rows, as those of each request."""
    cu = call["cu"].tolist()
    return [[x[cu[b] : cu[b + 1]] for x in outputs] for b in range(len(cu) - 1)]


def run_chain(rule):
    def run(call):
        laws = sampling(call, "chain", "top_k", "top_p")
        q = {"q": call["q"], "q_ids": call["q_ids"]}
        got = verify_chain(call["tokens"], call["logits"], **laws, **q, rule=rule, max_path=8)
        return [[got.emitted[b], got.logprobs[b]] for b in range(len(got.emitted))]

    return run


def run_tree(rule, replacement=False):
    def run(call):
        laws = sampling(call, "tree", "top_k", "top_p")
        q = {"q": call["q"], "q_ids": call["q_ids"], "replacement": replacement}
        args = (call["tokens"], call["logits"], call["parents"])
        got = verify_tree(*args, **laws, **q, rule=rule, max_path=8)
        return [[got.emitted[b], got.logprobs[b]] for b in range(len(got.emitted))]

    return run


def run_match(call):
    ids, logprobs = sample_logits(call["logits"], **sampling(call, "tree", "top_k", "top_p"))
    got = accept_match(call["tokens"], call["cu"], ids, call["parents"], max_path=8)
    rows = by_request(call, ids, logprobs)
    return [[got.emitted[b], *rows[b]] for b in range(len(rows))]


def run_head_verify(call):
    laws = sampling(call, "chain", "top_k", "top_p")
    return by_request(call, *lm_head_verify(call["h"], WEIGHT, call["q_ids"], **laws))


def run_head_sample(call):
    laws = sampling(call, "chain", "top_k", "top_p")
    return by_request(call, *lm_head_sample(call["h"], WEIGHT, **laws))


def run_candidates(call):
    best = lm_head_topk(call["h"], WEIGHT, k=32)
    laws = sampling(call, "chain", "top_k", "top_p")
    return by_request(call, *sample_candidates(best.values, best.ids, best.lse, **laws))


def run_select(call):
    book = torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(2))
    got = select_path(
        call["values"],
        call["cand_ids"],
        call["hidden"],
        call["anchor"][:, 0],
        book,
        book.flip(0),
        req_rows=call["req_rows"],
        **{k: call["state"][k] for k in ("temperature", "seeds", "ctx_lens")},
    )
    return [[got.tokens[b], got.q[b]] for b in range(len(got.tokens))]


OPS = {
    "verify_chain token": run_chain("token"),
    "verify_chain block": run_chain("block"),
    "verify_tree rrs": run_tree("rrs"),
    "verify_tree rrs with replacement": run_tree("rrs", True),
    "verify_tree traversal": run_tree("traversal"),
    "verify_tree traversal with replacement": run_tree("traversal", True),
    "verify_tree target_only": run_tree("target_only"),
    "verify_tree typical": run_tree("typical"),
    "accept_match sample_logits": run_match,
    "lm_head_verify": run_head_verify,
    "lm_head_sample": run_head_sample,
    "lm_head_topk sample_candidates": run_candidates,
    "select_path": run_select,
}
N = len(SIZES)
IDENTITY = {b: b for b in range(N)}
BATCHES = {
    "reversed": ([*range(N)][::-1], IDENTITY),
    "other slots": ([*range(N)], {b: 3 * (N - b) + 1 for b in range(N)}),
    "padded": ([-1, 3, -6, 0, 1, -3, 6, 2, -1, 5, 4, 7, -2, 8, 9, -9], IDENTITY),
    "some": ([6, 1], {6: 0, 1: 5}),
    **{f"{b} alone": ([b], {b: 0}) for b in range(N)},
}


@pytest.mark.parametrize("name", OPS)
def test_a_request_has_its_tokens_in_every_batch(name):
    run, whole = OPS[name], batch_of(range(N), IDENTITY)
    want = run(whole)
    drawn = [int(x[0].max()) for x in want if x[0].numel() and not x[0].is_floating_point()]
    assert name == "lm_head_verify" or len(set(drawn)) > 3  # something was decided at all
    for label, (entries, slots) in BATCHES.items():
        for e, got in zip(entries, run(batch_of(entries, slots)), strict=True):
            for x, y in zip(got, want[e] if e >= 0 else [], strict=False):
                assert torch.equal(x, y), (label, e)


@pytest.mark.parametrize("name", OPS)
def test_a_request_has_its_tokens_with_every_number_of_threads(name):
    """Many requests, so that there is work for each thread; and again in the same process."""
    entries = [*range(N)] * 10
    call = batch_of(entries, IDENTITY)
    threads, run = torch.get_num_threads(), OPS[name]
    try:
        found = []
        for count in (1, 2, 3, 7, 1):
            torch.set_num_threads(count)
            found.append(run(call))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        for got, want in zip(other, found[0], strict=True):
            assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))
    one = OPS[name](batch_of(range(N), IDENTITY))
    for i, got in enumerate(found[0]):
        assert all(torch.equal(x, y) for x, y in zip(got, one[i % N], strict=True))


@pytest.mark.parametrize("name", [n for n in OPS if n.startswith(("verify", "accept"))])
@pytest.mark.parametrize("entries", [[], [2], [2, 7, 2], [-1, -1], [0, 4, 9]])
def test_batches_without_drafts(name, entries):
    """No request, none with a row, none with a draft."""
    got = OPS[name](batch_of(entries, IDENTITY))
    for e, x in zip(entries, got, strict=True):
        assert (int((x[0] >= 0).sum()) == 1) == (e in (0, 4, 9))
