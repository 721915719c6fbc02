import pytest
import torch
from calls import assert_raises_alike, spread
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_ops import Block, Status, prepare_block, reference

OP = torch.ops.dflash.prepare_block
MASK = 999


def make_call(ctx_lens, pages=4, page_size=3, max_block=4, capacity=12, **options):
    """Token i of state row r is 100 r + i; its page of entry e is 10 r + e, backwards."""
    rows = len(ctx_lens)
    table = torch.arange(pages).flip(0) + 10 * torch.arange(rows)[:, None]
    options = {k: torch.as_tensor(v) if isinstance(v, list) else v for k, v in options.items()}
    batch = len(options.get("req_rows", ctx_lens))
    return {
        "tokens": torch.arange(capacity) + 100 * torch.arange(rows)[:, None],
        "ctx_lens": torch.tensor(ctx_lens, dtype=torch.int64),
        "block_table": table,
        "max_block": max_block,
        "mask_id": MASK,
        "page_size": page_size,
        "num_pages": 10 * rows,
        "status": torch.zeros(batch, dtype=torch.int32),
        **options,
    }


def check(device, call):
    def moved(x):
        return x.clone().to(device) if isinstance(x, torch.Tensor) else x

    got_call = {k: moved(x) for k, x in call.items()}
    got = Block(*(x.cpu() for x in prepare_block(**got_call)))
    status = call["status"].clone()
    want = reference.prepare_block(**call | {"status": status})
    for name, a, b in zip(Block._fields, got, want, strict=True):
        assert torch.equal(a, b), f"{name}: got {a}, expected {b}"
    assert torch.equal(got_call["status"].cpu(), status)
    return got, status.tolist()


def test_an_anchor_and_three_masks(device):
    got, status = check(device, make_call([4, 0]))
    assert got.ids.tolist() == [[4, MASK, MASK, MASK], [100, MASK, MASK, MASK]]
    assert got.positions.tolist() == [[4, 5, 6, 7], [0, 1, 2, 3]]
    assert got.slots.tolist() == [[7, 8, 3, 4], [39, 40, 41, 36]]
    assert got.draft_rows.tolist() == [[1, 2, 3], [5, 6, 7]]
    assert got.num_drafts.tolist() == [3, 3] and status == [0, 0]


def test_with_sample_from_anchor_every_row_drafts(device):
    got, _ = check(device, make_call([4, 0], sample_from_anchor=True, block_lens=[3, 1]))
    assert got.draft_rows.tolist() == [[0, 1, 2, -1], [4, -1, -1, -1]]
    assert got.num_drafts.tolist() == [3, 1]


@pytest.mark.parametrize("size", range(-1, 7))
@pytest.mark.parametrize("sample_from_anchor", [False, True])
def test_block_length_at_run_time(device, size, sample_from_anchor):
    call = make_call([4], block_lens=[size], sample_from_anchor=sample_from_anchor)
    got, status = check(device, call)
    rows = max(0, min(size, 4))
    assert (got.slots >= 0).sum() == rows
    assert got.num_drafts.item() == (rows if sample_from_anchor else max(rows - 1, 0))
    assert status == [Status.BOUND_TOO_SMALL if size > 4 else 0]


def test_a_block_ends_where_its_pages_end(device):
    """FAULTS 36: a drafter must not write past the pages it was given."""
    call = make_call([1, 7, 10, 9], capacity=20)
    call["block_table"][0, 1], call["block_table"][1, 3] = -1, 40
    got, status = check(device, call)
    assert (got.slots >= 0).sum(1).tolist() == [2, 2, 2, 3]
    assert got.num_drafts.tolist() == [1, 1, 1, 2]
    assert status == [Status.OUT_OF_RANGE] * 4


def test_null_page_and_table_start(device):
    got, status = check(device, make_call([7], table_start=[6], null_page=2))
    assert got.slots.tolist() == [[10, 11, -1, -1]] and status == [Status.OUT_OF_RANGE]


def test_bad_data_gives_no_block(device):
    call = make_call([12, -1, 3, 2**40, 2], req_rows=[0, 1, 2, 3, -1, 5, -2, 4], capacity=12)
    call["tokens"][2, 3] = -1
    got, status = check(device, call)
    bad = Status.OUT_OF_RANGE
    assert status == [bad, bad, Status.BAD_DRAFT_ID, bad, 0, bad, bad, 0]
    assert (got.ids[:7] == MASK).all() and (got.positions[:7] == -1).all()
    assert got.ids[7, 0] == 402


