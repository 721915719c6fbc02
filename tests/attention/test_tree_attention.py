import math

import pytest
import torch
from bounds import assert_within
from calls import spread
from hypothesis import given, settings
from hypothesis import strategies as st
from sequences import (
    LENGTHS,
    PAGE_SIZES,
    make_call,
    moved,
    paged,
    random_sequence,
    rows_of,
    same_bits,
)

from dflash_ops import Attended, Status, reference, tree_attention

OP = torch.ops.dflash.tree_attention
FLOATS = [torch.float32, torch.bfloat16, torch.float16]
QUANTISED = [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8]


def eps(dtype):
    return torch.finfo(dtype).eps


def attend(device, **call):
    """The op's result on the CPU, within the bound of the reference's; the status likewise."""
    batch = len(call["cu_rows"]) - 1
    want_status = torch.zeros(batch, dtype=torch.int32)
    want = reference.tree_attention(**call, status=want_status)
    status = torch.zeros(batch, dtype=torch.int32, device=device)
    got = Attended(*(x.cpu() for x in tree_attention(**moved(call, device), status=status)))
    assert torch.equal(status.cpu(), want_status), (status, want_status)

    # An error of a score, at most that of its own terms, scales the weight of its key.
    k, v = call["k_cache"].double(), call["v_cache"].double()
    weighted = reference.tree_attention(**call | {"v_cache": v.abs()}).out
    exact = {"q": call["q"].double().abs(), "k_cache": k.abs(), "softcap": 0.0}
    scores = reference.tree_attention(**call | exact).lse
    scores = 1 + scores.where(scores.isfinite(), 0)
    assert_within(got.lse, want.lse, scores)
    # A device may round the weights to q's dtype before it multiplies the values.
    rounding = weighted * (0 if got.out.dtype == torch.float32 else eps(got.out.dtype) / 2)
    assert_within(got.out, want.out, weighted * scores[..., None], rounding)
    return got


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
def test_head_dims(device, dim, dtype):
    attend(
        device, **make_call([(70, 3, False), (9, 20, True)], (8, 2), (dim, 320 - dim), dtype=dtype)
    )


@pytest.mark.parametrize("dtype", FLOATS)
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


# --- masks, padding, layouts ---


def test_any_mask_and_any_depth(device, device_class):
    g = torch.Generator().manual_seed(0)
    call = make_call([(50, 40, True)], page_size=3)
    for _ in range(2 if device_class.startswith("ptx") else 20):
        call["mask_bits"] = torch.randint(-(2**31), 2**31, (40, 2), generator=g).int()
        call["depth"] = torch.randperm(700, generator=g)[:40]
        attend(device, **call)


def test_colliding_nodes_the_highest_row_wins(device):
    call = make_call([(10, 6, True)])
    call["depth"] = torch.tensor([0, 1, 1, 1, 2, 2])
    call["mask_bits"] = torch.tensor(
        [[0b1], [0b11], [0b111], [0b1010], [0b10001], [0b111111]]
    ).int()
    got = attend(device, **call)
    status = torch.zeros(1, dtype=torch.int32, device=device)
    tree_attention(**moved(call, device), status=status)
    assert status.item() == Status.BAD_TREE
    call["mask_bits"][2], call["mask_bits"][5] = 0b101, 0b101001
    assert same_bits(attend(device, **call), got)


def test_a_narrow_mask_hides_the_rows_beyond(device):
    call = make_call([(10, 40, True)])
    call["mask_bits"] = call["mask_bits"][:, :1]
    attend(device, **call)


def test_256_nodes(device):
    attend(device, **make_call([(700, 256, True)], heads=(2, 2)))


def test_bad_nodes_are_dropped_from_the_first_on(device):
    for count, depth in ((6, {3: -1, 5: 7}), (6, {0: -5}), (6, {1: 2**20}), (300, {})):
        call = make_call([(10, count, True), (5, 3, True)])
        for row, value in depth.items():
            call["depth"][row] = value
        got = attend(device, **call)
        assert same_bits([x[count:] for x in got], [x[-3:] for x in got])


