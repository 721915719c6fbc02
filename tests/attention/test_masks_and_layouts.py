"""Which keys a row of tree_attention sees, bad input, and tensors that lie anywhere."""

import math

import pytest
import torch
from attended import attend
from calls import spread
from sequences import make_call, moved, paged, random_sequence, rows_of, same_bits

from dflash_ops import Attended, Status, tree_attention

pytestmark = pytest.mark.sm90
FLOATS = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
HALVES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


@HALVES
def test_any_mask_and_any_depth(device, device_class, dtype):
    g = torch.Generator().manual_seed(0)
    call = make_call([(50, 40, True)], page_size=3, dtype=dtype)
    for _ in range(2 if device_class.startswith("ptx") else 20):
        call["mask_bits"] = torch.randint(-(2**31), 2**31, (40, 2), generator=g).int()
        call["depth"] = torch.randperm(700, generator=g)[:40]
        attend(device, **call)


@HALVES
def test_colliding_nodes_the_highest_row_wins(device, dtype):
    call = make_call([(10, 6, True)], dtype=dtype)
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


@HALVES
def test_a_narrow_mask_hides_the_rows_beyond(device, dtype):
    call = make_call([(10, 40, True)], dtype=dtype)
    call["mask_bits"] = call["mask_bits"][:, :1]
    attend(device, **call)


@HALVES
def test_256_nodes(device, dtype):
    attend(device, **make_call([(700, 256, True)], heads=(2, 2), dtype=dtype))


@HALVES
def test_bad_nodes_are_dropped_from_the_first_on(device, dtype):
    for count, depth in ((6, {3: -1, 5: 7}), (6, {0: -5}), (6, {1: 2**20}), (300, {})):
        call = make_call([(10, count, True), (5, 3, True)], dtype=dtype)
        for row, value in depth.items():
            call["depth"][row] = value
        got = attend(device, **call)
        assert same_bits([x[count:] for x in got], [x[-3:] for x in got])


@HALVES
def test_mixed_batch_of_padded_requests(device, dtype):
    call = make_call([(40, 5, False), (3, 4, True), (100, 1, False)], dtype=dtype)
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


@HALVES
def test_rows_past_the_last_request_are_empty(device, dtype):
    call = make_call([(40, 5, False)], dtype=dtype)
    call["q"] = torch.cat([call["q"], torch.full((3, 4, 16), math.nan).to(dtype)])
    got = attend(device, **call)
    assert torch.equal(got.out[5:], torch.zeros(3, 4, 8, dtype=dtype))
    assert (got.lse[5:] == -math.inf).all()


@HALVES
def test_req_rows_and_table_start(device, dtype):
    """State rows in another order, in tables that begin late."""
    s = [random_sequence(300, dtype=dtype, seed=i) for i in range(3)]
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


@HALVES
def test_evicted_pages_outside_the_window_are_not_missed(device, dtype):
    call = make_call([(400, 4, False)], page_size=16, dtype=dtype)
    want = attend(device, **call, window_left=50)
    call["block_table"][0, :20] = 999
    status = torch.zeros(1, dtype=torch.int32, device=device)
    got = tree_attention(**moved(call, device), window_left=50, status=status)
    assert status.item() == 0
    assert same_bits([x.cpu() for x in got], want)


@pytest.mark.parametrize("is_tree", [False, True])
@HALVES
def test_visible_keys_without_a_page_are_left_out(device, is_tree, dtype):
    for entry in (0, 3, 7):
        for page in (-1, 2, 10**6):
            call = make_call([(100, 30, is_tree), (20, 2, False)], dtype=dtype) | {"null_page": 2}
            call["block_table"][call["block_table"] == 2] = 0
            call["block_table"][0, entry] = page
            attend(device, **call)


@HALVES
def test_impossible_lengths_leave_the_request_out(device, dtype):
    good = make_call([(40, 5, False), (9, 2, False)], dtype=dtype)
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


@HALVES
def test_bad_cu_rows(device, dtype):
    requests = [(40, 5, False), (9, 2, False), (9, 2, False), (3, 3, False)]
    call = make_call(requests, dtype=dtype)
    for cu_rows in ([0, 5, 3, 7, 9], [-1, 5, 7, 9, 12], [0, 5, 7, 9, 99], [0, 2**40, 7, 9, 12]):
        call["cu_rows"] = torch.tensor(cu_rows)
        attend(device, **call)


@HALVES
def test_nothing_to_do(device, dtype):
    call = make_call([(40, 0, False)], dtype=dtype)
    assert attend(device, **call).out.shape == (0, 4, 8)
    call["cu_rows"] = torch.tensor([0])
    for name in ("block_table", "ctx_lens"):
        call[name] = call[name][:0]
    attend(device, **call)


@HALVES
def test_a_nan_query_or_key_reaches_only_its_rows(device, dtype):
    call = make_call([(70, 9, False), (70, 3, False)], dtype=dtype)
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


@FLOATS
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


@HALVES
def test_every_index_type_and_stride_in_place(device, dtype):
    call = make_call([(40, 5, False), (3, 40, True), (100, 1, False)], dtype=dtype)
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


@HALVES
def test_heads_before_slots(device, dtype):
    """HND caches, and one tensor for K and V, are views."""
    call = make_call([(40, 5, False)], dims=(16, 16), dtype=dtype)
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
