"""Our kernels without one of their instructions: results must differ, or a check must speak."""

import ptxrun
import pytest
import torch
from dropped import survivors

from dflash_ops import accept_match, reference, tree_metadata

# Requests of 40 rows, so that a warp takes two chunks; a bad parent in the last.
SIZES = [40, 3, 0, 40]


def trees(seed):
    g = torch.Generator().manual_seed(seed)
    row = torch.tensor([i for size in SIZES for i in range(size)])
    parents = (torch.rand(len(row), generator=g) * row).long()
    parents[row == 0] = -1
    parents[-2] = 99
    tokens, targets = torch.randint(2, (2, len(row)), generator=g)
    return tokens, torch.tensor([0, *SIZES]).cumsum(0), targets, parents


def run(op, reference_op, *args, **options):
    batch = len(SIZES)
    status, wanted = (torch.zeros(batch, dtype=torch.int32) for _ in range(2))
    want = reference_op(*args, **options, status=wanted)
    with ptxrun.emulated(missing=pytest.skip):
        got = op(*args, **options, status=status)
    assert torch.equal(status, wanted)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def call_accept_match():
    for seed in range(3):
        args = trees(seed)
        run(accept_match, reference.accept_match, *args, max_path=4)


def call_tree_metadata():
    for seed in range(3):
        _, cu_rows, _, parents = trees(seed)
        run(tree_metadata, reference.tree_metadata, parents, cu_rows, max_rows=64)


CALLS = {"accept_match_kernel": call_accept_match, "tree_metadata": call_tree_metadata}


@pytest.mark.parametrize("kernel", CALLS)
def test_is_right_and_silent(kernel):
    CALLS[kernel]()


@pytest.mark.parametrize("pattern", [r"shfl\.sync", r"vote\.sync", r"bar\.sync", r"atom\.|red\."])
@pytest.mark.parametrize("kernel", CALLS)
def test_needs_each(kernel, pattern):
    assert survivors(CALLS[kernel], kernel, rf"(?:{pattern})") == []


def test_needs_each_store():
    assert survivors(call_accept_match, "accept_match_kernel", r"st\.global") == []
