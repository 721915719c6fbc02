import pytest
import torch
from calls import assert_raises_alike, spread
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_ops import Status, compact_kv, reference

OP = torch.ops.dflash.compact_kv
DTYPES = [
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float8_e4m3fn,
    torch.int8,
    torch.uint8,
]
MOVING = torch.tensor([[0, 2, 4], [5, -1, -1], [6, 8, 14]])  # of requests of 5, 1 and 9 rows
LISTS = ("k_caches", "v_caches", "k_scales", "v_scales")


def random_bytes(g, *shape, dtype):
    """Every bit pattern, NaN payloads among them."""
    size = torch.empty(0, dtype=dtype).element_size()
    return torch.randint(
        0, 256, (*shape[:-1], shape[-1] * size), dtype=torch.uint8, generator=g
    ).view(dtype)


def paths_of(g, sizes, width):
    """A rising path from a random anchor of each request, and what is kept of it."""
    accepted = torch.full((len(sizes), width), -1)
    first = 0
    for b, size in enumerate(sizes):
        anchor = int(torch.randint(0, size, (1,), generator=g)) if size else 0
        rest = torch.randperm(max(size - anchor - 1, 0), generator=g)[: width - 1].sort().values
        count = int(torch.randint(0, len(rest) + 1, (1,), generator=g)) if size else -1
        path = torch.cat([torch.tensor([anchor]), rest[: max(count, 0)] + anchor + 1]) + first
        accepted[b, : count + 1] = path[: count + 1]
        first += size
    return accepted


