import math

import pytest
import torch
from bounds import assert_within
from calls import assert_raises_alike, spread
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_ops import Status, block_conv, reference

OP = torch.ops.dflash.block_conv
FLOATS = [torch.float32, torch.bfloat16, torch.float16]


def make_call(seed=0, rows=12, channels=32, groups=4, taps=2, block_size=5, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)
    projection = torch.randn(rows, 2, taps, groups, generator=g).to(dtype)
    return {
        "x": torch.randn(rows, channels, generator=g).to(dtype),
        "delta": projection[:, 1],  # a strided view, as engines have it
        "base": torch.randn(taps, channels, generator=g).to(dtype),
        "block_size": block_size,
    }


def check(device, call):
    got = block_conv(
        **{k: x.to(device) if isinstance(x, torch.Tensor) else x for k, x in call.items()}
    )
    args = {k: x for k, x in call.items() if k not in ("out_dtype", "status")}
    want = reference.block_conv(**args)
    sizes = {k: x.abs() for k, x in args.items() if k in ("x", "delta", "base", "residual")}
    terms = reference.block_conv(**args | sizes)
    assert_within(got.cpu(), want, terms=terms)
    return got


def test_a_block_of_three_rows(device):
    x = torch.tensor([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]], device=device)
    delta = torch.tensor([[[0.0], [9.0]], [[1.0], [0.0]], [[0.0], [2.0]]], device=device)
    base = torch.tensor([[1.0, 1.0], [0.5, 0.0]], device=device)
    got = block_conv(x, delta, base, block_size=3)
    assert got.tolist() == [[1, 10], [4.5, 40], [9, 80]]
    apart = block_conv(x, delta, base, block_size=1)
    assert apart.tolist() == [[1, 10], [4, 40], [4, 40]]


@settings(max_examples=60)
@given(
    rows=st.sampled_from([0, 1, 2, 7, 40]),
    shape=st.sampled_from([(32, 4), (16, 1), (6, 6), (128, 8), (0, 0)]),
    taps=st.sampled_from([0, 1, 2, 3]),
    block_size=st.sampled_from([1, 2, 8, 50]),
    dtype=st.sampled_from(FLOATS),
    out_dtype=st.sampled_from([None, *FLOATS]),
    residual=st.booleans(),
    seed=st.integers(0, 2**31 - 1),
)
def test_equals_reference(device, rows, shape, taps, block_size, dtype, out_dtype, residual, seed):
    call = make_call(seed, rows, *shape, taps, block_size, dtype) | {"out_dtype": out_dtype}
    if residual:
        call["residual"] = call["x"].flip(0)
    check(device, call)


def test_ragged_blocks_and_rows_of_no_block(device):
    call = make_call(1, rows=12)
    del call["block_size"]
    cu_rows = torch.tensor([1, 4, 4, 9, 7, 13, 20])
    call |= {"cu_rows": cu_rows.to(device), "status": torch.zeros(6, dtype=torch.int32).to(device)}
    got = block_conv(**{k: x.to(device) for k, x in call.items()}).cpu()
    bad = Status.OUT_OF_RANGE
    assert call["status"].tolist() == [0, 0, 0, bad, bad, bad]
    assert (got[[0, 9, 10, 11]] == 0).all()
    for begin, end in ((1, 4), (4, 9)):
        alone = {k: call[k][begin:end].to(device) for k in ("x", "delta")}
        alone |= {"base": call["base"].to(device), "block_size": 5}
        assert torch.equal(got[begin:end], block_conv(**alone).cpu())


def test_more_blocks_than_rows(device):
    call = make_call(1, rows=2)
    del call["block_size"]
    call |= {"cu_rows": torch.tensor([0, 2, 2, 2, 9]), "status": torch.zeros(4, dtype=torch.int32)}
    call = {k: x.to(device) for k, x in call.items()}
    block_conv(**call)
    assert call["status"].tolist() == [0, 0, 0, Status.OUT_OF_RANGE]


def test_a_row_depends_on_its_block_alone(device):
    """The same bits whatever stands around; NaN next door does not leak."""
    call = make_call(2, rows=40, block_size=8, channels=512, groups=32, dtype=torch.bfloat16)
    torch.set_num_threads(3)
    want = block_conv(
        **{k: x.to(device) if isinstance(x, torch.Tensor) else x for k, x in call.items()}
    )
    torch.set_num_threads(1)
    call["x"][7], call["x"][16:] = math.nan, math.nan
    got = block_conv(
        **{k: x.to(device) if isinstance(x, torch.Tensor) else x for k, x in call.items()}
    )
    assert torch.equal(got[:7], want[:7]) and torch.equal(got[8:16], want[8:16])


