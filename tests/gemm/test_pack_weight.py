import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash_ops import pack_weight, reference

FLOATS = [torch.bfloat16, torch.float16, torch.float32]
ROWS = [0, 1, 2, 15, 16, 17, 31, 32, 33, 64, 65]
DEPTHS = [0, 1, 2, 3, 63, 64, 511, 512, 513]
OP = torch.ops.dflash.pack_weight


def numbered(num_rows, depth, dtype):
    """No two elements of a small weight have the same bits."""
    bits = torch.arange(1, num_rows * depth + 1).view(num_rows, depth)
    return bits.int().view(dtype) if dtype == torch.float32 else bits.short().view(dtype)


def same_bits(a, b):
    as_int = torch.int32 if a.dtype == torch.float32 else torch.int16
    return a.dtype == b.dtype and torch.equal(a.view(as_int), b.view(as_int))


def test_the_even_element_is_in_the_high_half():
    weight = torch.arange(3.0).bfloat16()[None]
    packed = pack_weight(weight)
    assert packed.shape == (1, 2, 32, 2)
    assert packed[0, :, 0].tolist() == [[1, 0], [0, 2]]  # little endian: the high half comes last
    assert packed[0, :, 1:].count_nonzero() == 0


def test_a_pair_has_gate_and_up_in_one_block():
    weight = torch.arange(34.0)[:, None]  # gate rows 0 .. 16, up rows 17 .. 33
    packed = pack_weight(weight, pair=True)
    assert packed.shape == (2, 1, 32)
    assert packed[0, 0].tolist() == [*range(16), *range(17, 33)]
    assert packed[1, 0].tolist() == [16, *[0] * 15, 33, *[0] * 15]


@given(
    num_rows=st.sampled_from(ROWS) | st.integers(0, 100),
    depth=st.sampled_from(DEPTHS) | st.integers(0, 80),
    dtype=st.sampled_from(FLOATS),
    pair=st.booleans(),
)
def test_equals_reference(device, layout, num_rows, depth, dtype, pair):
    weight = numbered(num_rows * (1 + pair), depth, dtype).to(device)
    packed = pack_weight(weight, pair=pair)
    assert same_bits(packed.cpu(), reference.pack_weight(weight.cpu(), pair=pair, layout=layout))
    assert packed.data_ptr() % 64 == 0


@pytest.mark.parametrize("dtype", FLOATS)
def test_any_stride_and_out(device, layout, dtype):
    buffer = torch.full((40, 99), float("nan"), dtype=dtype, device=device)
    weight = buffer[:33, 7:78]
    weight.copy_(torch.randn(33, 71))
    out = torch.empty_like(pack_weight(weight.contiguous()))
    assert pack_weight(weight, out=out) is out
    assert same_bits(out.cpu(), reference.pack_weight(weight.cpu(), layout=layout))


def test_large_and_in_many_tasks(device, layout):
    weight = torch.randint(-(2**15), 2**15, (2000, 1031)).short().view(torch.bfloat16).to(device)
    packed = pack_weight(weight)
    assert same_bits(packed.cpu(), reference.pack_weight(weight.cpu(), layout=layout))


def test_addresses_past_32_bits(device, layout):
    buffer = torch.empty(2**32 + 4, dtype=torch.bfloat16, device=device)  # 3 pages are touched
    weight = buffer.as_strided((3, 4), (2**31, 1))
    weight.copy_(torch.arange(12).view(3, 4))
    assert same_bits(pack_weight(weight).cpu(), reference.pack_weight(weight.cpu(), layout=layout))


DTYPES = "bfloat16 or float16 or float32"
# fmt: off
WRONG = [
    ({"weight": torch.zeros(3)}, ValueError, "weight must have shape [N, K] = [*, *], got [3]"),
    ({"weight": torch.zeros(3, 4).long()}, TypeError, f"weight must be {DTYPES}, got int64"),
    ({"weight": torch.zeros(3, 4).t()}, ValueError, "weight must have a contiguous last dimension, got strides [1, 4]"),
    ({"weight": torch.zeros(3, 4), "pair": True}, ValueError, "weight must have an even number of rows, got 3"),
    ({"weight": torch.zeros(3, 4), "out": torch.zeros(1, 3, 32)}, ValueError, "out must have shape [blocks, ...] = [1, 4, 32], got [1, 3, 32]"),
    ({"weight": torch.zeros(3, 4), "out": torch.zeros(1, 4, 32).half()}, TypeError, "out must be float32, got float16"),
    ({"weight": torch.zeros(3, 4), "out": torch.zeros(1, 4, 64)[..., ::2]}, ValueError, "out must be contiguous, got strides [256, 64, 2]"),
]
# fmt: on


@pytest.mark.parametrize(("call", "error", "text"), WRONG)
def test_names_what_is_wrong(call, error, text):
    text = f"^pack_weight: {re.escape(text)}$"
    with pytest.raises(error, match=text):
        pack_weight(**call)
    with pytest.raises(RuntimeError, match=text):
        (OP.out if "out" in call else OP)(**call)


def test_opcheck(device):
    weight = torch.randn(40, 7, device=device)
    for pair in (False, True):
        packed = pack_weight(weight, pair=pair)
        torch.library.opcheck(OP.default, (weight,), {"pair": pair})
        torch.library.opcheck(OP.out, (weight,), {"pair": pair, "out": packed})


def test_compiles_whole(device):
    compiled = torch.compile(pack_weight, fullgraph=True)
    weight = torch.randn(40, 7, device=device)
    assert torch.equal(compiled(weight), pack_weight(weight))
