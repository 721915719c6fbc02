import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash_ops import pack_w8, pack_weight, reference, unpack

FLOATS = [torch.bfloat16, torch.float16, torch.float32]
ROWS = [0, 1, 2, 15, 16, 17, 31, 32, 33, 64, 65]
DEPTHS = [0, 1, 2, 3, 63, 64, 511, 512, 513]
OP = torch.ops.dflash.unpack


def same_bits(a, b):
    as_int = torch.int32 if a.dtype == torch.float32 else torch.int16
    return a.dtype == b.dtype and torch.equal(a.view(as_int), b.view(as_int))


def numbered(dtype, *shape):
    """No two elements of a small tensor have the same bits."""
    bits = torch.arange(torch.Size(shape).numel()).view(shape)
    return bits.int().view(dtype) if dtype == torch.float32 else bits.short().view(dtype)


def test_the_high_half_comes_first():
    packed = torch.zeros(1, 2, 32, 2, dtype=torch.float16)
    packed[0, :, 1] = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert unpack(packed, (2, 3)).tolist() == [[0, 0, 0], [2, 1, 4]]
    assert unpack(packed, (4, 4), pair=True).tolist() == [[0] * 4, [2, 1, 4, 3], [0] * 4, [0] * 4]


@given(
    num_rows=st.sampled_from(ROWS) | st.integers(0, 100),
    depth=st.sampled_from(DEPTHS) | st.integers(0, 80),
    dtype=st.sampled_from(FLOATS),
    pair=st.booleans(),
)
def test_undoes_pack_weight(device, layout, num_rows, depth, dtype, pair):
    weight = numbered(dtype, num_rows * (1 + pair), depth)
    packed = pack_weight(weight.to(device), pair=pair)
    assert same_bits(unpack(packed, weight.shape, pair=pair).cpu(), weight)
    assert same_bits(reference.unpack(packed.cpu(), weight.shape, pair=pair, layout=layout), weight)


@pytest.mark.parametrize("dtype", FLOATS)
def test_any_stride_of_out(device, dtype):
    weight = torch.randn(33, 71).to(device, dtype)
    out = torch.full((71, 66), 5.0, dtype=dtype, device=device).t()[::2]
    assert unpack(pack_weight(weight), (33, 71), out=out) is out
    assert torch.equal(out, weight)


def test_large_and_in_many_tasks(device):
    weight = torch.randint(-(2**15), 2**15, (2000, 1031)).short().view(torch.bfloat16).to(device)
    assert same_bits(unpack(pack_weight(weight), weight.shape), weight)


def test_addresses_past_32_bits(device):
    buffer = torch.empty(2**32 + 4, dtype=torch.bfloat16, device=device)  # 3 pages are touched
    out = buffer.as_strided((3, 4), (2**31, 1))
    weight = torch.randn(3, 4).bfloat16().to(device)
    unpack(pack_weight(weight), (3, 4), out=out)
    assert torch.equal(out, weight)


DTYPES = "bfloat16 or float16 or float32"
PACKED = torch.zeros(2, 4, 32, 2).bfloat16()
BYTES = torch.zeros(2, 192, dtype=torch.uint8)
# fmt: off
WRONG = [
    ({"packed": PACKED, "shape": [40]}, ValueError, "shape must be [N, K], got [40]"),
    ({"packed": PACKED, "shape": [-1, 8]}, ValueError, "shape[0] must be at least 0, got -1"),
    ({"packed": PACKED, "shape": [1, -8]}, ValueError, "shape[1] must be at least 0, got -8"),
    ({"packed": PACKED[0, 0], "shape": [40, 8]}, ValueError, "packed must have 3 or 4 dimensions, got 2"),
    ({"packed": PACKED.int(), "shape": [40, 8]}, TypeError, f"packed must be {DTYPES}, got int32"),
    ({"packed": PACKED, "shape": [65, 8]}, ValueError, "packed must have shape [N, K] or packed [blocks, K / 2, 32, 2] = [3, 4, 32, 2], got [2, 4, 32, 2]"),
    ({"packed": PACKED, "shape": [64, 9]}, ValueError, "packed must have shape [N, K] or packed [blocks, K / 2, 32, 2] = [2, 5, 32, 2], got [2, 4, 32, 2]"),
    ({"packed": PACKED, "shape": [35, 8], "pair": True}, ValueError, "packed must have an even number of rows, got 35"),
    ({"packed": PACKED.mT, "shape": [40, 8]}, ValueError, "packed must have shape [N, K] or packed [blocks, K / 2, 32, 2] = [2, 4, 32, 2], got [2, 4, 2, 32]"),
    ({"packed": PACKED, "shape": [40, 8], "format": "int4_fp16_g32"}, TypeError, "packed must be uint8, got bfloat16"),
    ({"packed": BYTES, "shape": [40, 8], "format": "q4"}, ValueError, "format must be as pack_w8 or pack_w4 names it, like int4_fp16_g32_mins, got q4"),
    ({"packed": BYTES, "shape": [40, 9], "format": "int4_fp16_g32"}, ValueError, "packed must have shape [blocks, block_bytes] = [2, 320], got [2, 192]"),
    ({"packed": BYTES, "shape": [35, 8], "pair": True, "format": "int4_fp16_g32"}, ValueError, "packed must have an even number of rows, got 35"),
    ({"packed": BYTES, "shape": [40, 8], "format": "int4_fp16_g32", "out": torch.zeros(40, 8).half()}, TypeError, "out must be float32, got float16"),
    ({"packed": PACKED, "shape": [40, 8], "out": torch.zeros(8, 40).bfloat16()}, ValueError, "out must have shape [N, K] = [40, 8], got [8, 40]"),
]
# fmt: on


@pytest.mark.parametrize(("call", "error", "text"), WRONG)
def test_names_what_is_wrong(call, error, text):
    text = f"^unpack: {re.escape(text)}$"
    with pytest.raises(error, match=text):
        unpack(**call)
    with pytest.raises(RuntimeError, match=text):
        (OP.out if "out" in call else OP)(**call)


def test_a_quantised_weight_into_any_stride(device):
    """The values of each source are in the tests of pack_w8 and pack_w4."""
    codes = torch.randint(-128, 128, (33, 71), device=device).char()
    scales = torch.rand(33, 1, device=device)
    packed, name = pack_w8(codes, scales)
    out = torch.full((71, 66), 5.0, device=device).t()[::2]
    assert unpack(packed, (33, 71), format=name, out=out) is out
    assert torch.equal(out, codes * scales)


def test_opcheck_of_a_quantised_weight(device):
    packed, name = pack_w8(torch.ones(40, 7).to(device).char(), torch.ones(40, 1, device=device))
    args, options = (packed, [40, 7]), {"format": name}
    torch.library.opcheck(OP.default, args, options)
    torch.library.opcheck(OP.out, args, options | {"out": torch.zeros(40, 7, device=device)})


def test_opcheck(device):
    weight = torch.randn(40, 7, device=device)
    for pair in (False, True):
        args, options = (pack_weight(weight, pair=pair), [40, 7]), {"pair": pair}
        torch.library.opcheck(OP.default, args, options)
        torch.library.opcheck(OP.out, args, options | {"out": torch.empty_like(weight)})


def test_compiles_whole(device):
    compiled = torch.compile(unpack, fullgraph=True)
    weight = torch.randn(40, 7, device=device)
    assert torch.equal(compiled(pack_weight(weight), (40, 7)), weight)
