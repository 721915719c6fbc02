import pytest
import torch
from bounds import assert_within
from calls import assert_raises_alike, spread
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_ops import ShardSum, reference, rmsnorm, sum_shards

OP = torch.ops.dflash.sum_shards
FLOATS = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [
    *((0, 2, 3), (1, 1, 1), (2, 5, 40), (8, 3, 257), (3, 0, 4), (2, 2, 0)),
    (2, 2, 4100),  # three rounds of 256 threads with 8 elements each
]


def make_call(seed=0, shards=3, rows=5, cols=40, dtype=torch.float32, residual=True, norm=True):
    g = torch.Generator().manual_seed(seed)
    return {
        "shards": torch.randn(shards, rows, cols, generator=g).to(dtype),
        "residual": torch.randn(rows, cols, generator=g).to(dtype) if residual else None,
        "norm_weight": torch.rand(cols, generator=g).to(dtype) + 0.5 if norm else None,
    }


def moved(call, device):
    return {k: x.to(device) if isinstance(x, torch.Tensor) else x for k, x in call.items()}


def test_adds_in_rank_order(device):
    """(2^24 + 1) + -2^24 is 0 in fp32; the other order would give 1."""
    shards = torch.tensor([2.0**24, 1.0, -(2.0**24)], device=device).reshape(3, 1, 1)
    got = sum_shards(shards)
    assert got.sum.tolist() == [[0.0]] and got.normed.shape == (0, 1)
    assert sum_shards(shards.flip(0)[[0, 2, 1]].clone()).sum.tolist() == [[1.0]]


@settings(max_examples=60)
@given(
    shape=st.sampled_from(SHAPES),
    dtype=st.sampled_from(FLOATS),
    out_dtype=st.sampled_from([None, *FLOATS]),
    has=st.tuples(st.booleans(), st.booleans()),
    seed=st.integers(0, 2**31 - 1),
)
def test_equals_reference_and_norms_like_rmsnorm(device, shape, dtype, out_dtype, has, seed):
    call = make_call(seed, *shape, dtype, *has)
    got = sum_shards(**moved(call, device), out_dtype=out_dtype)
    want = reference.sum_shards(**call)
    sizes = {k: None if x is None or k == "norm_weight" else x.abs() for k, x in call.items()}
    assert_within(got.sum.cpu(), want.sum, terms=reference.sum_shards(**sizes).sum)
    if has[1]:
        assert torch.equal(got.normed, rmsnorm(got.sum, call["norm_weight"].to(device)))


def test_a_row_depends_on_nothing_but_itself(device):
    call = moved(make_call(1, rows=70, cols=512, dtype=torch.bfloat16), device)
    torch.set_num_threads(3)
    together = sum_shards(**call)
    torch.set_num_threads(1)
    for row in (0, 33, 69):
        part = call | {
            "shards": call["shards"][:, row : row + 1],
            "residual": call["residual"][row : row + 1],
        }
        for a, b in zip(sum_shards(**part), together, strict=True):
            assert torch.equal(a, b[row : row + 1])


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_isa_gives_the_same_bits(each_isa, dtype):
    call = make_call(4, rows=3, cols=517, dtype=dtype)
    first, *others = each_isa(lambda: sum_shards(**call))
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_any_strides_in_place(device):
    call = moved(make_call(2), device)
    want = sum_shards(**call)
    call |= {k: spread(call[k], last=False) for k in ("shards", "residual")}
    out = ShardSum(*(spread(torch.zeros_like(x)) for x in want))
    assert sum_shards(**call, out=out) is out
    assert all(torch.equal(a, b) for a, b in zip(out, want, strict=True))


def test_addresses_past_32_bits(device):
    buffer = torch.empty(2**32, dtype=torch.bfloat16, device=device)
    shards = buffer.as_strided((2, 1, 2), (2**31 + 2, 2, 1))
    shards.copy_(torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]]))
    assert sum_shards(shards).sum.tolist() == [[4, 6]]


FLOAT = "must be bfloat16 or float16 or float32, got"
# fmt: off
WRONG = [
    ("shards", torch.zeros(3, 5), ValueError, "shards must have shape [S, M, N] = [*, *, *], got [3, 5]"),
    ("shards", torch.zeros(3, 5, 40).double(), TypeError, f"shards {FLOAT} float64"),
    ("residual", torch.zeros(4, 40), ValueError, "residual must have shape [M, N] = [5, 40], got [4, 40]"),
    ("residual", torch.zeros(5, 80)[:, ::2], ValueError, "residual must have a contiguous last dimension, got strides [80, 2]"),
    ("norm_weight", torch.zeros(40).int(), TypeError, f"norm_weight {FLOAT} int32"),
    ("eps", -0.5, ValueError, "eps must be at least 0, got -0.5"),
    ("sum", torch.zeros(5, 40).half(), TypeError, "sum must be float32, got float16"),
    ("normed", torch.zeros(0, 40), ValueError, "normed must have shape [M, N] = [5, 40], got [0, 40]"),
]
# fmt: on


@pytest.mark.parametrize(("name", "value", "error", "text"), WRONG)
def test_names_what_is_wrong(name, value, error, text):
    call, out = make_call(), {"sum": torch.zeros(5, 40), "normed": torch.zeros(5, 40)}
    (out if name in out else call)[name] = value
    assert_raises_alike(sum_shards, OP.out, call, out, error, text, ShardSum)
    if name not in out:
        assert_raises_alike(sum_shards, OP, call, {}, error, text)


def test_names_a_wrong_out_dtype():
    assert_raises_alike(
        sum_shards,
        OP,
        make_call() | {"out_dtype": torch.int8},
        {},
        TypeError,
        f"out_dtype {FLOAT} int8",
    )


def test_opcheck_and_compile(device):
    call = moved(make_call(), device)
    shards = call.pop("shards")
    torch.library.opcheck(OP.default, [shards], call | {"out_dtype": torch.bfloat16})
    torch.library.opcheck(OP.default, [shards], {})
    out = ShardSum(*(torch.empty_like(x) for x in OP(shards, **call)))
    torch.library.opcheck(OP.out, [shards], call | out._asdict())
    compiled = torch.compile(sum_shards, fullgraph=True)
    for a, b in zip(compiled(shards, **call), sum_shards(shards, **call), strict=True):
        assert torch.equal(a, b)