def test_mixed_batch_of_padded_requests(device):
    call = make_call([(40, 5, False), (3, 4, True), (100, 1, False)])
    whole = attend(device, **call)
    call["req_rows"] = torch.tensor([0, -1, 2])
    call["ctx_lens"][1] = -7
    call["block_table"][1] = -1
    call["q"][5:9] = math.nan
    got = attend(device, **call)
    assert torch.equal(got.out[5:9], torch.zeros_like(got.out[5:9]))
    assert (got.lse[5:9] == -math.inf).all()
    rest = [0, 1, 2, 3, 4, 9]
    assert same_bits([x[rest] for x in got], [x[rest] for x in whole])


def test_rows_past_the_last_request_are_empty(device):
    call = make_call([(40, 5, False)])
    call["q"] = torch.cat([call["q"], torch.full((3, 4, 16), math.nan)])
    got = attend(device, **call)
    assert torch.equal(got.out[5:], torch.zeros(3, 4, 8))
    assert (got.lse[5:] == -math.inf).all()


def test_req_rows_and_table_start(device):
    """State rows in another order, in tables that begin late."""
    s = [random_sequence(300, seed=i) for i in range(3)]
    starts = [0, 37, 250]
    k_cache, v_cache, table = paged([(x.k, x.v) for x in s], 16, table_start=starts)
    call = {
        "q": torch.cat([s[2].q[298:], s[0].q[290:], s[1].q[299:]]),
        "k_cache": k_cache,
        "v_cache": v_cache,
        "block_table": table,
        "cu_rows": torch.tensor([0, 2, 12, 13]),
        "ctx_lens": torch.tensor([290, 299, 298]),
        "req_rows": torch.tensor([2, 0, 1]),
        "table_start": torch.tensor(starts),
        "kv_start": torch.tensor([0, 37, 260]),
    }
    got = attend(device, **call)
    assert same_bits([x[2:12] for x in got], rows_of(device, s[0], 290, 10))


def test_evicted_pages_outside_the_window_are_not_missed(device):
    call = make_call([(400, 4, False)], page_size=16)
    want = attend(device, **call, window_left=50)
    call["block_table"][0, :20] = 999
    status = torch.zeros(1, dtype=torch.int32, device=device)
    got = tree_attention(**moved(call, device), window_left=50, status=status)
    assert status.item() == 0
    assert same_bits([x.cpu() for x in got], want)


@pytest.mark.parametrize("is_tree", [False, True])
def test_visible_keys_without_a_page_are_left_out(device, is_tree):
    for entry in (0, 3, 7):
        for page in (-1, 2, 10**6):
            call = make_call([(100, 30, is_tree), (20, 2, False)]) | {"null_page": 2}
            call["block_table"][call["block_table"] == 2] = 0
            call["block_table"][0, entry] = page
            attend(device, **call)


def test_impossible_lengths_leave_the_request_out(device):
    good = make_call([(40, 5, False), (9, 2, False)])
    want = attend(device, **good)
    for name, value in (
        ("ctx_lens", -1),
        ("ctx_lens", 10_000),
        ("ctx_lens", 2**62),
        ("table_start", 41),
        ("table_start", -(2**63)),
        ("req_rows", 2),
        ("req_rows", -2),
        ("kv_start", 2**62),
    ):
        call = dict(good)
        call[name] = torch.zeros(2, dtype=torch.int64) if name not in call else call[name].clone()
        if name == "req_rows":
            call[name][:] = torch.tensor([0, 1])
        call[name][0] = value
        got = attend(device, **call)
        assert (got.lse[:5] == -math.inf).all(), name
        assert same_bits([x[5:] for x in got], [x[5:] for x in want])


def test_bad_cu_rows(device):
    call = make_call([(40, 5, False), (9, 2, False), (9, 2, False), (3, 3, False)])
    for cu_rows in ([0, 5, 3, 7, 9], [-1, 5, 7, 9, 12], [0, 5, 7, 9, 99], [0, 2**40, 7, 9, 12]):
        call["cu_rows"] = torch.tensor(cu_rows)
        attend(device, **call)


def test_nothing_to_do(device):
    call = make_call([(40, 0, False)])
    assert attend(device, **call).out.shape == (0, 4, 8)
    call["cu_rows"] = torch.tensor([0])
    for name in ("block_table", "ctx_lens"):
        call[name] = call[name][:0]
    attend(device, **call)


