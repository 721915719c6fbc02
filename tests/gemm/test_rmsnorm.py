import re

import pytest
import torch
from bounds import assert_within
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_ops import reference, rmsnorm

FLOATS = [torch.bfloat16, torch.float16, torch.float32]
DEPTHS = [0, 1, 2, 15, 16, 17, 511, 512, 513, 1024, 1025]
OP = torch.ops.dflash.rmsnorm


def test_planted_rows(device):
    x = torch.tensor([[4.0, -4.0, 4.0, -4.0], [0, 0, 0, 0], [8.0, 0, 0, 0]], device=device)
    weight = torch.tensor([1.0, 1, 3, 0.5], device=device)
    want = [[1, -1, 3, -0.5], [0, 0, 0, 0], [2, 0, 0, 0]]
    assert rmsnorm(x[::2], weight, eps=0.0).tolist() == want[::2]
    assert rmsnorm(x, weight).tolist()[1] == want[1]
    assert rmsnorm(x, weight, eps=48.0).tolist()[0] == [0.5, -0.5, 1.5, -0.25]


@given(
    num_rows=st.integers(0, 5),
    depth=st.sampled_from(DEPTHS) | st.integers(1, 1100),
    dtype=st.sampled_from(FLOATS),
    weight_dtype=st.sampled_from(FLOATS),
    eps=st.sampled_from([0.0, 1e-6, 1e-5, 1.0]),
    seed=st.integers(0, 2**31 - 1),
)
@settings(max_examples=60)
def test_within_bound_of_reference(device, num_rows, depth, dtype, weight_dtype, eps, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(num_rows, depth, generator=g).to(device, dtype)
    weight = torch.randn(depth, generator=g).to(device, weight_dtype)
    want = reference.rmsnorm(x.cpu(), weight.cpu(), eps=eps)
    got = rmsnorm(x, weight, eps=eps)
    assert got.dtype == dtype
    peer = torch.nn.functional.rms_norm(x.cpu(), [depth], weight.cpu().to(dtype), eps)
    peer = peer if weight_dtype == dtype and depth else None
    assert_within(got.cpu(), want, terms=want.abs(), from_torch=peer)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("depth", DEPTHS[1:])
def test_a_row_has_its_bits_in_any_call_and_isa(each_isa, dtype, depth):
    x = torch.randn(70, depth).to(dtype)
    weight = torch.randn(depth).to(dtype)
    first, *others = each_isa(lambda: rmsnorm(x, weight))
    assert all(torch.equal(first, other) for other in others)
    for row in (0, 1, 33, 69):
        assert torch.equal(rmsnorm(x[row : row + 1], weight)[0], first[row])
    shuffle = torch.randperm(70)
    assert torch.equal(rmsnorm(x[shuffle], weight), first[shuffle])


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_and_inf_stay_in_their_row(device, dtype):
    x = torch.ones(4, 40, dtype=dtype, device=device)
    x[1, 3], x[2, 5] = float("nan"), float("inf")
    got = rmsnorm(x, torch.ones(40, dtype=dtype, device=device), eps=0.0).cpu()
    assert torch.equal(got[::3], torch.ones(2, 40, dtype=dtype))
    assert got[1].isnan().all()
    assert got[2, 5].isnan() and got[2, :5].count_nonzero() == 0


@pytest.mark.parametrize("dtype", FLOATS)
def test_strides_and_out(device, dtype):
    buffer = torch.full((5, 99), float("nan"), dtype=dtype, device=device)
    x = buffer[::2, 9:80]
    x.copy_(torch.randn(3, 71))
    weight = torch.randn(71, device=device).to(dtype)
    want = rmsnorm(x.contiguous(), weight)
    out = torch.full((71, 6), 5.0, device=device).t()[::2]
    assert rmsnorm(x, weight, out=out) is out
    assert torch.equal(out, want.float())  # rounded to x's dtype whatever out's is
    assert torch.equal(out.t().contiguous().t(), want.float())


def test_addresses_past_32_bits(device):
    buffer = torch.empty(2**32 + 4, dtype=torch.bfloat16, device=device)  # 3 pages are touched
    x = buffer.as_strided((3, 4), (2**31, 1))
    x.copy_(torch.randn(3, 4))
    weight = torch.ones(4, device=device)
    want = rmsnorm(x.contiguous(), weight)
    assert torch.equal(rmsnorm(x, weight), want)
    assert torch.equal(rmsnorm(x, weight, out=x), want)


# fmt: off
WRONG = [
    ("x", torch.zeros(3), ValueError, "x must have shape [M, H] = [*, *], got [3]"),
    ("x", torch.zeros(2, 4).int(), TypeError, "x must be bfloat16 or float16 or float32, got int32"),
    ("x", torch.zeros(4, 2).t(), ValueError, "x must have a contiguous last dimension, got strides [1, 2]"),
    ("weight", torch.zeros(3), ValueError, "weight must have shape [H] = [4], got [3]"),
    ("weight", torch.zeros(4).double(), TypeError, "weight must be bfloat16 or float16 or float32, got float64"),
    ("weight", torch.zeros(8)[::2], ValueError, "weight must have a contiguous last dimension, got strides [2]"),
    ("eps", -1.0, ValueError, "eps must be at least 0, got -1"),
    ("out", torch.zeros(2, 3), ValueError, "out must have shape [M, H] = [2, 4], got [2, 3]"),
    ("out", torch.zeros(2, 4).bool(), TypeError, "out must be bfloat16 or float16 or float32, got bool"),
]
# fmt: on


@pytest.mark.parametrize(("name", "value", "error", "text"), WRONG)
def test_names_what_is_wrong(name, value, error, text):
    call = {"x": torch.zeros(2, 4), "weight": torch.zeros(4), "out": torch.zeros(2, 4)}
    call[name] = value
    with pytest.raises(error, match=f"^{re.escape('rmsnorm: ' + text)}"):
        rmsnorm(**call)
    with pytest.raises(RuntimeError, match=f"^{re.escape('rmsnorm: ' + text)}"):
        OP.out(**call)


def test_opcheck(device):
    x, weight = torch.randn(3, 40, device=device), torch.randn(40, device=device)
    torch.library.opcheck(OP.default, (x, weight), {"eps": 1e-5})
    torch.library.opcheck(OP.out, (x, weight), {"out": torch.empty_like(x)})


def test_compiles_whole(device):
    compiled = torch.compile(rmsnorm, fullgraph=True)
    x, weight = torch.randn(3, 40, device=device), torch.randn(40, device=device)
    assert torch.equal(compiled(x, weight), rmsnorm(x, weight))
