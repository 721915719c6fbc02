import pytest
import torch
from calls import assert_raises_alike, spread
from hypothesis import given, settings
from hypothesis import strategies as st
from quant_sources import FLOATS, W4_SOURCES, on, w4_call

from dflash_ops import pack_w4, reference, unpack
from dflash_ops.reference.quantised import read_w4

ROWS = [0, 1, 2, 15, 16, 17, 31, 32, 33, 64, 65]
DEPTHS = [0, 8, 24, 32, 64, 120, 128, 136, 512, 544]
OP = torch.ops.dflash.pack_w4


def nibbles(*codes):
    """A little-endian word of eight codes."""
    return int(sum(c << 4 * i for i, c in enumerate(codes))) - (2**32 if codes[7] > 7 else 0)


def test_gptq_counts_k_from_the_low_nibble_and_adds_one_to_its_zeros(device):
    weight = torch.tensor([[nibbles(0, 1, 2, 3, 4, 5, 6, 15), nibbles(9, 0, 0, 0, 0, 0, 0, 0)]])
    call = {
        "weight": weight.int(),
        "scales": torch.tensor([[2.0, 0.5]]).half(),
        "zeros": torch.tensor([[nibbles(3, 15, 0, 0, 0, 0, 0, 0)]]).int(),
        "group_size": 32,
    }
    call = on(device, call)
    packed, name = pack_w4(**call, source="gptq")
    assert name == "int4_fp16_g32_zeros"
    first = [2.0 * (q - 4) for q in (0, 1, 2, 3, 4, 5, 6, 15)]
    assert unpack(packed, (2, 8), format=name).tolist() == [first, [4.5] + [0.0] * 7]  # 16 is 0
    packed, name = pack_w4(**call, source="gptq_v2")
    first = [2.0 * (q - 3) for q in (0, 1, 2, 3, 4, 5, 6, 15)]
    assert unpack(packed, (2, 8), format=name).tolist() == [first, [-3.0] + [-7.5] * 7]


def test_awq_deals_outputs_to_the_nibbles(device):
    weight = torch.tensor([[nibbles(0, 2, 4, 6, 1, 3, 5, 7)]]).int()
    scales = torch.ones(1, 8).half()
    zeros = torch.tensor([[nibbles(0, 0, 0, 0, 1, 1, 1, 9)]]).int()  # of outputs 1, 3, 5, 7
    call = on(device, {"weight": weight, "scales": scales, "source": "awq", "group_size": 64})
    packed, name = pack_w4(**call, zeros=zeros.to(device))
    values = unpack(packed, (8, 1), format=name)[:, 0].tolist()
    assert name == "int4_fp16_g64_zeros" and values == [0, 0, 2, 2, 4, 4, 6, -2]
    packed, name = pack_w4(**call)
    values = unpack(packed, (8, 1), format=name)[:, 0].tolist()
    assert name == "int4_fp16_g64" and values == [-8, -7, -6, -5, -4, -3, -2, -1]


def test_gguf_has_k_and_k_plus_16_in_a_byte(device):
    codes = torch.tensor([0xA0, 0x51, *[0x88] * 14], dtype=torch.uint8)
    scale, minimum = (torch.tensor([x]).half().view(torch.uint8) for x in (0.5, -4.0))
    q4_0, name = pack_w4(torch.cat([scale, codes])[None].to(device), source="q4_0")
    values = unpack(q4_0, (1, 32), format=name)[0]
    assert name == "int4_fp16_g32"
    assert values.tolist() == [-4, -3.5, *[0] * 14, 1, -1.5, *[0] * 14]
    q4_1, name = pack_w4(torch.cat([scale, minimum, codes])[None].to(device), source="q4_1")
    assert name == "int4_fp16_g32_mins"
    assert torch.equal(unpack(q4_1, (1, 32), format=name)[0], values)


def test_the_layout():
    """Codes of eight k in a word, the even ones in its high half; a group's scales after them."""
    call = w4_call(0, "gptq", 32, 40, group_size=32)
    packed = pack_w4(**call).packed
    assert packed.shape == (1, (4 + 1) * 128 + 2 * 2 * 64)
    codes = read_w4(**{"zeros": None} | call).codes
    words = packed[0].view(torch.int32)
    for k in range(8):
        at = k // 2 * 4 + (16 if k % 2 == 0 else 0)
        assert torch.equal(words[:32] >> at & 15, codes[:, k].int())
    scales = packed[0, 512:576].view(torch.float16)
    assert torch.equal(scales, call["scales"][0])
    last_word = packed[0, 640:768].view(torch.int32)
    assert torch.equal(last_word >> 16 & 15, codes[:, 32].int())


