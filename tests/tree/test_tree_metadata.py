from itertools import product

import pytest
import torch
from calls import assert_raises_alike, spread
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_ops import Status, TreeMetadata, reference, tree_metadata

# Both sides of one mask word and of two; the request without drafts, and the one without rows.
EDGES = [0, 1, 2, 31, 32, 33, 63, 64, 65]
OP = torch.ops.dflash.tree_metadata


def check(device, parents, cu_rows, tree_nodes=None, *, max_rows):
    """The op's result and status, on the CPU, after they were found equal to the reference's."""
    args = [None if x is None else torch.as_tensor(x) for x in (parents, cu_rows, tree_nodes)]
    status = torch.zeros(len(cu_rows) - 1, dtype=torch.int32)
    want = reference.tree_metadata(*args[:2], tree_nodes=args[2], max_rows=max_rows, status=status)
    moved = [None if x is None else x.to(device) for x in args]
    got_status = torch.zeros_like(status, device=device)
    got = tree_metadata(*moved[:2], tree_nodes=moved[2], max_rows=max_rows, status=got_status)
    got, got_status = TreeMetadata(*(x.cpu() for x in got)), got_status.cpu()
    for name, a, b in zip(
        (*TreeMetadata._fields, "status"), (*got, got_status), (*want, status), strict=True
    ):
        assert torch.equal(a, b), f"{name}: got {a}, expected {b}"
    return got, got_status


def random_trees(seed, sizes):
    g = torch.Generator().manual_seed(seed)
    row_idx = torch.tensor([i for size in sizes for i in range(size)], dtype=torch.int64)
    parents = (torch.rand(len(row_idx), generator=g) * row_idx).long()
    parents[row_idx == 0] = -1
    return parents, torch.tensor([0, *sizes]).cumsum(0)


def test_a_small_tree(device):
    #  0 -> 1, 2, 4;  2 -> 3, 5
    got, _ = check(device, [-1, 0, 0, 2, 0, 2], [0, 6], max_rows=6)
    assert got.depth.tolist() == [0, 1, 1, 2, 1, 2]
    assert got.mask_bits.tolist() == [[1], [0b11], [0b101], [0b1101], [0b10001], [0b100101]]
    assert got.first_child.tolist() == [1, -1, 3, -1, -1, -1]
    assert got.next_sibling.tolist() == [-1, 2, 4, 5, -1, -1]


@pytest.mark.parametrize("size", EDGES[1:])
def test_a_chain_sees_all_before_it(device, size):
    for parents, tree_nodes in ((torch.arange(-1, size - 1), None), (torch.full((size,), 7), [0])):
        got, status = check(device, parents, [0, size], tree_nodes, max_rows=size)
        bits = got.mask_bits[:, :, None] >> torch.arange(32) & 1
        assert torch.equal(bits.flatten(1)[:, :size], torch.ones(size, size).tril().int())
        assert got.depth.tolist() == list(range(size)) and status.item() == 0


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6])
def test_every_small_tree(device, size):
    trees = torch.tensor(list(product([-1], *(range(i) for i in range(1, size)))))
    check(device, trees.flatten(), torch.arange(0, trees.numel() + 1, size), max_rows=size)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_small_tree_with_bad_parents(device, size):
    trees = torch.tensor(list(product(range(-1, size + 1), repeat=size)))
    cu_rows = torch.arange(0, trees.numel() + 1, size)
    got, _ = check(device, trees.flatten(), cu_rows, max_rows=size)
    assert (got.mask_bits[::size, 0] == 1).all()  # the anchor stays


@settings(max_examples=60)
@given(
    sizes=st.lists(st.sampled_from([*EDGES, 255, 256, 257]) | st.integers(0, 70), max_size=6),
    max_rows=st.sampled_from([1, 31, 32, 33, 64, 256]),
    bad=st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(-70, 70)), max_size=2),
    kinds=st.none() | st.lists(st.integers(-1, 2), min_size=6, max_size=6),
    tail=st.sampled_from([0, 5]),
    seed=st.integers(0, 2**31 - 1),
)
def test_equals_reference(device, sizes, max_rows, bad, kinds, tail, seed):
    parents, cu_rows = random_trees(seed, [*sizes, tail])
    for row, parent in bad:
        if len(parents):
            parents[row % len(parents)] = parent
    tree_nodes = None if kinds is None else torch.tensor(kinds)[: len(sizes)]
    check(device, parents, cu_rows[:-1], tree_nodes, max_rows=max_rows)


def test_rows_out_of_range_and_rows_of_no_request(device):
    bad = Status.OUT_OF_RANGE
    got, status = check(device, [-1, 0, -1, 0, 0], [1, 0, 2, 6, -1, 2], max_rows=4)
    assert status.tolist() == [bad, 0, bad, bad, bad]
    assert got.mask_bits.flatten().tolist() == [1, 3, 0, 0, 0]


def test_a_bad_tree_leaves_its_neighbours_alone(device):
    got, status = check(device, [-1, 0, 3, -1, 1, -1, 0], [0, 3, 5, 7], max_rows=3)
    assert status.tolist() == [Status.BAD_TREE, Status.BAD_TREE, 0]
    assert got.mask_bits.flatten().tolist() == [1, 3, 0, 1, 0, 1, 3]
    assert got.depth.tolist() == [0, 1, 0, 0, 0, 0, 1]


