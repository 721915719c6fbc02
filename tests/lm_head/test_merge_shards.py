import pytest
import torch
from bounds import assert_within
from calls import assert_raises_alike, spread
from heads import random_head
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_ops import (
    MergedShards,
    Status,
    lm_head_sample,
    lm_head_topk,
    lm_head_verify,
    merge_records,
    merge_shards,
    reference,
    sample_candidates,
    verify_chain,
)

OP = torch.ops.dflash.merge_shards
INF = float("inf")


def cuts(vocab, num_shards, seed):
    """Where shards begin and end, some of them empty."""
    g = torch.Generator().manual_seed(seed)
    inner = torch.randint(vocab + 1, (num_shards - 1,), generator=g).sort().values.tolist()
    return list(zip([0, *inner], [*inner, vocab], strict=True))


def merged(device, *tensors, **call):
    """merge_shards there, its results here; `status` is in them too."""
    call = {name: x.to(device) for name, x in call.items()}
    got = merge_shards(*(x.to(device) for x in tensors), **call)
    return MergedShards(*(x.cpu() for x in got)), call.get("status", torch.zeros(0)).cpu()


def per_shard(op, h, weight, bias, shards, **call):
    return [
        op(h, weight[a:b], bias=bias[a:b], vocab_start=a, vocab_size=len(weight), **call)
        for a, b in shards
    ]


@settings(max_examples=40)
@given(
    vocab=st.sampled_from([1, 2, 63, 64, 65, 511, 512, 513, 1500]),
    num_shards=st.sampled_from([1, 2, 3, 4, 8]),
    k=st.sampled_from([1, 2, 31, 64]),
    seed=st.integers(0, 2**31 - 1),
)
def test_shards_give_what_one_head_gives(device, vocab, num_shards, k, seed):
    h, weight, bias = random_head(seed, 5, vocab, 16, exact=True)  # ties abound
    shards = per_shard(lm_head_topk, h, weight, bias, cuts(vocab, num_shards, seed), k=k)
    got, _ = merged(device, *(torch.stack(x) for x in zip(*shards, strict=True)))
    want = lm_head_topk(h, weight, bias, k=k)
    assert torch.equal(got.ids, want.ids) and torch.equal(got.keys, want.values)
    lse = reference.lm_head_topk(h, weight, bias, k=k).lse
    assert_within(got.lse, lse, terms=lse.abs() + 1)
    if num_shards == 1:
        assert torch.equal(got.lse, want.lse)


@settings(max_examples=40)
@given(
    shards=st.sampled_from([0, 1, 2, 5]),
    rows=st.sampled_from([0, 1, 3]),
    count=st.sampled_from([0, 1, 7, 64]),
    spread_of_keys=st.sampled_from([1, 3, 1000]),
    seed=st.integers(0, 2**31 - 1),
)
def test_equals_reference(device, shards, rows, count, spread_of_keys, seed):
    """Lists in any order, with ties, absent entries and rows of -inf."""
    g = torch.Generator().manual_seed(seed)
    shape = shards, rows, count
    keys = torch.randint(-spread_of_keys, spread_of_keys + 1, shape, generator=g).float()
    keys[torch.rand(shape, generator=g) < 0.2] = -INF
    keys[:, ::2][torch.rand(keys[:, ::2].shape, generator=g) < 0.5] = -INF
    size = max(shards * rows * count, 1)
    ids = torch.randperm(size, generator=g)[: shards * rows * count].view(shape)
    ids[torch.rand(shape, generator=g) < 0.2] = -1
    values = torch.randn(shape, generator=g)
    lse = torch.randn(shards, rows, generator=g) * 20
    status = torch.zeros(rows, dtype=torch.int32)
    got, status = merged(device, keys, ids.int(), lse, values=values, status=status)
    want = reference.merge_shards(keys, ids, lse, values=values)
    assert torch.equal(got.ids, want.ids) and not status.any()
    assert torch.equal(got.keys.double(), want.keys)
    assert torch.equal(got.values.double(), want.values)
    # One exp and one multiply-add per shard, then one log.
    assert_within(got.lse, want.lse, terms=want.lse.abs().nan_to_num(posinf=0) + shards)