@given(
    source=st.sampled_from(W4_SOURCES),
    num_rows=st.sampled_from(ROWS) | st.integers(0, 70),
    depth=st.sampled_from(DEPTHS) | st.integers(0, 600),
    group_size=st.sampled_from([32, 64, 128, 256, 512, -1]),
    dtype=st.sampled_from(FLOATS),
    has_zeros=st.booleans(),
    pair=st.booleans(),
    seed=st.integers(0, 2**31 - 1),
)
@settings(max_examples=80)
def test_equals_reference_and_unpacks(
    device, layout, source, num_rows, depth, group_size, dtype, has_zeros, pair, seed
):
    call = w4_call(seed, source, num_rows * (1 + pair), depth, group_size, dtype, has_zeros)
    packed, name = pack_w4(**on(device, call), pair=pair)
    assert torch.equal(packed.cpu(), reference.pack_w4(**call, pair=pair, layout=layout))
    assert packed.data_ptr() % 64 == 0
    q = read_w4(**{"scales": None, "zeros": None, "group_size": None} | call)
    values = unpack(packed, tuple(q.codes.shape), pair=pair, format=name)
    assert values.dtype == torch.float32 and torch.equal(values.cpu(), q.values())


def test_the_layout_of_cuda():
    """A lane's 16 bytes are codes 8 t .. 8 t + 7 of every 32 k; even ones in the low half."""
    call = w4_call(0, "gptq", 32, 136, group_size=128)
    packed = reference.pack_w4(**call, layout="cuda")
    codes = read_w4(**{"zeros": None} | call).codes.int()
    words = packed[0].view(torch.int32)
    for row in (0, 9, 15):
        for t in range(4):
            for i in range(4):
                word = words[16 * row + 4 * t + i].item()
                for k in range(8):
                    at = k // 2 * 4 + (0 if k % 2 == 0 else 16)
                    assert word >> at & 15 == codes[row, 32 * i + 8 * t + k]
    assert words[16 * 16 + 3] & 15 == codes[3, 128]  # the narrow chunk: a word a row
    assert words[16 * 17] & 15 == codes[16, 0]  # the second 16 rows
    scales = packed[0, 32 * 17 * 4 :][:64].view(torch.float16)
    assert torch.equal(scales, call["scales"][0])


