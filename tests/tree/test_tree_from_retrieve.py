from itertools import product

import pytest
import torch
from calls import assert_raises_alike, spread
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_ops import Status, reference, tree_from_retrieve, tree_metadata

OP = torch.ops.dflash.tree_from_retrieve


def check(device, next_token, next_sibling):
    args = [torch.as_tensor(x) for x in (next_token, next_sibling)]
    status = torch.zeros(len(args[0]), dtype=torch.int32)
    want = reference.tree_from_retrieve(*args, status=status)
    got_status = torch.zeros_like(status, device=device)
    got = tree_from_retrieve(*(x.to(device) for x in args), status=got_status)
    assert torch.equal(got.cpu(), want), (args, got, want)
    assert torch.equal(got_status.cpu(), status)
    return want, status.tolist()


def test_a_small_tree(device):
    got, status = check(device, [[1, -1, 3, -1, -1, -1]], [[-1, 2, 4, 5, -1, -1]])
    assert got.tolist() == [[-1, 0, 0, 2, 0, 2]] and status == [0]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_short_pair_of_links(device, size):
    """Cycles, links to lower rows, shared children and links out of range among them."""
    links = list(product(range(-2, size + 1), repeat=size))
    pairs = list(product(links, links))
    check(device, *(torch.tensor(column) for column in zip(*pairs, strict=True)))


@settings(max_examples=40)
@given(
    batch=st.integers(0, 4), size=st.sampled_from([0, 1, 33, 65]), seed=st.integers(0, 2**31 - 1)
)
def test_undoes_the_links_of_tree_metadata(device, batch, size, seed):
    g = torch.Generator().manual_seed(seed)
    parents = (torch.rand(batch, size, generator=g) * torch.arange(size)).long()
    parents[:, :1] = -1
    cu_rows = torch.arange(batch + 1) * size
    links = tree_metadata(parents.flatten(), cu_rows, max_rows=max(size, 1))[2:]
    got, status = check(device, *(x.reshape(batch, size) for x in links))
    assert torch.equal(got, parents) and not any(status)


def test_links_with_a_cycle_end(device):
    """FAULTS B26"""
    _, status = check(device, [[1, -1, -1]], [[-1, 2, 1]])
    assert status == [Status.BAD_TREE]


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_any_strides_in_place(device, index):
    links = torch.tensor([[1, 3, -1, -1]]), torch.tensor([[-1, 2, -1, -1]])
    args = [spread(x.to(device, index)) for x in links]
    out = spread(torch.zeros(1, 4, dtype=index, device=device))
    assert tree_from_retrieve(*args, out=out) is out
    assert out.tolist() == [[-1, 0, 0, 1]]


def test_addresses_past_32_bits(device):
    buffer = torch.empty(2**32 + 64, dtype=torch.int32, device=device)
    links = buffer.as_strided((3, 2), (2**31, 1))
    links.copy_(torch.tensor([[1, -1]] * 3))
    none = torch.full((3, 2), -1, device=device)
    assert tree_from_retrieve(links, none).tolist() == [[-1, 0]] * 3


INTS = "must be int32 or int64, got"
# fmt: off
WRONG = [
    ("next_token", torch.zeros(2, 3), TypeError, f"next_token {INTS} float32"),
    ("next_sibling", torch.zeros(2, 4).int(), ValueError, "next_sibling must have shape [B, N] = [2, 3], got [2, 4]"),
    ("status", torch.zeros(1).int(), ValueError, "status must have shape [B] = [2], got [1]"),
    ("parents", torch.zeros(3, 2).int(), ValueError, "parents must have shape [B, N] = [2, 3], got [3, 2]"),
]
# fmt: on


@pytest.mark.parametrize(("name", "value", "error", "text"), WRONG)
def test_names_what_is_wrong(name, value, error, text):
    call = {k: torch.full((2, 3), -1) for k in ("next_token", "next_sibling")}
    call["status"] = torch.zeros(2, dtype=torch.int32)
    out = {"parents": torch.zeros(2, 3).int()}
    (out if name in out else call)[name] = value
    assert_raises_alike(tree_from_retrieve, OP.out, call, out, error, text)
    if name not in out:
        assert_raises_alike(tree_from_retrieve, OP, call, {}, error, text)


def test_opcheck_and_compile(device):
    args = [torch.tensor(x, device=device) for x in ([[1, 3, -1, -1]], [[-1, 2, -1, -1]])]
    status = {"status": torch.zeros(1, dtype=torch.int32, device=device)}
    torch.library.opcheck(OP.default, args, status)
    torch.library.opcheck(OP.out, args, status | {"parents": torch.empty_like(args[0])})
    compiled = torch.compile(tree_from_retrieve, fullgraph=True)
    assert torch.equal(compiled(*args), tree_from_retrieve(*args))