def sampling(rows, **laws):
    size = 2
    batch = rows // size
    call = {
        "positions": torch.arange(rows) + 3,
        "cu_verify": torch.arange(0, rows + 1, size),
        "seeds": torch.arange(batch) + 9,
    }
    for name, values in laws.items():
        dtype = torch.int64 if name == "top_k" else torch.float32
        call[name] = torch.tensor([values[b % len(values)] for b in range(batch)]).to(dtype)
    return call


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("num_shards", [1, 2, 5])
def test_merged_records_verify_as_one_head(rule, num_shards):
    """Filtered requests too, where the best 64 prove the kept set; the logits are close to one."""
    rows, vocab = 40, 700
    h, weight, bias = random_head(3, rows, vocab, 8, scale=2.0)
    ids = torch.randint(vocab, (rows, 5), generator=torch.Generator().manual_seed(1))
    ours = sampling(
        rows, temperature=[1.0, 0.0, 0.7, 1.0], top_k=[0, 0, 5, 0], top_p=[1.0, 1.0, 1.0, 0.2]
    )
    one = lm_head_verify(h, weight, ids, bias, **ours)
    parts = per_shard(lm_head_verify, h, weight, bias, cuts(vocab, num_shards, 4), ids=ids, **ours)
    merged = merge_records(parts)
    assert torch.equal(merged.values, one.values) and torch.equal(
        merged.rest_values, one.rest_values
    )
    assert torch.equal(merged.rest_ids, one.rest_ids) and torch.equal(
        merged.rest_keys, one.rest_keys
    )
    chain = {
        "tokens": ids[:, 0].roll(1),
        "record_ids": ids,
        "q_ids": ids,
        "q": torch.ones(rows, 5),
        "vocab_size": vocab,
        "max_path": 1,
        "rule": rule,
    }
    got, want = (
        verify_chain(record=merged, **chain, **ours),
        verify_chain(record=one, **chain, **ours),
    )
    proved = one.covered | (one.rest_ids >= 0)
    assert proved.all()
    assert torch.equal(got.emitted, want.emitted)
    there = want.emitted >= 0
    assert_within(got.logprobs[there], want.logprobs[there].double(), terms=20.0)


def test_merged_candidates_are_sampled_as_one_head():
    h, weight, bias = random_head(5, 12, 300, 8)
    ours = sampling(12, temperature=[0.0, 0.9, 1.0], top_k=[0, 9, 0], top_p=[1.0, 1.0, 0.3])
    shards = per_shard(lm_head_topk, h, weight, bias, cuts(300, 3, 0), k=64)
    got = merge_shards(*(torch.stack(x) for x in zip(*shards, strict=True)))
    token = sample_candidates(got.keys, got.ids, got.lse, **ours, vocab_size=300)
    assert token.covered.all()
    assert torch.equal(token.ids, lm_head_sample(h, weight, bias, **ours).ids)


def test_bad_data(device):
    nan = float("nan")
    keys = torch.tensor(
        [[[nan, 3.0], [-INF, -INF], [2.0, 1.0]], [[4.0, INF], [-INF, nan], [0.0, 5.0]]]
    )
    ids = torch.tensor([[[1, 2], [7, 8], [-2, 0]], [[5, 3], [6, 1], [2**32, 2**40]]])
    lse = torch.tensor([[1.0, nan, -INF], [nan, nan, 2.0]])
    status = torch.zeros(3, dtype=torch.int32)
    got, status = merged(device, keys, ids, lse, status=status)
    assert got.ids.tolist() == [[3, 5], [6, -1], [0, -1]]
    assert got.lse.tolist() == [1.0, -INF, 2.0]
    assert status.tolist() == [0, 0, Status.OUT_OF_RANGE]
    assert got.values.shape == (3, 0)


def test_an_id_that_is_there_twice_takes_two_places(device):
    keys = torch.tensor([[[2.0, 1.0]], [[2.0, 3.0]]])
    ids = torch.tensor([[[4, 5]], [[4, 4]]])
    got, _ = merged(device, keys, ids, torch.zeros(2, 1), values=keys * 10)
    assert got.ids.tolist() == [[4, 4]] and got.keys.tolist() == [[3, 2]]
    assert got.values.tolist() == [[30, 20]]
    got, _ = merged(device, keys[:, :, :1], ids[:, :, :1], torch.zeros(2, 1))
    assert got.ids.tolist() == [[4]]
    twice = torch.cat([keys[:, :, :1]] * 2, 2), torch.full((2, 1, 2), 4)
    got, _ = merged(device, *twice, torch.zeros(2, 1), values=twice[0] * 10)
    assert got.ids.tolist() == [[4, 4]] and got.values.tolist() == [[20, 20]]


