import pytest
import torch
from calls import assert_raises_alike, spread
from hypothesis import given, settings
from hypothesis import strategies as st
from quant_sources import FLOATS, W8_SOURCES, on, w8_call

from dflash_ops import pack_w8, reference, unpack
from dflash_ops.reference.quantised import read_w8

ROWS = [0, 1, 2, 15, 16, 17, 31, 32, 33, 64, 65]
DEPTHS = [0, 1, 2, 3, 4, 5, 31, 32, 33, 127, 128, 129, 511, 512, 513, 577]
BLOCKS = [None, (1, 32), (1, 64), (1, 128), (128, 128), (3, 64), (7, 256), (1, 512), (1000, 1000)]
OP = torch.ops.dflash.pack_w8


def test_a_scale_for_each_output(device):
    weight = torch.tensor([[1, -128, 127], [2, 0, -3]], dtype=torch.int8, device=device)
    packed, name = pack_w8(weight, torch.tensor([[0.5], [10.0]], device=device))
    assert name == "int8_fp32_g512" and packed.shape == (1, 128 + 128)
    assert unpack(packed, (2, 3), format=name).tolist() == [[0.5, -64, 63.5], [20, 0, -30]]


def test_a_scale_for_each_block(device):
    weight = torch.ones(3, 40).to(device, torch.float8_e4m3fn)
    scales = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).to(device, torch.bfloat16)
    packed, name = pack_w8(weight, scales, block=(2, 32))
    assert name == "fp8_bf16_g32"
    values = unpack(packed, (3, 40), format=name)
    assert values[:, ::39].tolist() == [[1, 2], [1, 2], [3, 4]]


def test_every_fp8_number(device):
    weight = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn)[None]
    packed, name = pack_w8(weight.to(device), torch.ones(1, 1, device=device))
    values = unpack(packed, (1, 256), format=name).cpu()
    assert torch.equal(values.nan_to_num(7), weight.float().nan_to_num(7))
    assert values.isnan().sum() == 2


def test_a_block_of_q8_0(device):
    codes = torch.arange(-16, 16).to(torch.int8)
    blocks = torch.cat([torch.tensor([0.25]).half().view(torch.uint8), codes.view(torch.uint8)])
    packed, name = pack_w8(blocks[None].to(device))
    assert name == "int8_fp16_g32"
    assert torch.equal(unpack(packed, (1, 32), format=name)[0].cpu(), codes * 0.25)


def test_the_layout():
    """Codes of four k in a word, the even ones in its high half; a group's scales after them."""
    call = w8_call(0, "int8", 32, 36, block=(1, 32))
    packed = pack_w8(**call).packed
    assert packed.shape == (1, (8 + 1) * 128 + 2 * 128)
    for k, byte in enumerate((2, 0, 3, 1)):
        assert torch.equal(packed[0, byte:128:4], call["weight"][:, k].view(torch.uint8))
    assert torch.equal(packed[0, 1024:1152].view(torch.float32), call["scales"][:, 0])


@given(
    source=st.sampled_from(W8_SOURCES),
    num_rows=st.sampled_from(ROWS) | st.integers(0, 70),
    depth=st.sampled_from(DEPTHS) | st.integers(0, 600),
    block=st.sampled_from(BLOCKS),
    dtype=st.sampled_from(FLOATS),
    pair=st.booleans(),
    seed=st.integers(0, 2**31 - 1),
)
@settings(max_examples=80)
def test_equals_reference_and_unpacks(
    device, layout, source, num_rows, depth, block, dtype, pair, seed
):
    call = w8_call(seed, source, num_rows * (1 + pair), depth, block, dtype)
    packed, name = pack_w8(**on(device, call), pair=pair)
    assert torch.equal(packed.cpu(), reference.pack_w8(**call, pair=pair, layout=layout))
    assert packed.data_ptr() % 64 == 0
    q = read_w8(**{"scales": None, "block": None} | call)
    values = unpack(packed, tuple(q.codes.shape), pair=pair, format=name)
    assert values.dtype == torch.float32 and torch.equal(values.cpu(), q.values())


@pytest.mark.parametrize("source", W8_SOURCES)
def test_any_stride_and_out(device, source):
    block = None if source == "q8_0" else (4, 64)
    call = on(device, w8_call(2, source, 40, 192, block))
    want, name = pack_w8(**call)
    fill = 99 if source == "q8_0" else 1
    call["weight"] = spread(call["weight"], fill=fill, last=False)
    if "scales" in call:
        call["scales"] = spread(call["scales"])
    out = torch.empty_like(want)
    got = pack_w8(**call, out=out)
    assert got.packed is out and got.format == name and torch.equal(out, want)