def make_call(
    seed=0, sizes=(5, 1, 9), page_sizes=(4, 3), layers=3, width=6, dtype=torch.bfloat16, scales=True
):
    """Layers dealt to groups in turn; each request owns its pages, in random order."""
    g = torch.Generator().manual_seed(seed)
    batch = len(sizes)
    ctx_lens = torch.randint(0, 40, (batch,), generator=g)
    length = 40 + max(sizes, default=0)
    tables, starts, counts = [], [], []
    for page_size in page_sizes:
        num_cols = -(-length // page_size)
        pages = torch.randperm(batch * num_cols + 2, generator=g)[: batch * num_cols]
        tables.append(pages.reshape(batch, num_cols))
        starts.append(torch.zeros(batch, dtype=torch.int64))
        counts.append(batch * num_cols + 2)
    groups = [i % len(page_sizes) for i in range(layers)]
    shapes = [(counts[g], page_sizes[g], 2) for g in groups]
    call = {
        "k_caches": [random_bytes(g, *shape, 4, dtype=dtype) for shape in shapes],
        "v_caches": [random_bytes(g, *shape, 3, dtype=dtype) for shape in shapes],
        "block_tables": tables,
        "layer_groups": groups,
        "accepted_rows": paths_of(g, sizes, width),
        "cu_rows": torch.tensor([0, *sizes]).cumsum(0),
        "ctx_lens": ctx_lens,
        "table_starts": starts,
        "status": torch.zeros(batch, dtype=torch.int32),
    }
    if scales:
        for name in ("k_scales", "v_scales"):
            call[name] = [torch.rand(shape, generator=g) for shape in shapes]
    return call


def changed(call, f):
    """A copy of the call with every tensor replaced."""
    return {
        k: [f(x) if isinstance(x, torch.Tensor) else x for x in v] if isinstance(v, list)
        else f(v) if isinstance(v, torch.Tensor) else v
        for k, v in call.items()
    }  # fmt: skip


def bits(x):
    return x.contiguous().view(torch.uint8)


def check(device, call):
    got = changed(call, lambda x: x.clone().to(device))
    compact_kv(**got)
    want = changed(call, torch.clone)
    reference.compact_kv(**want)
    for name in LISTS:
        for i, (a, b) in enumerate(zip(got.get(name) or [], want.get(name) or [], strict=True)):
            assert torch.equal(bits(a.cpu()), bits(b)), f"{name}[{i}]"
    assert torch.equal(got["status"].cpu(), want["status"])
    return got


def one_request(path, ctx_len=3, rows=8, page_size=2, **options):
    """One layer whose sequence index s holds the number s."""
    length = ctx_len + rows
    num_pages = -(-length // page_size)
    cache = torch.arange(num_pages * page_size, dtype=torch.float32).reshape(-1, page_size, 1, 1)
    return {
        "k_caches": [cache.flip(0)],
        "v_caches": [cache.flip(0) + 0.5],
        "block_tables": [torch.arange(num_pages).flip(0)[None]],
        "accepted_rows": torch.tensor([path]),
        "cu_rows": torch.tensor([0, rows]),
        "ctx_lens": torch.tensor([ctx_len]),
        "status": torch.zeros(1, dtype=torch.int32),
        **options,
    }


def sequence(call, name="k_caches"):
    return call[name][0][call["block_tables"][0][0]].flatten().tolist()


@pytest.mark.parametrize("page_size", [1, 2, 3, 16])
def test_moves_a_path_across_page_borders(device, page_size):
    call = one_request([0, 2, 3, 7, -1], page_size=page_size)
    got = check(device, call)
    assert sequence(got)[:7] == [0, 1, 2, 3, 5, 6, 10]
    assert sequence(got, "v_caches")[:7] == [0.5, 1.5, 2.5, 3.5, 5.5, 6.5, 10.5]
    assert sequence(got)[7:11] == [7, 8, 9, 10]


def test_every_rising_path_of_six_rows(device):
    """Chains that overlap their own targets among them; the anchor need not be the first row."""
    for subset in range(1, 64):
        path = [row for row in range(6) if subset >> row & 1]
        got = check(device, one_request([*path, -1], rows=6, page_size=3))
        anchor = 3 + path[0]
        assert sequence(got)[anchor : anchor + len(path)] == [3 + row for row in path]


@pytest.mark.parametrize("num_kept", [0, 1, 2, 3, 4])
def test_moves_only_what_is_kept(device, num_kept):
    got = check(device, one_request([0, 2, 4, 6], num_kept=torch.tensor([num_kept])))
    want = [3, 5, 7, 9][:num_kept]
    assert sequence(got)[3:][:num_kept] == want
    assert sequence(got)[3 + max(num_kept, 1) : 11] == list(range(3 + max(num_kept, 1), 11))


def test_kv_lens_include_the_rows_of_the_step(device):
    call = one_request([0, 3])
    del call["ctx_lens"]
    assert sequence(check(device, call | {"kv_lens": torch.tensor([11])}))[4] == 6


def test_table_start_is_the_index_of_the_first_entry(device):
    call = one_request([0, 3], ctx_len=3) | {"table_starts": [torch.tensor([100])]}
    assert sequence(check(device, call | {"ctx_lens": torch.tensor([103])}))[4] == 6


@settings(max_examples=60)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 2, 17, 70]), max_size=5),
    page_sizes=st.lists(st.sampled_from([1, 3, 16, 64]), min_size=1, max_size=3),
    layers=st.integers(0, 4),
    width=st.sampled_from([1, 2, 9]),
    dtype=st.sampled_from(DTYPES),
    scales=st.booleans(),
    has_v=st.booleans(),
    padded=st.booleans(),
    seed=st.integers(0, 2**31 - 1),
)
def test_equals_reference(
    device, sizes, page_sizes, layers, width, dtype, scales, has_v, padded, seed
):
    call = make_call(seed, sizes, page_sizes, layers, width, dtype, scales)
    if not has_v:
        call["v_caches"] = []
    if padded:
        rows = torch.randperm(len(sizes), generator=torch.Generator().manual_seed(seed))
        call["req_rows"] = torch.where(rows == 0, -1, rows)
    check(device, call)


BAD = [
    ([0, 2, 2], {}, Status.BAD_TREE),
    ([0, 3, 2], {}, Status.BAD_TREE),
    ([0, -1, 2], {"num_kept": torch.tensor([3])}, Status.BAD_TREE),
    ([-1, 2, 4], {"num_kept": torch.tensor([2])}, Status.BAD_TREE),
    ([0, 2, 8], {}, Status.OUT_OF_RANGE),
    ([0, 2, 4], {"num_kept": torch.tensor([4])}, Status.OUT_OF_RANGE),
    ([0, 2, 4], {"num_kept": torch.tensor([-1])}, Status.OUT_OF_RANGE),
    ([0, 2, 4], {"req_rows": torch.tensor([1])}, Status.OUT_OF_RANGE),
    ([0, 2, 4], {"req_rows": torch.tensor([-2])}, Status.OUT_OF_RANGE),
    ([0, 2, 4], {"cu_rows": torch.tensor([8, 0])}, Status.OUT_OF_RANGE),
    ([0, 2, 4], {"null_page": 3}, Status.OUT_OF_RANGE),
    ([0, 2, 4], {"block_tables": [torch.tensor([[5, 4, 6, 2, 1, 0]])]}, Status.OUT_OF_RANGE),
    ([0, 2, 4], {"block_tables": [torch.tensor([[5, 4, 3]])]}, Status.OUT_OF_RANGE),
    ([0, 2, 4], {"ctx_lens": torch.tensor([-2])}, Status.OUT_OF_RANGE),
    ([0, 2, 4], {"ctx_lens": torch.tensor([2**60])}, Status.OUT_OF_RANGE),
]


