from itertools import product

import pytest
import torch
from calls import assert_raises_alike, spread
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dflash_ops import Paths, Status, reference, tree_to_paths

OP = torch.ops.dflash.tree_to_paths


def check(device, parents, cu_rows, *, max_paths, max_path):
    args = [torch.as_tensor(x) for x in (parents, cu_rows)]
    status = torch.zeros(len(cu_rows) - 1, dtype=torch.int32)
    bounds = {"max_paths": max_paths, "max_path": max_path}
    want = reference.tree_to_paths(*args, **bounds, status=status)
    got_status = torch.zeros_like(status, device=device)
    got = tree_to_paths(*(x.to(device) for x in args), **bounds, status=got_status)
    assert torch.equal(got.paths.cpu(), want.paths)
    assert torch.equal(got.num_paths.cpu(), want.num_paths)
    assert torch.equal(got_status.cpu(), status), (got_status, status)
    return want, status.tolist()


def test_a_small_tree(device):
    #  0 -> 1, 2, 4;  2 -> 3, 5
    got, _ = check(device, [-1, 0, 0, 2, 0, 2], [0, 6], max_paths=5, max_path=2)
    assert got.paths[0].tolist() == [[0, 1, -1], [0, 2, 3], [0, 4, -1], [0, 2, 5], [-1, -1, -1]]
    assert got.num_paths.tolist() == [4]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_small_tree_good_and_bad(device, size):
    trees = torch.tensor(list(product(range(-1, size + 1), repeat=size)))
    cu_rows = torch.arange(0, trees.numel() + 1, size)
    for max_paths, max_path in product((0, 1, 3), (0, 1, 3)):
        check(device, trees.flatten(), cu_rows, max_paths=max_paths, max_path=max_path)


@settings(max_examples=40)
@example(sizes=[65, 31], max_paths=64, max_path=64, seed=0)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 2, 31, 65]), max_size=5),
    max_paths=st.sampled_from([0, 1, 7, 64]),
    max_path=st.sampled_from([0, 3, 64]),
    seed=st.integers(0, 2**31 - 1),
)
def test_equals_reference(device, sizes, max_paths, max_path, seed):
    g = torch.Generator().manual_seed(seed)
    row_idx = torch.tensor([i for size in sizes for i in range(size)], dtype=torch.int64)
    parents = (torch.rand(len(row_idx), generator=g) * row_idx).long()
    parents[row_idx == 0] = -1
    check(
        device, parents, torch.tensor([0, *sizes]).cumsum(0), max_paths=max_paths, max_path=max_path
    )


def test_bounds_and_bad_ranges(device):
    cut, bad = Status.BOUND_TOO_SMALL, Status.OUT_OF_RANGE
    _, status = check(device, [-1, 0, 1, -1, 0, 0], [0, 3, 6, 3, 7], max_paths=1, max_path=1)
    assert status == [cut, cut, bad, bad]


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_any_strides_in_place(device, index):
    parents, cu_rows = torch.tensor([-1, 0, 0, 2, -1, 0]), torch.tensor([0, 4, 6])
    want = reference.tree_to_paths(parents, cu_rows, max_paths=3, max_path=2)
    args = [spread(x.to(device, index)) for x in (parents, cu_rows)]
    out = Paths(*(spread(torch.zeros_like(x).to(device, index)) for x in want))
    status = spread(torch.full((2,), 4, dtype=torch.int32, device=device))
    assert tree_to_paths(*args, max_paths=3, max_path=2, status=status, out=out) is out
    assert all(torch.equal(a.cpu().long(), b) for a, b in zip(out, want, strict=True))
    assert status.tolist() == [4, 4]


def test_addresses_past_32_bits(device):
    buffer = torch.empty(2**32 + 64, dtype=torch.int32, device=device)
    out = Paths(buffer.as_strided((3, 1, 2), (2**31, 2, 1)), torch.zeros(3, dtype=torch.int64))
    parents = torch.tensor([-1, 0, -1, 0, -1, 0], device=device)
    cu_rows = torch.tensor([0, 2, 4, 6], device=device)
    tree_to_paths(
        parents, cu_rows, max_paths=1, max_path=1, out=Paths(out.paths, out.num_paths.to(device))
    )
    assert out.paths.tolist() == [[[0, 1]]] * 3


INTS = "must be int32 or int64, got"
# fmt: off
WRONG = [
    ("parents", torch.zeros(4), TypeError, f"parents {INTS} float32"),
    ("cu_rows", torch.zeros(0).int(), ValueError, "len(cu_rows) must be at least 1, got 0"),
    ("max_paths", -1, ValueError, "max_paths must be at least 0, got -1"),
    ("max_path", -1, ValueError, "max_path must be at least 0, got -1"),
    ("status", torch.zeros(2).int(), ValueError, "status must have shape [B] = [1], got [2]"),
    ("paths", torch.zeros(1, 2, 2).int(), ValueError, "paths must have shape [B, max_paths, max_path + 1] = [1, 2, 3], got [1, 2, 2]"),
    ("num_paths", torch.zeros(1), TypeError, f"num_paths {INTS} float32"),
]
# fmt: on


@pytest.mark.parametrize(("name", "value", "error", "text"), WRONG)
def test_names_what_is_wrong(name, value, error, text):
    call = {
        "parents": torch.tensor([-1, 0, 0]),
        "cu_rows": torch.tensor([0, 3]),
        "max_paths": 2,
        "max_path": 2,
    }
    call["status"] = torch.zeros(1, dtype=torch.int32)
    out = reference.tree_to_paths(**call)._asdict()
    (out if name in out else call)[name] = value
    assert_raises_alike(tree_to_paths, OP.out, call, out, error, text, Paths)
    if name not in out:
        assert_raises_alike(tree_to_paths, OP, call, {}, error, text)


def test_opcheck_and_compile(device):
    args = [torch.tensor([-1, 0, 0, 2], device=device), torch.tensor([0, 4], device=device)]
    options = {
        "max_paths": 3,
        "max_path": 2,
        "status": torch.zeros(1, dtype=torch.int32, device=device),
    }
    torch.library.opcheck(OP.default, args, options)
    out = Paths(*(torch.empty_like(x) for x in OP(*args, **options)))
    torch.library.opcheck(OP.out, args, options | out._asdict())
    compiled = torch.compile(tree_to_paths, fullgraph=True)
    for a, b in zip(compiled(*args, **options), tree_to_paths(*args, **options), strict=True):
        assert torch.equal(a, b)