def test_a_nan_query_or_key_reaches_only_its_rows(device):
    call = make_call([(70, 9, False), (70, 3, False)])
    want = attend(device, **call)
    call["q"][4, 1] = math.nan
    table = call["block_table"][0]
    call["k_cache"][table[76 // 16], 76 % 16, 0] = math.nan  # seen by rows 6 .. 8, heads 0 and 1
    got = Attended(*(x.cpu() for x in tree_attention(**moved(call, device))))
    is_nan = torch.zeros(12, 4, dtype=torch.bool)
    is_nan[4, 1] = is_nan[6:9, :2] = True
    assert torch.equal(got.lse.isnan(), is_nan)
    assert torch.equal(got.out.isnan(), is_nan[..., None].expand_as(got.out))
    assert same_bits([x[~is_nan] for x in got], [x[~is_nan] for x in want])


@pytest.mark.parametrize("dtype", FLOATS)
def test_values_that_are_not_finite_reach_only_their_rows(device, dtype):
    call = make_call([(70, 9, False), (70, 3, False)], dtype=dtype)
    want = attend(device, **call)
    table = call["block_table"][0]
    v = call["v_cache"][table[74 // 16], 74 % 16, 0]  # seen by rows 4 .. 8, heads 0 and 1
    v[0], v[1], v[2] = math.inf, -math.inf, math.nan
    got = Attended(*(x.cpu() for x in tree_attention(**moved(call, device))))
    sees = torch.zeros_like(got.out, dtype=torch.bool)
    sees[4:9, :2, :3] = True
    assert (got.out[4:9, :2, 0] == math.inf).all() and (got.out[4:9, :2, 1] == -math.inf).all()
    assert got.out[4:9, :2, 2].isnan().all()
    assert torch.equal(got.out[~sees], want.out[~sees]) and torch.equal(got.lse, want.lse)


def test_every_index_type_and_stride_in_place(device):
    call = make_call([(40, 5, False), (3, 40, True), (100, 1, False)])
    call["kv_start"] = torch.tensor([1, 0, 2])
    call["table_start"] = torch.zeros(3, dtype=torch.int64)
    call["req_rows"] = torch.tensor([0, 1, 2])
    want = tree_attention(**moved(call, device))
    for index in (torch.int32, torch.int64):
        other = {}
        for name, x in call.items():
            if name in ("q", "k_cache", "v_cache"):
                other[name] = spread(x.to(device), math.nan, last=False)
            else:
                x = x.to(device) if name == "mask_bits" else x.to(device, index)
                other[name] = spread(x)
        out = Attended(*(spread(torch.full_like(x, 9)) for x in want))
        assert tree_attention(**other, out=out) is out
        assert same_bits(out, want)


def test_heads_before_slots(device):
    """HND caches, and one tensor for K and V, are views."""
    call = make_call([(40, 5, False)], dims=(16, 16))
    want = tree_attention(**moved(call, device))
    both = torch.stack([call["k_cache"], call["v_cache"]], 1).transpose(2, 3).contiguous()
    k, v = (both.to(device)[:, i].transpose(1, 2) for i in (0, 1))
    assert same_bits(tree_attention(**moved(call, device) | {"k_cache": k, "v_cache": v}), want)


def test_addresses_past_32_bits(device):
    buffer = torch.empty(2**32 + 2**20, dtype=torch.bfloat16, device=device)  # few pages touched
    call = make_call([(40, 3, False)], (2, 1), (8, 8), page_size=15, dtype=torch.bfloat16)
    call["block_table"] = call["block_table"][:, :3]
    want = tree_attention(**moved(call, device))

    def far(x, offset):
        strides = (2**31, *x.stride()[1:])
        view = buffer.as_strided(x.shape, strides, offset)
        view.copy_(x)
        return view

    pages = call["block_table"].flatten().clone()
    far_call = call | {
        "q": far(call["q"], 0),
        "k_cache": far(call["k_cache"][pages], 2**16),
        "v_cache": far(call["v_cache"][pages], 2**17),
        "block_table": torch.tensor([[0, 1, 2]]),
    }
    out = Attended(far(torch.zeros(3, 2, 8), 2**18), torch.zeros(3, 2, device=device))
    assert same_bits(tree_attention(**moved(far_call, device), out=out), want)


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
