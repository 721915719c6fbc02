from itertools import product

import pytest
import torch
from calls import assert_raises_alike, spread
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_ops import Status, reference, tree_from_mask, tree_metadata

OP = torch.ops.dflash.tree_from_mask


def check(device, mask, cu_rows):
    mask, cu_rows = torch.as_tensor(mask), torch.as_tensor(cu_rows)
    status = torch.zeros(len(cu_rows) - 1, dtype=torch.int32)
    want = reference.tree_from_mask(mask, cu_rows, status=status)
    got_status = torch.zeros_like(status, device=device)
    got = tree_from_mask(mask.to(device), cu_rows.to(device), status=got_status)
    assert torch.equal(got.cpu(), want), (mask, got, want)
    assert torch.equal(got_status.cpu(), status)
    return want.tolist(), status.tolist()


def test_a_small_tree(device):
    words = torch.tensor([[1], [0b11], [0b101], [0b1101], [0b10001], [0b100101]]).int()
    want = [-1, 0, 0, 2, 0, 2]
    assert check(device, words, [0, 6]) == (want, [0])
    bools = (words >> torch.arange(6) & 1).bool()
    assert check(device, bools, [0, 6]) == (want, [0])


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_mask_of_few_rows(device, size):
    rows = list(product((False, True), repeat=size))
    masks = torch.tensor(list(product(rows, repeat=size)))
    cu_rows = torch.arange(0, size * len(masks) + 1, size)
    check(device, masks.flatten(0, 1), cu_rows)


@settings(max_examples=40)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 2, 31, 32, 33, 65]), max_size=4),
    flip=st.booleans(),
    seed=st.integers(0, 2**31 - 1),
)
def test_undoes_the_mask_of_tree_metadata(device, sizes, flip, seed):
    g = torch.Generator().manual_seed(seed)
    row_idx = torch.tensor([i for size in sizes for i in range(size)], dtype=torch.int64)
    parents = (torch.rand(len(row_idx), generator=g) * row_idx).long()
    parents[row_idx == 0] = -1
    cu_rows = torch.tensor([0, *sizes]).cumsum(0)
    mask = tree_metadata(parents, cu_rows, max_rows=65).mask_bits
    if flip and len(mask):
        mask[int(torch.randint(0, len(mask), (1,), generator=g)), 0] ^= 1 << int(
            torch.randint(0, 31, (1,), generator=g)
        )
    got, _ = check(device, mask, cu_rows)
    assert flip or got == parents.tolist()


def test_a_bad_row_drops_those_after_it(device):
    words = torch.tensor([[1], [3], [0b110], [0b1001], [1], [3]]).int()
    got, status = check(device, words, [0, 4, 6, 4, 7])
    bad = Status.OUT_OF_RANGE
    assert got == [-1, 0, -1, -1, -1, 0] and status == [Status.BAD_TREE, 0, bad, bad]


def test_a_node_that_sees_past_its_request_is_bad(device):
    for mask in (torch.tensor([[1], [3 | 4]]).int(), torch.tensor([[1, 0, 0], [1, 1, 1]]).bool()):
        assert check(device, mask, [0, 2])[1] == [Status.BAD_TREE]


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_any_strides_in_place(device, index):
    words = torch.tensor([[1, 0], [3, 0], [5, 0]]).int()
    for mask in (words, (words[:, :1] >> torch.arange(3) & 1).bool()):
        out = spread(torch.zeros(3, dtype=index, device=device))
        args = spread(mask.to(device)), spread(torch.tensor([0, 3]).to(device, index))
        assert tree_from_mask(*args, out=out) is out
        assert out.tolist() == [-1, 0, 0]


def test_addresses_past_32_bits(device):
    buffer = torch.empty(2**32 + 64, dtype=torch.int32, device=device)
    mask = buffer.as_strided((3, 1), (2**31, 1))
    mask.copy_(torch.tensor([[1], [3], [7]]))
    assert tree_from_mask(mask, torch.tensor([0, 3], device=device)).tolist() == [-1, 0, 1]


# fmt: off
WRONG = [
    ("mask", torch.zeros(3, 1), TypeError, "mask must be int32 or bool, got float32"),
    ("mask", torch.zeros(3).int(), ValueError, "mask must have shape [T, W] or [T, N] = [*, *], got [3]"),
    ("cu_rows", torch.zeros(0).int(), ValueError, "len(cu_rows) must be at least 1, got 0"),
    ("status", torch.zeros(2).int(), ValueError, "status must have shape [B] = [1], got [2]"),
    ("parents", torch.zeros(4).int(), ValueError, "parents must have shape [T] = [3], got [4]"),
]
# fmt: on


@pytest.mark.parametrize(("name", "value", "error", "text"), WRONG)
def test_names_what_is_wrong(name, value, error, text):
    call = {"mask": torch.tensor([[1], [3], [5]]).int(), "cu_rows": torch.tensor([0, 3])}
    call["status"] = torch.zeros(1, dtype=torch.int32)
    out = {"parents": torch.zeros(3).int()}
    (out if name in out else call)[name] = value
    assert_raises_alike(tree_from_mask, OP.out, call, out, error, text)
    if name not in out:
        assert_raises_alike(tree_from_mask, OP, call, {}, error, text)


def test_opcheck_and_compile(device):
    args = [torch.tensor([[1], [3], [5]], device=device).int(), torch.tensor([0, 3], device=device)]
    status = {"status": torch.zeros(1, dtype=torch.int32, device=device)}
    torch.library.opcheck(OP.default, args, status)
    torch.library.opcheck(OP.out, args, status | {"parents": torch.zeros(3).int().to(device)})
    compiled = torch.compile(tree_from_mask, fullgraph=True)
    assert torch.equal(compiled(*args), tree_from_mask(*args))
