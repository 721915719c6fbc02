import math

import pytest
import torch
from attended import attend
from bounds import assert_within
from hypothesis import given, settings
from hypothesis import strategies as st
from sequences import (
    LENGTHS,
    PAGE_SIZES,
    make_call,
    moved,
    random_sequence,
    same_bits,
)

from dflash_ops import Attended, tree_attention

OP = torch.ops.dflash.tree_attention
FLOATS = [torch.float32, torch.bfloat16, torch.float16]
QUANTISED = [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8]


def test_one_key_gives_its_value(device):
    call = make_call([(0, 1, False)])
    got = attend(device, **call)
    v = call["v_cache"][call["block_table"][0, 0], 0].repeat_interleave(2, dim=0)
    assert torch.equal(got.out[0], v)


def test_equal_keys_give_the_mean(device):
    """Values 0 .. n - 1 under equal scores: exact sums of small integers."""
    call = make_call([(700, 1, False)], heads=(1, 1), dims=(8, 8))
    call["q"].zero_()
    table, size = call["block_table"][0], 16
    for i in range(701):
        call["v_cache"][table[i // size], i % size] = float(i % 8)
    got = attend(device, **call)
    total = torch.tensor(sum(i % 8 for i in range(701)), dtype=torch.float32)
    assert torch.equal(got.out[0, 0], (total / 701).expand(8))


@pytest.mark.parametrize("causal", [True, False])
def test_sees_exactly_the_window(device, causal):
    """One-hot values show the weight of every position."""
    call = make_call([(60, 8, False)], heads=(1, 1), dims=(8, 72))
    call["q"].zero_()
    table = call["block_table"][0]
    for i in range(68):
        call["v_cache"][table[i // 16], i % 16] = torch.nn.functional.one_hot(
            torch.tensor(i), 72
        ).float()
    for left, right in ((-1, -1), (0, -1), (5, 2), (3, 0), (66, 70)):
        got = attend(device, **call, causal=causal, window_left=left, window_right=right)
        s, p = torch.arange(60, 68)[:, None], torch.arange(72)
        sees = (p < (s + 1 if causal else 68)) & (p < 68)
        sees = sees & ((left < 0) | (s - p <= left)) & ((right < 0) | (p - s <= right))
        assert torch.equal(got.out[:, 0] > 0, sees)


@settings(max_examples=40)
@given(
    requests=st.lists(
        st.tuples(
            st.sampled_from(LENGTHS),
            st.sampled_from([0, 1, 2, 5, 33, 65]),
            st.booleans(),
        ),
        min_size=1,
        max_size=3,
    ),
    heads=st.sampled_from([(1, 1), (4, 2), (3, 3), (6, 1), (7, 1)]),
    dims=st.sampled_from([(8, 8), (16, 24), (64, 64), (96, 40)]),
    page_size=st.sampled_from(PAGE_SIZES),
    dtype=st.sampled_from(FLOATS),
    options=st.fixed_dictionaries(
        {
            "causal": st.booleans(),
            "window_left": st.sampled_from([-1, 0, 7, 64, 600]),
            "window_right": st.sampled_from([-1, -1, 0, 3]),
            "scale": st.sampled_from([None, 0.5, 30.0]),
            "softcap": st.sampled_from([0.0, 3.0]),
        }
    ),
    extras=st.sets(st.sampled_from(["sinks", "kv_start", "kv_lens"])),
    seed=st.integers(0, 2**31 - 1),
)
@pytest.mark.sm90
def test_equals_reference(device, requests, heads, dims, page_size, dtype, options, extras, seed):
    call = make_call(requests, heads, dims, page_size, dtype, seed=seed) | options
    g = torch.Generator().manual_seed(seed)
    if "sinks" in extras:
        call["sinks"] = torch.randn(heads[0], generator=g)
    if "kv_start" in extras:
        call["kv_start"] = torch.randint(0, 70, (len(requests),), generator=g)
    if "kv_lens" in extras:
        call["kv_lens"] = call.pop("ctx_lens") + call["cu_rows"].diff()
    attend(device, **call)


@pytest.mark.parametrize("dim", [64, 80, 96, 128, 192, 256])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.sm90
def test_head_dims(device, dim, dtype):
    attend(
        device, **make_call([(70, 3, False), (9, 20, True)], (8, 2), (dim, 320 - dim), dtype=dtype)
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.sm90
def test_no_worse_than_torch(device, dtype):
    call = make_call([(600, 40, False)], (4, 4), (64, 64), dtype=dtype)
    got = attend(device, **call)
    s = random_sequence(640, (4, 4), (64, 64), dtype)
    mask = torch.arange(640) <= torch.arange(600, 640)[:, None]
    q, k, v = s.q[600:].transpose(0, 1), s.k.transpose(0, 1), s.v.transpose(0, 1)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    peer = sdpa(q, k, v, attn_mask=mask).transpose(0, 1)
    exact = sdpa(q.double(), k.double(), v.double(), attn_mask=mask).transpose(0, 1)
    assert_within(got.out, exact, math.inf, from_torch=peer)


@pytest.mark.parametrize("cache_dtype", QUANTISED)
@pytest.mark.parametrize("page_size", [1, 16, 24])
def test_quantised_cache(device, cache_dtype, page_size):
    requests = [(130, 5, False), (61, 40, True)]
    call = make_call(requests, page_size=page_size, dtype=torch.bfloat16, cache_dtype=cache_dtype)
    attend(device, **call)
    call["k_scale"] = torch.tensor(0.02)
    attend(device, **call)
    del call["k_scale"], call["v_scale"]
    attend(device, **call, scale=0.001)


@pytest.mark.parametrize("cache_dtype", QUANTISED)
def test_every_stored_byte_is_read_right(device, each_isa, cache_dtype):
    """One key each, so the output is the value; NaN stays NaN, infinities are values."""
    stored = torch.arange(256, dtype=torch.uint8).view(cache_dtype).view(32, 1, 1, 8)
    call = {
        "q": torch.zeros(32, 1, 8),
        "k_cache": torch.zeros(32, 1, 1, 8).to(cache_dtype),
        "v_cache": stored,
        "block_table": torch.arange(32)[:, None],
        "cu_rows": torch.arange(33),
        "ctx_lens": torch.zeros(32, dtype=torch.int64),
    }
    want = stored.float().flatten().nan_to_num(777)
    for got in each_isa(lambda: tree_attention(**moved(call, device)).out.cpu()):
        assert torch.equal(got.flatten().nan_to_num(777), want)


# --- errors and registration ---


def valid_call():
    call = make_call([(40, 5, False), (3, 4, True)])
    out = {"out": torch.zeros(9, 4, 8), "lse": torch.zeros(9, 4)}
    return call, out


CACHE = "bfloat16 or float16 or float32 or float8_e4m3fn or float8_e5m2 or int8"
INTS = "must be int32 or int64, got"
# fmt: off
WRONG = [
    ({"q": torch.zeros(9, 4, 16).double()}, TypeError, "q must be bfloat16 or float16 or float32, got float64"),
    ({"q": torch.zeros(9, 4)}, ValueError, "q must have shape [T, Hq, Dk] = [*, *, *], got [9, 4]"),
    ({"q": torch.zeros(9, 4, 12)}, ValueError, "Dk must be a multiple of 8 from 8 to 256, got 12"),
    ({"q": torch.zeros(9, 4, 264)}, ValueError, "Dk must be a multiple of 8 from 8 to 256, got 264"),
    ({"q": torch.zeros(9, 4, 0)}, ValueError, "Dk must be a multiple of 8 from 8 to 256, got 0"),
    ({"q": torch.zeros(9, 3, 16)}, ValueError, "Hq must be a multiple of Hkv = 2, got 3"),
    ({"q": torch.zeros(9, 16, 4).mT}, ValueError, "q must have a contiguous last dimension, got strides [64, 1, 4]"),
    ({"k_cache": torch.zeros(3, 16, 2, 16).long()}, TypeError, f"k_cache must be {CACHE}, got int64"),
    ({"k_cache": torch.zeros(3, 16, 2, 8)}, ValueError, "k_cache must have shape [num_pages, page_size, Hkv, Dk] = [*, *, *, 16], got [3, 16, 2, 8]"),
    ({"k_cache": torch.zeros(3, 0, 2, 16)}, ValueError, "page_size must be at least 1, got 0"),
    ({"k_cache": torch.zeros(3, 4, 0, 16)}, ValueError, "Hkv must be at least 1, got 0"),
    ({"v_cache": torch.zeros(2, 16, 2, 8)}, ValueError, "v_cache must have shape [num_pages, page_size, Hkv, Dv] = [6, 16, 2, *], got [2, 16, 2, 8]"),
    ({"v_cache": torch.zeros(6, 16, 2, 20)}, ValueError, "Dv must be a multiple of 8 from 8 to 256, got 20"),
    ({"cu_rows": torch.zeros(0).int()}, ValueError, "len(cu_rows) must be at least 1, got 0"),
    ({"cu_rows": torch.zeros(3)}, TypeError, f"cu_rows {INTS} float32"),
    ({"block_table": torch.zeros(2).int()}, ValueError, "block_table must have shape [R, max_pages] = [*, *], got [2]"),
    ({"table_start": torch.zeros(3).int()}, ValueError, "table_start must have shape [R] = [2], got [3]"),
    ({"req_rows": torch.zeros(3).int()}, ValueError, "req_rows must have shape [B] = [2], got [3]"),
    ({"ctx_lens": None}, ValueError, "one of ctx_lens and kv_lens must be given, got neither"),
    ({"kv_lens": torch.zeros(2).int()}, ValueError, "one of ctx_lens and kv_lens must be given, got both"),
    ({"ctx_lens": torch.zeros(3).int()}, ValueError, "ctx_lens must have shape [R] = [2], got [3]"),
    ({"kv_start": torch.zeros(1).int()}, ValueError, "kv_start must have shape [R] = [2], got [1]"),
    ({"depth": None}, ValueError, "mask_bits and depth must be given together, got mask_bits alone"),
    ({"mask_bits": None}, ValueError, "mask_bits and depth must be given together, got depth alone"),
    ({"mask_bits": torch.zeros(9, 1).long()}, TypeError, "mask_bits must be int32, got int64"),
    ({"mask_bits": torch.zeros(8, 1).int()}, ValueError, "mask_bits must have shape [T, W] = [9, *], got [8, 1]"),
    ({"depth": torch.zeros(8).int()}, ValueError, "depth must have shape [T] = [9], got [8]"),
    ({"tree_nodes": torch.zeros(9).int()}, ValueError, "tree_nodes must have shape [B] = [2], got [9]"),
    ({"window_left": -2}, ValueError, "window_left must be at least -1, got -2"),
    ({"window_right": -9}, ValueError, "window_right must be at least -1, got -9"),
    ({"softcap": -1.0}, ValueError, "softcap must be at least 0, got -1"),
    ({"sinks": torch.zeros(2)}, ValueError, "sinks must have shape [Hq] = [4], got [2]"),
    ({"k_scale": torch.zeros(2)}, ValueError, "k_scale must be absent with a float32 k_cache, got a tensor"),
    ({"status": torch.zeros(9).int()}, ValueError, "status must have shape [B] = [2], got [9]"),
    ({"out": torch.zeros(9, 4, 8).half()}, TypeError, "out must be float32, got float16"),
    ({"out": torch.zeros(9, 4, 16)}, ValueError, "out must have shape [T, Hq, Dv] = [9, 4, 8], got [9, 4, 16]"),
    ({"lse": torch.zeros(9, 4).double()}, TypeError, "lse must be float32, got float64"),
]
# fmt: on


@pytest.mark.parametrize(("changes", "error", "text"), WRONG)
def test_names_what_is_wrong(changes, error, text):
    call, out = valid_call()
    for name, value in changes.items():
        (out if name in out else call)[name] = value
    with pytest.raises(error) as from_python:
        tree_attention(**call, out=Attended(**out))
    with pytest.raises(RuntimeError) as from_op:
        OP.out(**call, **out)
    assert str(from_python.value).removesuffix(".0") == str(from_op.value)
    assert str(from_op.value) == f"tree_attention: {text}"


def test_names_the_wrong_device():
    call = valid_call()[0] | {"depth": torch.zeros(9, dtype=torch.int64, device="meta")}
    with pytest.raises(ValueError, match="tree_attention: depth must be on cpu, got meta"):
        tree_attention(**call)


def test_opcheck(device):
    call, out = valid_call()
    args = [call.pop(name).nan_to_num(0).to(device) for name in ("q", "k_cache", "v_cache")]
    options = moved(call, device) | {"status": torch.zeros(2, dtype=torch.int32, device=device)}
    torch.library.opcheck(OP.default, args, options)
    torch.library.opcheck(OP.out, args, options | moved(out, device))


def test_compiles_whole(device):
    compiled = torch.compile(tree_attention, fullgraph=True)
    for requests in ([(40, 5, False), (3, 4, True)], [(9, 7, True)]):
        call = moved(make_call(requests), device)
        assert same_bits(compiled(**call), tree_attention(**call))