@pytest.mark.parametrize(("path", "options", "bit"), BAD)
def test_bad_data_moves_nothing(device, path, options, bit):
    call = one_request(path) | options
    got = check(device, call)
    assert got["status"].item() == bit
    assert torch.equal(got["k_caches"][0].cpu(), call["k_caches"][0])


def test_a_page_that_one_group_lacks_keeps_every_group_still(device):
    call = make_call(1, sizes=(9, 9))
    call["accepted_rows"] = torch.tensor([[0, 2, 4], [9, 11, 12]])
    call["block_tables"][1][0] = -1
    got = check(device, call)
    assert got["status"].tolist() == [Status.OUT_OF_RANGE, 0]


def test_pages_that_a_chain_does_not_move_may_be_absent(device):
    call = one_request([0, 1, 2, -1]) | {"block_tables": [torch.full((1, 6), -1)]}
    assert check(device, call)["status"].item() == 0


def test_many_tasks(device):
    torch.set_num_threads(3)
    check(device, make_call(2, sizes=[9] * 60, layers=4))
    torch.set_num_threads(1)


def test_more_layers_and_longer_paths_than_one_kernel_takes_at_once(device):
    check(device, make_call(seed=1, layers=130, sizes=(3, 9)))
    check(device, make_call(seed=2, sizes=(400,), width=300, layers=1))


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_any_strides_in_place(device, index):
    call = make_call(3) | {"accepted_rows": MOVING}
    want = changed(call, torch.clone)
    reference.compact_kv(**want)
    got = changed(call, lambda x: x.to(device))
    for name in LISTS:
        got[name] = [spread(x, last=name.endswith("scales")) for x in got[name]]
    for name in ("block_tables", "table_starts"):
        got[name] = [spread(x.to(index)) for x in got[name]]
    for name in ("accepted_rows", "cu_rows", "ctx_lens"):
        got[name] = spread(got[name].to(index))
    got["status"] = spread(got["status"])
    compact_kv(**got)
    for name in LISTS:
        for a, b in zip(got[name], want[name], strict=True):
            assert torch.equal(bits(a.cpu()), bits(b)), name


def test_combined_and_head_major_caches_are_views(device):
    call = make_call(4, page_sizes=(4,), layers=1, scales=False) | {"accepted_rows": MOVING}
    shape = call["k_caches"][0].shape
    combined = torch.zeros(shape[0], 2, shape[2], shape[1], 4, dtype=torch.bfloat16, device=device)
    k, v = (combined[:, i].transpose(1, 2) for i in range(2))
    call["v_caches"] = [call["k_caches"][0].flip(0)]
    k.copy_(call["k_caches"][0])
    v.copy_(call["v_caches"][0])
    want = changed(call, torch.clone)
    reference.compact_kv(**want)
    got = changed(call, lambda x: x.to(device)) | {"k_caches": [k], "v_caches": [v]}
    compact_kv(**got)
    for name in ("k_caches", "v_caches"):
        assert torch.equal(bits(got[name][0].cpu()), bits(want[name][0]))


def test_addresses_past_32_bits(device):
    buffer = torch.empty(2**33, dtype=torch.int8, device=device)
    cache = buffer.as_strided((3, 2, 1, 2), (2**31 + 8, 2, 2, 1))
    cache.copy_(torch.arange(12).reshape(3, 2, 1, 2))
    call = one_request([0, 2, 4], ctx_len=0, rows=5) | {"block_tables": [torch.arange(3)[None]]}
    got = changed(call, lambda x: x.to(device)) | {"k_caches": [cache], "v_caches": []}
    compact_kv(**got)
    assert cache.flatten().tolist() == [0, 1, 4, 5, 8, 9, 6, 7, 8, 9, 10, 11]