@settings(max_examples=60)
@given(
    rows=st.sampled_from([0, 1, 3, 1100]),
    page_size=st.sampled_from([1, 3, 16]),
    max_block=st.sampled_from([1, 2, 8, 16]),
    has=st.tuples(*[st.booleans()] * 3),
    sample_from_anchor=st.booleans(),
    seed=st.integers(0, 2**31 - 1),
)
def test_equals_reference(device, rows, page_size, max_block, has, sample_from_anchor, seed):
    g = torch.Generator().manual_seed(seed)

    def ints(low, high, *shape):
        return torch.randint(low, high, shape, generator=g)

    call = make_call(ints(0, 22, rows).tolist(), 1 + 30 // page_size, page_size, max_block, 20)
    call["block_table"] = ints(-1, 40, *call["block_table"].shape)
    call |= {"num_pages": 39, "null_page": 5, "sample_from_anchor": sample_from_anchor}
    options = {
        "req_rows": torch.cat([torch.randperm(rows, generator=g), ints(-1, 0, 2)]),
        "table_start": ints(0, 3, rows),
        "block_lens": ints(-1, max_block + 2, rows + 2 * has[0]),
    }
    call |= {k: x for (k, x), wanted in zip(options.items(), has, strict=True) if wanted}
    check(device, call | {"status": torch.zeros(rows + 2 * has[0], dtype=torch.int32)})


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_any_strides_in_place(device, index):
    call = make_call([4, 2], req_rows=[1, 0], block_lens=[3, 4], table_start=[1, 0])
    want = reference.prepare_block(**call)
    ints = [k for k, x in call.items() if isinstance(x, torch.Tensor) and k != "status"]
    call |= {k: spread(call[k].to(device, index)) for k in ints}
    call["status"] = spread(call["status"].to(device))
    out = Block(*(spread(torch.zeros_like(x).to(device, index)) for x in want))
    assert prepare_block(**call, out=out) is out
    for a, b in zip(out, want, strict=True):
        assert torch.equal(a.cpu().long(), b)


def test_addresses_past_32_bits(device):
    buffer = torch.empty(2**32 + 8, dtype=torch.int32, device=device)
    tokens = buffer.as_strided((3, 2), (2**31, 1))
    tokens.copy_(torch.tensor([[5, 6], [7, 8], [9, 10]]))
    call = make_call([0, 1, 1]) | {"tokens": tokens}
    call = {k: x.to(device) if isinstance(x, torch.Tensor) else x for k, x in call.items()}
    assert prepare_block(**call).ids[:, 0].tolist() == [5, 8, 10]


INTS = "must be int32 or int64, got"
# fmt: off
WRONG = [
    ("tokens", torch.zeros(3).int(), ValueError, "tokens must have shape [R, capacity] = [*, *], got [3]"),
    ("tokens", torch.zeros(()).int(), ValueError, "tokens must have shape [R, capacity] = [*, *], got []"),
    ("ctx_lens", torch.zeros(3).int(), ValueError, "ctx_lens must have shape [R] = [2], got [3]"),
    ("block_table", torch.zeros(2, 4), TypeError, f"block_table {INTS} float32"),
    ("table_start", torch.zeros(1).int(), ValueError, "table_start must have shape [R] = [2], got [1]"),
    ("req_rows", torch.zeros(2, 1).int(), ValueError, "req_rows must have shape [B] = [*], got [2, 1]"),
    ("block_lens", torch.zeros(3).int(), ValueError, "block_lens must have shape [B] = [2], got [3]"),
    ("max_block", 0, ValueError, "max_block must be at least 1, got 0"),
    ("mask_id", -1, ValueError, "mask_id must be at least 0, got -1"),
    ("page_size", 0, ValueError, "page_size must be at least 1, got 0"),
    ("num_pages", -1, ValueError, "num_pages must be at least 0, got -1"),
    ("status", torch.zeros(2), TypeError, "status must be int32, got float32"),
    ("ids", torch.zeros(2, 3).int(), ValueError, "ids must have shape [B, max_block] = [2, 4], got [2, 3]"),
    ("positions", torch.zeros(2, 4), TypeError, f"positions {INTS} float32"),
    ("slots", torch.zeros(2, 4), TypeError, f"slots {INTS} float32"),
    ("draft_rows", torch.zeros(2, 4).int(), ValueError, "draft_rows must have shape [B, max_drafts] = [2, 3], got [2, 4]"),
    ("num_drafts", torch.zeros(3).int(), ValueError, "num_drafts must have shape [B] = [2], got [3]"),
]
# fmt: on


@pytest.mark.parametrize(("name", "value", "error", "text"), WRONG)
def test_names_what_is_wrong(name, value, error, text):
    call = make_call([4, 2])
    out = reference.prepare_block(**call)._asdict()
    (out if name in out else call)[name] = value
    assert_raises_alike(prepare_block, OP.out, call, out, error, text, Block)
    if name not in out:
        assert_raises_alike(prepare_block, OP, call, {}, error, text)


def test_opcheck(device):
    call = make_call([4, 2], req_rows=[1, 0, -1], block_lens=[3, 4, 4])
    call = {k: x.to(device) if isinstance(x, torch.Tensor) else x for k, x in call.items()}
    args = [call.pop(name) for name in ("tokens", "ctx_lens", "block_table")]
    for sample_from_anchor in (False, True):
        options = call | {"sample_from_anchor": sample_from_anchor}
        torch.library.opcheck(OP.default, args, options)
    out = Block(*(torch.empty_like(x) for x in OP(*args, **call)))
    torch.library.opcheck(OP.out, args, call | out._asdict())


def test_compiles_whole(device):
    compiled = torch.compile(prepare_block, fullgraph=True)
    for ctx_lens in ([4, 2], [1, 0, 5]):
        call = make_call(ctx_lens)
        call = {k: x.to(device) if isinstance(x, torch.Tensor) else x for k, x in call.items()}
        for a, b in zip(compiled(**call), prepare_block(**call), strict=True):
            assert torch.equal(a, b)
