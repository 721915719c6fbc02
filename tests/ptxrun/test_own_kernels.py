"""Our kernels with one instruction fewer, or one that is off: a check speaks or results are wrong.
Those that may go are listed with the reason."""

import functools

import ptxrun
import pytest
import torch
from attention.sequences import make_call
from bounds import assert_within
from dropped import assert_each_matters, drop, granted, shift

from dflash_ops import accept_match, reference, tree_attention, tree_metadata, verify_gemm

long = pytest.mark.long
WARP = "round global memory: ptxrun does not look for races of the lanes of a warp there"
EMPTY = "of empty groups: all copies have been waited for"

# Requests of 40 rows, so that a warp takes two chunks; a bad parent in the last but one, which ends
# at a padded one. Rows of no request stand before and behind.
SIZES, BEFORE, BEHIND = [40, 3, 0, 40, 2], 2, 35


def trees(seed):
    g = torch.Generator().manual_seed(seed)
    row = torch.tensor(
        [*range(BEFORE), *(i for size in SIZES for i in range(size)), *range(BEHIND)]
    )
    parents = (torch.rand(len(row), generator=g) * row).long()
    parents[row == 0] = -1
    tokens, targets = torch.randint(2, (2, len(row)), generator=g)
    cu_rows = torch.tensor([BEFORE, *SIZES]).cumsum(0)
    parents[cu_rows[4] - 2] = 99
    targets[cu_rows[4]] = -1
    return tokens, cu_rows, targets, parents


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


# pattern, change, survivors: their numbers among the instructions of the pattern, and why
ACCEPT = [
    (r"shfl\.sync", drop, {}),
    (r"vote\.sync", drop, {}),
    (r"st\.global", drop, {}),
    (r"st\.global", shift(0, 8), {}),
    (r"ld\.global", shift(0, 8), {}),
]
TREE = [
    (r"bar\.sync", drop, {}),
    (r"bar\.warp\.sync", drop, {range(6): WARP}),
    (r"atom|red\.", drop, {}),
    (r"st\.(?:global|shared)", drop, {}),
    (r"st\.(?:global|shared)", shift(0, 8), {}),
    (
        r"ld\.(?:global|shared)",
        shift(0, 8),
        {(11,): "of the last 32 nodes: no node has a child yet"},
    ),
]


@pytest.mark.parametrize(("pattern", "change", "reasons"), ACCEPT)
def test_accept_match_needs_each(pattern, change, reasons):
    assert_each_matters(call_accept_match, "accept_match_kernel", pattern, change, reasons)


@pytest.mark.parametrize(("pattern", "change", "reasons"), TREE)
def test_tree_metadata_needs_each(pattern, change, reasons):
    assert_each_matters(call_tree_metadata, "tree_metadata", pattern, change, reasons)