def test_trivial_groups_of_g_idx(device):
    call = on(device, w4_call(1, "gptq", 40, 320, group_size=128))
    g_idx = torch.arange(320, device=device) // 128
    want = pack_w4(**call)
    for dtype in (torch.int32, torch.int64):
        assert torch.equal(pack_w4(**call, g_idx=g_idx.to(dtype)).packed, want.packed)
    wide = torch.stack([g_idx, g_idx + 9], 1)[:, 0]
    assert torch.equal(pack_w4(**call, g_idx=wide).packed, want.packed)
    with pytest.raises(ValueError, match="got 1 at k = 64"):
        pack_w4(**call, g_idx=torch.arange(320, device=device) // 64)
    call = on(device, w4_call(1, "gptq", 40, 320, group_size=-1))
    assert torch.equal(pack_w4(**call, g_idx=g_idx * 0).packed, pack_w4(**call).packed)


@pytest.mark.parametrize("source", W4_SOURCES)
def test_any_stride_and_out(device, source):
    call = on(device, w4_call(2, source, 40, 192, group_size=64))
    want, name = pack_w4(**call)
    call["weight"] = spread(call["weight"], fill=-1 if "q4" not in source else 255, last=False)
    for key in {"scales", "zeros"} & call.keys():
        call[key] = spread(call[key])
    out = torch.empty_like(want)
    got = pack_w4(**call, out=out)
    assert got.packed is out and got.format == name and torch.equal(out, want)


def test_large_and_in_many_tasks(device, layout):
    call = w4_call(3, "awq", 2000, 1032)
    packed = pack_w4(**on(device, call)).packed
    assert torch.equal(packed.cpu(), reference.pack_w4(**call, layout=layout))


def test_addresses_past_32_bits(device, layout):
    buffer = torch.empty(2**33 + 64, dtype=torch.uint8, device=device)  # a few pages are touched
    call = w4_call(4, "q4_1", 3, 32)
    far = buffer.as_strided((3, 20), (2**32, 1))
    far.copy_(call["weight"])
    packed = pack_w4(far, source="q4_1").packed
    assert torch.equal(packed.cpu(), reference.pack_w4(**call, layout=layout))


DTYPES = "bfloat16 or float16 or float32"
# fmt: off
WRONG = [
    ({"weight": torch.zeros(3)}, TypeError, "weight must be int32, got float32"),
    ({"weight": torch.zeros(3).int()}, ValueError, "weight must have shape [K / 8, N] = [*, *], got [3]"),
    ({"weight": torch.zeros(9, 4).int(), "source": "awq"}, ValueError, "scales must have shape [groups, N] = [1, 32], got [2, 9]"),
    ({"weight": torch.zeros(4, 2).int().t()}, ValueError, "weight must have a contiguous last dimension, got strides [1, 2]"),
    ({"scales": None}, ValueError, "scales must be given with gptq and awq, got None"),
    ({"scales": torch.zeros(2, 9).int()}, TypeError, f"scales must be {DTYPES}, got int32"),
    ({"scales": torch.zeros(3, 9)}, ValueError, "scales must have shape [groups, N] = [2, 9], got [3, 9]"),
    ({"zeros": torch.zeros(2, 2)}, TypeError, "zeros must be int32, got float32"),
    ({"zeros": torch.zeros(2, 1).int()}, ValueError, "zeros must have shape [groups, ceil(N / 8)] = [2, 2], got [2, 1]"),
    ({"group_size": None}, ValueError, "group_size must be given with gptq and awq, got None"),
    ({"group_size": 16}, ValueError, "group_size must be 32, 64, 128, 256 or 512 or all of k, got 16"),
    ({"group_size": 96}, ValueError, "group_size must be 32, 64, 128, 256 or 512 or all of k, got 96"),
    ({"group_size": 1024}, ValueError, "group_size must be 32, 64, 128, 256 or 512 or all of k, got 1024"),
    ({"g_idx": torch.zeros(63).int()}, ValueError, "g_idx must have shape [K] = [64], got [63]"),
    ({"g_idx": torch.arange(64) // 32 % 2 * 3}, ValueError, "g_idx must be k / group_size (not act-order), got 3 at k = 32"),
    ({"source": "exl2"}, ValueError, "source must be one of gptq, gptq_v2, awq, q4_0, q4_1, got exl2"),
    ({"source": "q4_0"}, ValueError, "scales must be None with GGUF blocks"),
    ({"source": "q4_0", "scales": None}, ValueError, "zeros must be None with GGUF blocks"),
    ({"source": "q4_0", "scales": None, "zeros": None}, ValueError, "g_idx must be None with GGUF blocks"),
    ({"source": "q4_0", "scales": None, "zeros": None, "g_idx": None}, ValueError, "group_size must be None with GGUF blocks"),
    ({"source": "q4_0", "scales": None, "zeros": None, "g_idx": None, "group_size": None}, TypeError, "weight must be uint8, got int32"),
    ({"source": "q4_1", "scales": None, "zeros": None, "g_idx": None, "group_size": None, "weight": torch.zeros(3, 36, dtype=torch.uint8)}, ValueError, "weight must have rows of whole blocks of 20 bytes, got 36"),
    ({"pair": True}, ValueError, "weight must have an even number of rows, got 9"),
    ({"out": torch.zeros(1, 7, dtype=torch.uint8)}, ValueError, "out must have shape [blocks, block_bytes] = [1, 1536], got [1, 7]"),
    ({"out": torch.zeros(1, 1536)}, TypeError, "out must be uint8, got float32"),
    ({"out": torch.zeros(1, 3072, dtype=torch.uint8)[:, ::2]}, ValueError, "out must be contiguous, got strides [3072, 2]"),
]
# fmt: on


@pytest.mark.parametrize(("change", "error", "text"), WRONG)
def test_names_what_is_wrong(change, error, text):
    call = {
        "weight": torch.zeros(8, 9).int(),
        "scales": torch.zeros(2, 9),
        "zeros": torch.zeros(2, 2).int(),
        "g_idx": torch.arange(64) // 32,
        "source": "gptq",
        "group_size": 32,
    } | change
    out = {"out": call.pop("out")} if "out" in call else {}
    assert_raises_alike(pack_w4, OP.out if out else OP, call, out, error, text)


@pytest.mark.parametrize("source", W4_SOURCES)
def test_opcheck(device, source):
    call = on(device, w4_call(5, source, 48, 96, group_size=32))
    weight = call.pop("weight")
    packed = pack_w4(weight, **call, pair=True).packed
    torch.library.opcheck(OP.default, (weight,), call | {"pair": True})
    torch.library.opcheck(OP.out, (weight,), call | {"pair": True, "out": packed})


def test_compiles_whole(device):
    call = on(device, w4_call(6, "gptq", 40, 64, group_size=32))
    compiled = torch.compile(pack_w4, fullgraph=True)(**call)
    assert torch.equal(compiled.packed, pack_w4(**call).packed)
    assert compiled.format == "int4_fp16_g32_zeros"
