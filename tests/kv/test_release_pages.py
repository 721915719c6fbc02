import pytest
import torch
from calls import assert_raises_alike, spread
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_ops import Status, reference, release_pages

OP = torch.ops.dflash.release_pages
STATE = ("block_table", "free_pages", "num_free", "ref_counts", "status")


def make_call(table, keep_lens, page_size=4, num_pages=20, capacity=8, num_free=0, **options):
    table = torch.as_tensor(table)
    options = {k: torch.as_tensor(v) if isinstance(v, list) else v for k, v in options.items()}
    batch = len(options.get("req_rows", table))
    return {
        "block_table": table,
        "free_pages": torch.full((capacity,), -7),
        "num_free": torch.tensor([num_free]),
        "keep_lens": torch.as_tensor(keep_lens),
        "page_size": page_size,
        "num_pages": num_pages,
        "status": torch.zeros(batch, dtype=torch.int32),
        **options,
    }


def copied(call, device="cpu"):
    return {k: x.clone().to(device) if isinstance(x, torch.Tensor) else x for k, x in call.items()}


def check(device, call):
    got, want = copied(call, device), copied(call)
    release_pages(**got)
    reference.release_pages(**want)
    for name in STATE:
        if name in call:
            assert torch.equal(got[name].cpu(), want[name]), f"{name}: {got[name]}, {want[name]}"
    return want


@pytest.mark.parametrize("keep", range(0, 14))
def test_keeps_every_page_that_is_needed(device, keep):
    got = check(device, make_call([[5, 6, 7, -1]], [keep]))
    kept = min(3, -(-keep // 4))
    assert got["block_table"].tolist() == [[5, 6, 7][:kept] + [-1] * (4 - kept)]
    assert got["free_pages"][: 3 - kept].tolist() == [5, 6, 7][kept:]
    assert got["num_free"].item() == 3 - kept


def test_the_list_is_in_order_of_request_and_entry(device):
    got = check(
        device, make_call([[1, 2], [3, 4], [5, 6]], [0, 4, 0], req_rows=[2, -1, 0, 1], num_free=1)
    )
    assert got["free_pages"].tolist() == [-7, 5, 6, 1, 2, 4, -7, -7] and got["num_free"].item() == 6


def test_shared_pages_lose_an_owner(device):
    call = make_call([[1, 2], [1, 3]], [0, 0], num_pages=4, ref_counts=[9, 3, 1, 1])
    got = check(device, call)
    assert got["ref_counts"].tolist() == [9, 1, 0, 0]
    assert got["free_pages"][:2].tolist() == [2, 3] and got["num_free"].item() == 2
    last = check(device, got | {"block_table": torch.tensor([[1, -1], [-1, -1]])})
    assert last["free_pages"][2] == 1 and last["ref_counts"][1] == 0


def test_a_page_that_is_free_already_is_not_freed_again(device):
    call = make_call([[1, 2]], [0], num_pages=3, ref_counts=[0, 0, 1])
    got = check(device, call)
    assert got["num_free"].item() == 1 and got["status"].tolist() == [Status.OUT_OF_RANGE]


def test_a_full_list_leaves_pages_in_the_table(device):
    got = check(device, make_call([[1, 2], [3, 4]], [0, 0], capacity=3))
    assert got["block_table"].tolist() == [[-1, -1], [-1, 4]]
    assert got["status"].tolist() == [0, Status.BOUND_TOO_SMALL]


def test_null_pages_and_bad_entries_and_rows(device):
    call = make_call([[0, 20, -3, 7]], [0], null_page=0, req_rows=[1, -2, 0])
    got = check(device, call)
    bad = Status.OUT_OF_RANGE
    assert got["block_table"].tolist() == [[0, 20, -3, 0]] and got["status"].tolist() == [
        bad,
        bad,
        0,
    ]


@settings(max_examples=60)
@given(
    rows=st.sampled_from([0, 1, 5]),
    page_size=st.sampled_from([1, 3, 16]),
    counted=st.booleans(),
    started=st.booleans(),
    seed=st.integers(0, 2**31 - 1),
)
def test_equals_reference(device, rows, page_size, counted, started, seed):
    g = torch.Generator().manual_seed(seed)

    def ints(low, high, *shape):
        return torch.randint(low, high, shape, generator=g)

    call = make_call(ints(-1, 21, rows, 6), ints(-2, 8 * page_size, rows), page_size)
    call |= {"num_free": ints(-1, 10, 1)}
    call |= {"ref_counts": ints(0, 3, 20)} if counted else {}
    check(device, call | ({"table_start": ints(0, 9, rows)} if started else {}))


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_any_strides_in_place(device, index):
    call = make_call([[1, 2], [3, 4]], [4, 0], ref_counts=[1] * 20, table_start=[0, 2])
    want = check(device, call)
    got = {
        k: spread(x.to(device, x.dtype if k == "status" else index))
        if isinstance(x, torch.Tensor)
        else x
        for k, x in call.items()
    }
    release_pages(**got)
    assert all(torch.equal(got[name].cpu().long(), want[name].long()) for name in STATE)


def test_addresses_past_32_bits(device):
    buffer = torch.empty(2**32 + 8, dtype=torch.int32, device=device)
    table = buffer.as_strided((3, 1), (2**31, 1))
    table.copy_(torch.tensor([[1], [2], [3]]))
    call = copied(make_call([[0]] * 3, [0, 0, 0]), device) | {"block_table": table}
    release_pages(**call)
    assert call["free_pages"][:3].tolist() == [1, 2, 3]


INTS = "must be int32 or int64, got"
# fmt: off
WRONG = [
    ("block_table", torch.zeros(2).int(), ValueError, "block_table must have shape [R, max_pages] = [*, *], got [2]"),
    ("free_pages", torch.zeros(8), TypeError, f"free_pages {INTS} float32"),
    ("num_free", torch.zeros(2).int(), ValueError, "num_free must have shape [1] = [1], got [2]"),
    ("keep_lens", torch.zeros(3).int(), ValueError, "keep_lens must have shape [R] = [2], got [3]"),
    ("page_size", 0, ValueError, "page_size must be at least 1, got 0"),
    ("num_pages", -1, ValueError, "num_pages must be at least 0, got -1"),
    ("ref_counts", torch.zeros(19).int(), ValueError, "ref_counts must have shape [num_pages] = [20], got [19]"),
    ("req_rows", torch.zeros(2), TypeError, f"req_rows {INTS} float32"),
    ("table_start", torch.zeros(3).int(), ValueError, "table_start must have shape [R] = [2], got [3]"),
    ("status", torch.zeros(3).int(), ValueError, "status must have shape [B] = [2], got [3]"),
]
# fmt: on


@pytest.mark.parametrize(("name", "value", "error", "text"), WRONG)
def test_names_what_is_wrong(name, value, error, text):
    call = make_call([[1, 2], [3, 4]], [4, 0]) | {name: value}
    assert_raises_alike(release_pages, OP, call, {}, error, text)


def test_opcheck_and_compile(device):
    call = copied(make_call([[1, 2], [3, 4]], [4, 0], ref_counts=[1] * 20), device)
    args = [call[name] for name in ("block_table", "free_pages", "num_free", "keep_lens")]
    torch.library.opcheck(OP, args, {k: x for k, x in list(call.items())[4:]})
    got, want = copied(call, device), copied(call, device)
    torch.compile(release_pages, fullgraph=True)(**got)
    release_pages(**want)
    assert all(torch.equal(got[name], want[name]) for name in STATE)