def test_a_tree_above_the_bound_is_cut(device):
    got, status = check(device, [-1, 0, 1, 2], [0, 4], max_rows=2)
    assert status.item() == Status.BOUND_TOO_SMALL
    assert got.depth.tolist() == [0, 1, 0, 0] and got.first_child.tolist() == [1, -1, -1, -1]


def test_many_tasks(device):
    parents, cu_rows = random_trees(0, [16] * 3000)
    torch.set_num_threads(3)
    check(device, parents, cu_rows, max_rows=64)
    torch.set_num_threads(1)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_any_strides_in_place(device, index):
    parents, cu_rows = random_trees(3, [9, 0, 40])
    nodes = torch.tensor([1, 1, 0])
    want = reference.tree_metadata(parents, cu_rows, max_rows=40, tree_nodes=nodes)
    args = [spread(x.to(device, index)) for x in (parents, cu_rows, nodes)]
    fields = want._asdict()
    out = TreeMetadata(
        **{
            k: spread(x.to(device, torch.int32 if k == "mask_bits" else index))
            for k, x in fields.items()
        }
    )
    for x in out:
        x.fill_(99)
    status = spread(torch.full((3,), Status.BAD_Q, dtype=torch.int32, device=device))
    got = tree_metadata(*args[:2], tree_nodes=args[2], max_rows=40, status=status, out=out)
    assert got is out and status.tolist() == [Status.BAD_Q] * 3
    for a, b in zip(out, want, strict=True):
        assert torch.equal(a.cpu().int(), b)
        assert (a._base[::2] == 12345).all()


def test_addresses_past_32_bits(device):
    parents = torch.tensor([-1, 0, 1], device=device)
    buffer = torch.empty(2**32 + 8, dtype=torch.int32, device=device)
    mask_bits = buffer.as_strided((3, 1), (2**31, 1))
    depth, first, following = torch.zeros(3, 3, dtype=torch.int32, device=device)
    out = TreeMetadata(depth, mask_bits, first, following)
    tree_metadata(parents, torch.tensor([0, 3], device=device), max_rows=3, out=out)
    assert mask_bits.flatten().tolist() == [1, 3, 7]


def valid_call():
    ints = [torch.zeros(4, dtype=torch.int64) for _ in range(3)]
    call = {"parents": ints[0], "cu_rows": torch.tensor([0, 4]), "max_rows": 33}
    call |= {"tree_nodes": torch.ones(1).int(), "status": torch.zeros(1, dtype=torch.int32)}
    return call, TreeMetadata(ints[0], torch.zeros(4, 2).int(), ints[1], ints[2])._asdict()


INTS = "must be int32 or int64, got"
# fmt: off
WRONG = [
    ("parents", torch.zeros(4), TypeError, f"parents {INTS} float32"),
    ("cu_rows", torch.zeros(0).int(), ValueError, "len(cu_rows) must be at least 1, got 0"),
    ("max_rows", 0, ValueError, "max_rows must be at least 1, got 0"),
    ("tree_nodes", torch.zeros(2).int(), ValueError, "tree_nodes must have shape [B] = [1], got [2]"),
    ("status", torch.zeros(1), TypeError, "status must be int32, got float32"),
    ("depth", torch.zeros(3).int(), ValueError, "depth must have shape [T] = [4], got [3]"),
    ("mask_bits", torch.zeros(4, 2).long(), TypeError, "mask_bits must be int32, got int64"),
    ("mask_bits", torch.zeros(4, 1).int(), ValueError, "mask_bits must have shape [T, ceil(max_rows / 32)] = [4, 2], got [4, 1]"),
    ("first_child", torch.zeros(4), TypeError, f"first_child {INTS} float32"),
    ("next_sibling", torch.zeros(5).int(), ValueError, "next_sibling must have shape [T] = [4], got [5]"),
]
# fmt: on


@pytest.mark.parametrize(("name", "value", "error", "text"), WRONG)
def test_names_what_is_wrong(name, value, error, text):
    call, out = valid_call()
    (out if name in out else call)[name] = value
    assert_raises_alike(tree_metadata, OP.out, call, out, error, text, TreeMetadata)
    if name in call:
        assert_raises_alike(tree_metadata, OP, call, {}, error, text)


def test_opcheck(device):
    args = [x.to(device) for x in random_trees(0, [3, 0, 9])]
    status = torch.zeros(3, dtype=torch.int32, device=device)
    torch.library.opcheck(OP.default, args, {"max_rows": 40, "status": status})
    torch.library.opcheck(OP.default, args, {"max_rows": 9})
    out = TreeMetadata(*(torch.empty_like(x) for x in OP(*args, max_rows=9)))
    torch.library.opcheck(OP.out, args, {"max_rows": 9, "status": status, **out._asdict()})


def test_compiles_whole(device):
    compiled = torch.compile(tree_metadata, fullgraph=True)
    for sizes in ([3, 0, 9], [1, 33]):
        args = [x.to(device) for x in random_trees(0, sizes)]
        got, want = (f(*args, max_rows=33) for f in (compiled, tree_metadata))
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
