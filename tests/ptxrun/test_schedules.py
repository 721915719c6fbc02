"""Our kernels in every schedule: the same bits, and in every way to add within the bound.

`pytest --ptx-matrix` does the same with all tests of emulated kernels.
"""

from itertools import combinations, product

import ptxrun
import pytest
import torch
from attention.sequences import make_call, random_sequence, rows_of, same_bits
from bounds import assert_within
from ptxrun.schedules import LANDINGS, MATRIX, MODES, ORDERS, SCHEDULES
from test_own_kernels import CALLS

from dflash_ops import reference, tree_attention, verify_gemm

pytestmark = pytest.mark.usefixtures("on_ptx")


@pytest.fixture
def on_ptx():
    with ptxrun.emulated(missing=pytest.skip):
        yield


def in_every_schedule(call, mode):
    results = []
    for schedule in SCHEDULES:
        with ptxrun.using(**schedule | {"mma": mode, "seed": 0}):
            results.append(call())
    assert all(same_bits(results[0], other) for other in results[1:])
    return results[0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_verify_gemm(dtype, mode):
    """Both sides of a tile of rows; a ragged last chunk of the depth."""
    x, weight = torch.randn(33, 519).to(dtype), (torch.randn(17, 519) / 519**0.5).to(dtype)
    (got,) = in_every_schedule(lambda: [verify_gemm(x, weight, out_dtype=torch.float32)], mode)
    size = x.double().abs() @ weight.double().abs().T
    assert_within(got, x.double() @ weight.double().T, size)
    with ptxrun.using(mma=mode):
        row = verify_gemm(x[5:6], weight, out_dtype=torch.float32)
    assert torch.equal(row, got[5:6])


@pytest.mark.parametrize("mode", MODES)
def test_tree_attention(mode):
    """A tree, a chain over two leaves, and no rows."""
    requests = [(70, 9, True), (513, 2, False), (3, 0, False)]
    call = make_call(requests, heads=(4, 2), dims=(64, 64), dtype=torch.bfloat16)
    got = in_every_schedule(lambda: tree_attention(**call), mode)
    want = reference.tree_attention(**call)
    weighted = reference.tree_attention(**call | {"v_cache": call["v_cache"].double().abs()}).out
    size = {"q": call["q"].double().abs(), "k_cache": call["k_cache"].double().abs()}
    scores = 1 + reference.tree_attention(**call | size).lse
    assert_within(got[1], want.lse, scores)
    assert_within(got[0], want.out, weighted * scores[..., None], weighted * 2.0**-9)
    sequence = random_sequence(515, (4, 2), (64, 64), torch.bfloat16, seed=10)
    with ptxrun.using(mma=mode):
        alone = rows_of("cpu", sequence, 513, 2, page_size=3)
    assert same_bits([x[9:11] for x in got], alone)


def test_every_two_options_meet_in_the_matrix():
    ways = {"order": ORDERS, "landing": LANDINGS, "mma": MODES}
    for (a, of_a), (b, of_b) in combinations(ways.items(), 2):
        assert {(options[a], options[b]) for options in MATRIX} == set(product(of_a, of_b))


@pytest.mark.parametrize("kernel", CALLS)
def test_integer_kernels(kernel):
    for schedule in SCHEDULES:
        with ptxrun.using(**schedule):
            CALLS[kernel]()