def test_fp16_stays_finite(device):
    """FAULTS 24: x near 3e4 in fp16. Sums pass 65504 on the way and saturate at the end."""
    x = torch.full((2, 2), 3e4, dtype=torch.float16, device=device)
    delta = torch.zeros(2, 2, 1, dtype=torch.float16, device=device)
    base = torch.tensor([[4.0, 4.0], [-3.5, 4.0]], device=device)
    got = block_conv(x, delta, base, block_size=2)
    assert got.tolist() == [[65504, 65504], [15000, 65504]]
    wide = block_conv(x, delta, base, block_size=2, out_dtype=torch.float32)
    assert wide.tolist() == [[119_999 + 1, 120_000], [15_000, 240_000]]
    x[0, 0] = math.inf
    assert block_conv(x, delta, base, block_size=2)[0].tolist() == [math.inf, 65504]


def test_any_strides_in_place(device):
    call = make_call(3)
    want = block_conv(
        **{k: x.to(device) if isinstance(x, torch.Tensor) else x for k, x in call.items()}
    )
    call |= {k: spread(call[k].to(device), last=False) for k in ("x", "base")}
    call["delta"] = spread(call["delta"].to(device))
    out = spread(torch.zeros_like(want))
    assert block_conv(**call, out=out) is out
    assert torch.equal(out, want)
    for index in (torch.int32, torch.int64):
        cu_rows = spread(torch.tensor([0, 5, 10, 12]).to(device, index))
        assert torch.equal(block_conv(**call | {"block_size": None, "cu_rows": cu_rows}), want)


def test_addresses_past_32_bits(device):
    buffer = torch.empty(2**32, dtype=torch.bfloat16, device=device)
    x = buffer.as_strided((2, 2), (2**31 + 2, 1))
    x.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    delta = torch.zeros(2, 1, 1, device=device)
    got = block_conv(x, delta, torch.ones(1, 2, device=device), block_size=2)
    assert got.tolist() == [[1, 2], [3, 4]]


FLOAT = "must be bfloat16 or float16 or float32, got"
# fmt: off
WRONG = [
    ({"x": torch.zeros(12)}, ValueError, "x must have shape [T, H] = [*, *], got [12]"),
    ({"x": torch.zeros(12, 64)[:, ::2]}, ValueError, "x must have a contiguous last dimension, got strides [64, 2]"),
    ({"delta": torch.zeros(12, 2, 5)}, ValueError, "G must divide H = 32, got 5"),
    ({"delta": torch.zeros(12, 2, 0)}, ValueError, "G must divide H = 32, got 0"),
    ({"delta": torch.zeros(11, 2, 4)}, ValueError, "delta must have shape [T, taps, G] = [12, *, *], got [11, 2, 4]"),
    ({"base": torch.zeros(3, 32)}, ValueError, "base must have shape [taps, H] = [2, 32], got [3, 32]"),
    ({"residual": torch.zeros(12, 32).int()}, TypeError, f"residual {FLOAT} int32"),
    ({"block_size": None}, ValueError, "one of cu_rows and block_size must be given, got neither"),
    ({"cu_rows": torch.zeros(2).int()}, ValueError, "one of cu_rows and block_size must be given, got both"),
    ({"block_size": 0}, ValueError, "block_size must be at least 1, got 0"),
    ({"block_size": None, "cu_rows": torch.zeros(0).int()}, ValueError, "len(cu_rows) must be at least 1, got 0"),
    ({"status": torch.zeros(2).int()}, ValueError, "status must have shape [B] = [3], got [2]"),
    ({"out": torch.zeros(12, 31)}, ValueError, "out must have shape [T, H] = [12, 32], got [12, 31]"),
    ({"out": torch.zeros(12, 32).half()}, TypeError, "out must be float32, got float16"),
]
# fmt: on


@pytest.mark.parametrize(("wrong", "error", "text"), WRONG)
def test_names_what_is_wrong(wrong, error, text):
    call, out = make_call() | wrong, {"out": torch.zeros(12, 32)}
    if "out" in wrong:
        out["out"] = call.pop("out")
    assert_raises_alike(block_conv, OP.out, call, out, error, text)
    if "out" not in wrong:
        assert_raises_alike(block_conv, OP, call, {}, error, text)


def test_names_a_wrong_out_dtype():
    call = make_call() | {"out_dtype": torch.int32}
    assert_raises_alike(block_conv, OP, call, {}, TypeError, f"out_dtype {FLOAT} int32")


def test_opcheck_and_compile(device):
    call = make_call() | {"status": torch.zeros(3, dtype=torch.int32)}
    call = {k: x.to(device) if isinstance(x, torch.Tensor) else x for k, x in call.items()}
    args = [call.pop(name) for name in ("x", "delta", "base")]
    torch.library.opcheck(OP.default, args, call | {"out_dtype": torch.bfloat16})
    torch.library.opcheck(OP.out, args, call | {"out": torch.empty_like(args[0])})
    compiled = torch.compile(block_conv, fullgraph=True)
    assert torch.equal(compiled(*args, block_size=5), block_conv(*args, block_size=5))