def test_large_and_in_many_tasks(device, layout):
    call = w8_call(3, "fp8", 2000, 1031, (128, 128))
    packed = pack_w8(**on(device, call)).packed
    assert torch.equal(packed.cpu(), reference.pack_w8(**call, layout=layout))


def test_addresses_past_32_bits(device, layout):
    buffer = torch.empty(2**33 + 64, dtype=torch.int8, device=device)  # a few pages are touched
    call = w8_call(4, "int8", 3, 20)
    far = buffer.as_strided((3, 20), (2**32, 1))
    far.copy_(call["weight"])
    packed = pack_w8(far, call["scales"].to(device)).packed
    assert torch.equal(packed.cpu(), reference.pack_w8(**call, layout=layout))


CODES = "int8 or float8_e4m3fn or uint8"
DTYPES = "bfloat16 or float16 or float32"
RAW = torch.zeros(3, 34, dtype=torch.uint8)
# fmt: off
WRONG = [
    ({"weight": torch.zeros(3, 4)}, TypeError, f"weight must be {CODES}, got float32"),
    ({"weight": torch.zeros(3).char()}, ValueError, "weight must have shape [N, K] = [*, *], got [3]"),
    ({"weight": torch.zeros(40, 9).char().t()}, ValueError, "weight must have a contiguous last dimension, got strides [1, 9]"),
    ({"scales": None}, ValueError, "scales must be given with an int8 or fp8 weight, got None"),
    ({"scales": torch.zeros(5, 2).int()}, TypeError, f"scales must be {DTYPES}, got int32"),
    ({"scales": torch.zeros(5, 1)}, ValueError, "scales must have shape [ceil(N / block[0]), ceil(K / block[1])] = [5, 2], got [5, 1]"),
    ({"block": (2, 32, 1)}, ValueError, "block must be [rows, k], got [2, 32, 1]"),
    ({"block": (0, 32)}, ValueError, "block[0] must be at least 1, got 0"),
    ({"block": (2, -1)}, ValueError, "block[1] must be at least 0, got -1"),
    ({"block": (2, 16)}, ValueError, "block[1] must be 32, 64, 128, 256 or 512 or all of k, got 16"),
    ({"weight": RAW}, ValueError, "scales must be None with a uint8 weight, which is Q8_0 blocks"),
    ({"weight": RAW, "scales": None}, ValueError, "block must be None with a uint8 weight, which is Q8_0 blocks"),
    ({"weight": RAW[:, :33], "scales": None, "block": None}, ValueError, "weight must have rows of whole blocks of 34 bytes, got 33"),
    ({"pair": True}, ValueError, "weight must have an even number of rows, got 9"),
    ({"out": torch.zeros(1, 7, dtype=torch.uint8)}, ValueError, "out must have shape [blocks, block_bytes] = [1, 1536], got [1, 7]"),
    ({"out": torch.zeros(1, 1536)}, TypeError, "out must be uint8, got float32"),
    ({"out": torch.zeros(1, 3072, dtype=torch.uint8)[:, ::2]}, ValueError, "out must be contiguous, got strides [3072, 2]"),
]
# fmt: on


@pytest.mark.parametrize(("change", "error", "text"), WRONG)
def test_names_what_is_wrong(change, error, text):
    call = {
        "weight": torch.zeros(9, 40).char(),
        "scales": torch.zeros(5, 2),
        "block": (2, 32),
    } | change
    out = {"out": call.pop("out")} if "out" in call else {}
    assert_raises_alike(pack_w8, OP.out if out else OP, call, out, error, text)


@pytest.mark.parametrize("source", W8_SOURCES)
def test_opcheck(device, source):
    call = on(device, w8_call(5, source, 48, 96, None if source == "q8_0" else (4, 32)))
    weight = call.pop("weight")
    packed = pack_w8(weight, **call, pair=True).packed
    # The comparison of arguments before and after is not for fp8.
    utils = ["test_schema"] * (source != "fp8") + ["test_faketensor", "test_aot_dispatch_dynamic"]
    for op, options in ((OP.default, {}), (OP.out, {"out": packed})):
        options |= call | {"pair": True}
        torch.library.opcheck(op, (weight,), options, test_utils=utils)


def test_compiles_whole():
    call = w8_call(6, "int8", 40, 64)
    compiled = torch.compile(pack_w8, fullgraph=True)(**call)
    assert torch.equal(compiled.packed, pack_w8(**call).packed)
    assert compiled.format == "int8_fp32_g512"