@functools.cache
def product(arch, rows, outputs, depth):
    """The call of a packed weight; its last step of k is not whole."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(rows, depth, generator=g).bfloat16()
    weight = (torch.randn(outputs, depth, generator=g) / depth**0.5).bfloat16()
    packed = reference.pack_weight(weight, layout="cuda")
    want = x.double() @ weight.double().T
    size = x.double().abs() @ weight.double().abs().T

    def call():
        with ptxrun.emulated(missing=pytest.skip, arch=arch):
            got = verify_gemm(x, packed, num_outputs=outputs, out_dtype=torch.float32)
        assert_within(got, want, size)

    return call


# One CTA whose eight warps go through three stages twice.
SM80 = [
    (r"bar\.sync", drop, {}),
    (r"cp\.async\.c[ag]", drop, {}),
    (r"cp\.async\.c[ag]", shift(0), {}),
    (r"cp\.async\.c[ag]", shift(1), {}),
    (r"cp\.async\.commit_group", drop, {}),
    (r"cp\.async\.wait_group", drop, {(1,): EMPTY}),
    (r"mma\.sync", drop, {}),
    (r"(?:ld|st)\.shared", shift(0, 16), {}),
    (r"st\.(?:shared|global)", drop, {}),
    (r"st\.global", shift(0, 4), {}),
]
# A cluster of four CTAs, each with its split of k, through four stages twice.
SM90 = [
    (r"bar\.sync", drop, {}),
    (r"bar\.warp\.sync", drop, {(0,): "behind wgmma.wait_group, for which the warp meets anyway"}),
    (r"barrier\.cluster", drop, {}),
    (r"cp\.async\.(?:c[ag]|bulk|mbarrier)", drop, {}),
    (r"cp\.async\.(?:c[ag]|bulk|mbarrier)", shift(0, 16), {}),
    (r"cp\.async\.(?:c[ag]|bulk)", shift(1), {}),
    (r"fence\.proxy\.async", drop, {}),
    (r"fence\.mbarrier_init", drop, {}),
    (r"griddepcontrol\.wait", drop, {(0, 1): "no grid runs before"}),
    (r"mbarrier\.arrive", drop, {}),
    (r"mbarrier\.arrive", shift(0, 8), {}),
    (r"mbarrier\.init", drop, {}),
    (r"mbarrier\.init", shift(0, 8), {}),
    (r"mbarrier\.try_wait", granted, {}),
    (r"mbarrier\.try_wait", shift(0, 8), {}),
    (r"wgmma\.", drop, {}),
    (r"(?:ld|st)\.shared", shift(0, 4), {}),
    (r"st\.(?:shared|global)", drop, {}),
    (r"st\.global", shift(0, 4), {}),
]


@pytest.mark.parametrize(("pattern", "change", "reasons"), SM80)
def test_verify_gemm_needs_each(pattern, change, reasons):
    assert_each_matters(product(80, 64, 64, 536), "verify_gemm", pattern, change, reasons)


@pytest.mark.parametrize(("pattern", "change", "reasons"), SM90)
def test_verify_gemm_on_sm90_needs_each(pattern, change, reasons):
    assert_each_matters(product(90, 32, 128, 1512), "verify_gemm_sm90", pattern, change, reasons)


@functools.cache
def attention():
    """A tree of nine rows behind more keys than a leaf has, and a request without rows."""
    call = make_call(
        [(1100, 9, True), (3, 0, False)], heads=(4, 2), dims=(64, 64), dtype=torch.bfloat16
    )
    want = reference.tree_attention(**call)
    weighted = reference.tree_attention(**call | {"v_cache": call["v_cache"].double().abs()}).out
    size = {"q": call["q"].double().abs(), "k_cache": call["k_cache"].double().abs()}
    scores = 1 + reference.tree_attention(**call | size).lse

    def run():
        with ptxrun.emulated(missing=pytest.skip):
            out, lse = tree_attention(**call)
        assert_within(lse, want.lse, scores)
        assert_within(out, want.out, weighted * scores[..., None], weighted * 2.0**-9)

    return run


BARRIERS = {
    (1, 4): "others of the same turn say the same",
    (9,): "for leaves that are done again, of which there is none",
}
ATTENTION = [
    (r"cp\.async\.cg", drop, {}),
    (r"cp\.async\.commit_group", drop, {}),
    (r"(?:atom|vote)\.", drop, {}),
    pytest.param(r"bar\.sync", drop, BARRIERS, marks=long),
    pytest.param(r"cp\.async\.wait_group", drop, {(2,): EMPTY}, marks=long),
    pytest.param(r"cp\.async\.cg", shift(0), {}, marks=long),
    pytest.param(r"cp\.async\.cg", shift(1), {}, marks=long),
    pytest.param(r"ldmatrix", drop, {}, marks=long),
    pytest.param(r"ldmatrix", shift(0), {}, marks=long),
    pytest.param(r"mma\.sync", drop, {}, marks=long),
]


@pytest.mark.parametrize(("pattern", "change", "reasons"), ATTENTION)
def test_tree_attention_needs_each(pattern, change, reasons):
    assert_each_matters(attention(), "tree_attention_kernel", pattern, change, reasons)