def make_call(device="cpu"):
    g = torch.Generator().manual_seed(0)
    call = {
        "keys": torch.randn(3, 4, 5, generator=g),
        "ids": torch.randint(100, (3, 4, 5), generator=g),
        "lse": torch.randn(3, 4, generator=g),
        "values": torch.randn(3, 4, 5, generator=g),
        "status": torch.zeros(4).int(),
    }
    return {name: x.to(device) for name, x in call.items()}


def test_strided_in_place(device):
    call = make_call(device)
    want = merge_shards(**call)
    call |= {name: spread(call[name]) for name in ("keys", "ids", "lse", "values")}
    out = MergedShards(*(spread(torch.zeros_like(x)) for x in want))
    assert merge_shards(**call, out=out) is out
    assert all(torch.equal(a, b) for a, b in zip(out, want, strict=True))


def test_addresses_past_32_bits(device):
    buffer = torch.empty(2**31 + 8, dtype=torch.float32, device=device)
    keys = buffer.as_strided((2, 1, 1), (2**31 + 3, 1, 1))
    keys.copy_(torch.tensor([1.0, 2.0]).view(2, 1, 1))
    ids = torch.tensor([[[4]], [[9]]], device=device)
    got = merge_shards(keys, ids, torch.zeros(2, 1, device=device))
    assert got.ids.tolist() == [[9]]


# fmt: off
WRONG = [
    ("keys", torch.zeros(3, 4), ValueError, "keys must have shape [S, Tv, K] = [*, *, *], got [3, 4]"),
    ("keys", torch.zeros(3, 4, 65), ValueError, "K must be at most 64, got 65"),
    ("keys", torch.zeros(3, 4, 5).half(), TypeError, "keys must be float32, got float16"),
    ("ids", torch.zeros(3, 4, 6).int(), ValueError, "ids must have shape [S, Tv, K] = [3, 4, 5], got [3, 4, 6]"),
    ("lse", torch.zeros(4, 3), ValueError, "lse must have shape [S, Tv] = [3, 4], got [4, 3]"),
    ("values", torch.zeros(2, 4, 5), ValueError, "values must have shape [S, Tv, K] = [3, 4, 5], got [2, 4, 5]"),
    ("status", torch.zeros(3).int(), ValueError, "status must have shape [Tv] = [4], got [3]"),
]
# fmt: on


@pytest.mark.parametrize(("name", "value", "error", "text"), WRONG)
def test_names_what_is_wrong(name, value, error, text):
    assert_raises_alike(merge_shards, OP, make_call() | {name: value}, {}, error, text)


def test_names_a_wrong_output():
    call = make_call()
    out = MergedShards(*(torch.zeros_like(x) for x in merge_shards(**call)))
    text = "merge_shards: out_ids must have shape [Tv, K] = [4, 5], got [4, 4]"
    bad = out._replace(ids=out.ids[:, 1:])
    with pytest.raises(ValueError) as from_python:
        merge_shards(**call, out=bad)
    with pytest.raises(RuntimeError) as from_op:
        OP.out(**call, **{f"out_{name}": x for name, x in bad._asdict().items()})
    assert str(from_python.value) == str(from_op.value) == text


def test_opcheck_and_compile(device):
    call = make_call(device)
    out = {f"out_{n}": torch.zeros_like(x) for n, x in merge_shards(**call)._asdict().items()}
    args = [call.pop(name) for name in ("keys", "ids", "lse")]
    torch.library.opcheck(OP.default, args, call)
    torch.library.opcheck(OP.default, args, {})
    torch.library.opcheck(OP.out, args, call | out)
    compiled = torch.compile(merge_shards, fullgraph=True)
    for a, b in zip(compiled(*args, **call), merge_shards(*args, **call), strict=True):
        assert torch.equal(a, b)