INTS = "must be int32 or int64, got"
# fmt: off
WRONG = [
    ({"accepted_rows": torch.zeros(3).int()}, ValueError, "accepted_rows must have shape [B, P] = [*, *], got [3]"),
    ({"cu_rows": torch.zeros(3).int()}, ValueError, "cu_rows must have shape [B + 1] = [4], got [3]"),
    ({"num_kept": torch.zeros(3)}, TypeError, f"num_kept {INTS} float32"),
    ({"block_tables": []}, ValueError, "len(block_tables) must be at least 1, got 0"),
    ({"v_caches": [torch.zeros(1, 1, 1, 1)]}, ValueError, "len(v_caches) must be 3, got 1"),
    ({"layer_groups": [0]}, ValueError, "len(layer_groups) must be 3, got 1"),
    ({"table_starts": []}, ValueError, "len(table_starts) must be 2, got 0"),
    ({"k_scales": []}, ValueError, "len(k_scales) must be 3, got 0"),
    ({"v_scales": []}, ValueError, "len(v_scales) must be 3, got 0"),
    ({"block_tables": [torch.zeros(3).int()] * 2}, ValueError, "block_tables[0] must have shape [R, max_pages] = [3, *], got [3]"),
    ({"table_starts": [torch.zeros(3).int(), torch.zeros(2).int()]}, ValueError, "table_starts[1] must have shape [R] = [3], got [2]"),
    ({"ctx_lens": None}, ValueError, "one of ctx_lens and kv_lens must be given, got neither"),
    ({"kv_lens": torch.zeros(3).int()}, ValueError, "one of ctx_lens and kv_lens must be given, got both"),
    ({"ctx_lens": torch.zeros(4).int()}, ValueError, "ctx_lens must have shape [R] = [3], got [4]"),
    ({"req_rows": torch.zeros(3)}, TypeError, f"req_rows {INTS} float32"),
    ({"status": torch.zeros(3)}, TypeError, "status must be int32, got float32"),
    ({"layer_groups": [0, -1, 0]}, ValueError, "layer_groups[1] must be at least 0, got -1"),
    ({"layer_groups": [0, 1, 2]}, ValueError, "layer_groups[2] must be below len(block_tables) = 2, got 2"),
    ({"layer_groups": [0, 0, 0]}, ValueError, "k_caches[1] must have shape [num_pages, page_size, Hkv, Dk] = [41, 4, *, *], got [53, 3, 2, 4]"),
]
# fmt: on


@pytest.mark.parametrize(("wrong", "error", "text"), WRONG)
def test_names_what_is_wrong(wrong, error, text):
    assert_raises_alike(compact_kv, OP, make_call() | wrong, {}, error, text)


def test_names_a_wrong_tensor_of_a_list():
    for name, value, error, text in (
        (
            "k_caches",
            torch.zeros(41, 4, 2),
            ValueError,
            "must have shape [num_pages, page_size, Hkv, Dk] = [*, *, *, *], got [41, 4, 2]",
        ),
        (
            "k_caches",
            torch.zeros(41, 4, 2, 6)[..., ::2],
            ValueError,
            "must have a contiguous last dimension, got strides [48, 12, 6, 2]",
        ),
        (
            "v_caches",
            torch.zeros(41, 3, 2, 2),
            ValueError,
            "must have shape [num_pages, page_size, Hkv, Dv] = [41, 4, *, *], got [41, 3, 2, 2]",
        ),
        ("k_scales", torch.zeros(41, 4, 2).half(), TypeError, "must be float32, got float16"),
        (
            "v_scales",
            torch.zeros(41, 4),
            ValueError,
            "must have shape [num_pages, page_size, Hkv] = [41, 4, *], got [41, 4]",
        ),
    ):
        call = make_call()
        call[name][0] = value
        assert_raises_alike(compact_kv, OP, call, {}, error, f"{name}[0] {text}")


def test_opcheck(device):
    for scales in (True, False):
        call = changed(make_call(scales=scales, dtype=torch.int8), lambda x: x.to(device))
        args = [call.pop("k_caches"), call.pop("v_caches")]
        torch.library.opcheck(OP.default, args, call)


def test_compiles_whole(device):
    compiled = torch.compile(compact_kv, fullgraph=True)
    for sizes in ((5, 1, 9), (7, 7, 2)):
        call = make_call(5, sizes, dtype=torch.int8)
        got, want = (changed(call, lambda x: x.to(device, copy=True)) for _ in range(2))
        compiled(**got)
        compact_kv(**want)
        for name in LISTS:
            assert all(torch.equal(a, b) for a, b in zip(got[name], want[name], strict=True))
