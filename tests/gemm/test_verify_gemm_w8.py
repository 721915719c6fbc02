import pytest
import torch
from calls import assert_raises_alike
from hypothesis import given, settings
from hypothesis import strategies as st
from quant_products import Terms, assert_product, bits
from quant_sources import FLOATS, W8_SOURCES, on, w8_call

from dflash_ops import pack_w8, reference, rmsnorm, unpack, verify_gemm_w8
from dflash_ops.reference.quantised import read_w8

# Each side of the row tiles (2, 4 and 8 in registers, 64 in a call), of the blocks, words, groups.
ROWS = [0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33, 63, 64, 65]
OUTPUTS = [0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65]
DEPTHS = [0, 1, 2, 3, 4, 5, 31, 32, 33, 64, 127, 128, 129, 511, 512, 513, 577, 1025]
BLOCKS = [None, (1, 32), (1, 64), (128, 128), (3, 256), (1, 512), (1000, 2000)]
OP = torch.ops.dflash.verify_gemm_w8

rows = st.sampled_from(ROWS) | st.integers(0, 70)
outputs = st.sampled_from(OUTPUTS) | st.integers(0, 70)
depths = st.sampled_from(DEPTHS) | st.integers(0, 700)
dtypes = st.sampled_from(FLOATS)
sources = st.sampled_from(W8_SOURCES)
seeds = st.integers(0, 2**31 - 1)


def packed_case(
    seed, source, num_outputs, depth, act="none", block=None, dtype=torch.float32, device="cpu"
):
    """A packed weight with its format, and what it stands for."""
    pair = act == "silu_mul"
    call = w8_call(seed, source, num_outputs * (1 + pair), depth, block, dtype)
    packed = pack_w8(**on(device, call), pair=pair)
    return packed, read_w8(**{"scales": None, "block": None} | call)


def random_rows(seed, num_rows, depth, dtype):
    return torch.randn(num_rows, depth, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("source", W8_SOURCES)
def test_unit_rows_give_the_weight(device, source, dtype):
    packed, _ = packed_case(0, source, 40, 160, device=device)
    got = verify_gemm_w8(
        torch.eye(160).to(device, dtype), *packed, num_outputs=40, out_dtype=torch.float32
    )
    assert torch.equal(got.T, unpack(packed.packed, (40, 160), format=packed.format))


def test_every_number_in_every_place(each_isa):
    """All 256 codes at each k of a word and in each output of a block, under every ISA."""
    codes = (torch.arange(256)[None] + 8 * torch.arange(32)[:, None]) % 256
    for dtype in (torch.int8, torch.float8_e4m3fn):
        weight = codes.to(torch.uint8).view(dtype)
        packed = pack_w8(weight, torch.ones(32, 1))
        values = weight.double()
        has_nan = values.isnan().any(1)
        for result in each_isa(lambda p=packed: verify_gemm_w8(torch.eye(256), *p)):
            got = result.T.double()
            assert got[has_nan].isnan().any(1).all()
            assert torch.equal(got[~has_nan], values[~has_nan])
        weight = torch.where(values.isnan(), 0, values).float().to(dtype)
        packed = pack_w8(weight, torch.ones(32, 1))
        for result in each_isa(lambda p=packed: verify_gemm_w8(torch.eye(256), *p)):
            assert torch.equal(result.T.double(), weight.double())


def test_every_number_in_every_lane(device):
    codes = (torch.arange(256)[None] + 8 * torch.arange(32)[:, None]) % 256
    for dtype in (torch.int8, torch.float8_e4m3fn):
        weight = codes.to(torch.uint8).view(dtype)
        packed = pack_w8(weight.to(device), torch.ones(32, 1, device=device))
        values, units = weight.double(), torch.eye(256, device=device)
        got = verify_gemm_w8(units, *packed).T.double().cpu()
        has_nan = values.isnan().any(1)
        assert got[has_nan].isnan().any(1).all()
        assert torch.equal(got[~has_nan], values[~has_nan])
        weight = torch.where(values.isnan(), 0, values).float().to(dtype)
        packed = pack_w8(weight.to(device), torch.ones(32, 1, device=device))
        got = verify_gemm_w8(units, *packed).T.double().cpu()
        assert torch.equal(got, weight.double())


@given(rows, outputs, depths, dtypes, sources, st.sampled_from(BLOCKS), seeds)
@settings(max_examples=60)
def test_exact_inputs_give_the_exact_product(
    device, num_rows, num_outputs, depth, dtype, source, block, seed
):
    call = w8_call(seed, source, num_outputs, depth, block)
    if source == "q8_0":
        call["weight"].unflatten(1, (-1, 34))[..., :2] = (
            torch.tensor([0.5]).half().view(torch.uint8)
        )
    else:
        call["scales"] = torch.full_like(call["scales"], -0.25)
    packed = pack_w8(**on(device, call))
    q = read_w8(**{"scales": None, "block": None} | call)
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(-1, 2, (num_rows, q.depth), generator=g).to(dtype)
    options = {"num_outputs": num_outputs, "out_dtype": torch.float32}
    got = verify_gemm_w8(x.to(device), *packed, **options).cpu()
    assert torch.equal(got.double(), x.double() @ q.values().double().T)


@given(
    num_rows=rows,
    num_outputs=outputs,
    depth=depths,
    dtype=dtypes,
    out_dtype=dtypes,
    source=sources,
    block=st.sampled_from(BLOCKS),
    scale_dtype=dtypes,
    act=st.sampled_from(["none", "silu", "silu_mul"]),
    names=st.sets(st.sampled_from(["bias", "addend", "residual", "norm_weight"])),
    term_dtype=dtypes,
    seed=seeds,
)
@settings(max_examples=80)
def test_within_bound_of_reference(
    device,
    layout,
    num_rows,
    num_outputs,
    depth,
    dtype,
    out_dtype,
    source,
    block,
    scale_dtype,
    act,
    names,
    term_dtype,
    seed,
):
    packed, q = packed_case(seed, source, num_outputs, depth, act, block, scale_dtype, device)
    x = random_rows(seed, num_rows, q.depth, dtype)
    terms = Terms.random(names, num_rows, len(q.codes), num_outputs, q.depth, term_dtype)
    call = terms.given() | {"num_outputs": num_outputs, "act": act}
    got = verify_gemm_w8(x.to(device), *packed, **on(device, call), out_dtype=out_dtype)
    assert got.dtype == out_dtype
    assert_product(got.cpu(), x, q, act, terms)
    if "norm_weight" not in names:
        weight, name = packed
        want = reference.verify_gemm_w8(x, weight.cpu(), name, layout=layout, **call)
        assert torch.equal(
            want, reference.verify_gemm(x, q.values().contiguous(), act=act, **terms.given())
        )


@given(rows, outputs, depths, dtypes, sources, st.sampled_from(["plain", "tiny", "wild"]), seeds)
@settings(max_examples=40)
def test_every_isa_gives_the_same_bits(
    each_isa, num_rows, num_outputs, depth, dtype, source, kind, seed
):
    packed, q = packed_case(seed, source, num_outputs, depth)
    x = random_rows(seed, num_rows, q.depth, dtype)
    if kind == "tiny":  # products and operands in the range of denormals
        x = x * 2.0**-127
    if kind == "wild":
        at = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed))
        for low, value in enumerate((float("inf"), float("-inf"), float("nan"), 3e38, 1e-40)):
            x[(at * 3000).floor() == low] = value
    call = {"num_outputs": num_outputs, "out_dtype": torch.float32}
    first, *others = each_isa(lambda: verify_gemm_w8(x, *packed, **call))
    for other in others:
        assert torch.equal(first.isnan(), other.isnan())
        assert torch.equal(bits(first.nan_to_num(7)), bits(other.nan_to_num(7)))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("source", "block"), [("q8_0", None), ("int8", None), ("fp8", (128, 128))])
def test_a_row_has_its_bits_in_any_call(device, dtype, source, block):
    packed, _ = packed_case(1, source, 65, 544, block=block, device=device)
    x = random_rows(1, 200, 544, dtype).to(device)
    want = verify_gemm_w8(x, *packed)
    for num_rows in range(1, 66):
        first = (7 * num_rows) % 130
        part = verify_gemm_w8(x[first : first + num_rows], *packed)
        assert torch.equal(part, want[first : first + num_rows]), num_rows
    shuffle = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    assert torch.equal(verify_gemm_w8(x[shuffle], *packed), want[shuffle])


def test_threads_do_not_reach_the_bits():
    packed, _ = packed_case(2, "int8", 2080, 512)
    x = random_rows(2, 20, 512, torch.bfloat16)
    in_use = torch.get_num_threads()
    results = []
    for num_threads in (1, 2, 3):
        torch.set_num_threads(num_threads)
        results.append(verify_gemm_w8(x, *packed))
    torch.set_num_threads(in_use)
    assert all(torch.equal(results[0], other) for other in results)


@given(rows, st.sampled_from(DEPTHS), dtypes, dtypes, seeds)
@settings(max_examples=30)
def test_the_fused_norm_has_the_bits_of_rmsnorm(device, num_rows, depth, dtype, norm_dtype, seed):
    packed, _ = packed_case(seed, "fp8", 40, depth, device=device)
    x = random_rows(seed, num_rows, depth, dtype).to(device)
    norm_weight = torch.randn(depth).to(device, norm_dtype)
    fused = verify_gemm_w8(x, *packed, norm_weight=norm_weight, eps=1e-5)
    assert torch.equal(fused, verify_gemm_w8(rmsnorm(x, norm_weight, eps=1e-5), *packed))


@pytest.mark.parametrize("act", ["none", "silu_mul"])
def test_any_stride_and_nothing_beside_the_rows_is_read(device, act):
    packed, _ = packed_case(3, "int8", 41, 77, act, device=device)
    x = random_rows(3, 9, 77, torch.float16).to(device)
    options = {"num_outputs": 41, "act": act}
    want = verify_gemm_w8(x, *packed, **options)
    buffer = torch.full((18, 90), float("nan"), dtype=x.dtype, device=device)
    buffer[::2, 5:82] = x
    out = torch.full((41, 27), 5.0, dtype=x.dtype, device=device).t()[::3]
    got = verify_gemm_w8(buffer[::2, 5:82], *packed, **options, out=out)
    assert got is out and torch.equal(out, want)


def test_addresses_past_32_bits(device):
    packed, _ = packed_case(5, "q8_0", 3, 32, device=device)
    x = random_rows(5, 3, 32, torch.bfloat16).to(device)
    buffer = torch.empty(2**32 + 64, dtype=torch.bfloat16, device=device)  # few pages are touched
    want = verify_gemm_w8(x, *packed, num_outputs=3)
    far = buffer.as_strided((3, 32), (2**31, 1))
    far.copy_(x)
    assert torch.equal(verify_gemm_w8(far, *packed, num_outputs=3), want)


DTYPES = "bfloat16 or float16 or float32"
BYTES = torch.zeros(1, 1088, dtype=torch.uint8)
# fmt: off
WRONG = [
    ({"x": torch.zeros(2, 32).double()}, TypeError, f"x must be {DTYPES}, got float64"),
    ({"act": "gelu"}, ValueError, "act must be one of none, silu, silu_mul, got gelu"),
    ({"format": "int4_fp16_g32"}, ValueError, "format must be one of pack_w8, got int4_fp16_g32"),
    ({"format": "int9_fp16_g32"}, ValueError, "format must be as pack_w8 or pack_w4 names it, like int4_fp16_g32_mins, got int9_fp16_g32"),
    ({"format": "fp8_fp32_g32"}, ValueError, "weight must have shape [blocks, block_bytes] = [1, 1152], got [1, 1088]"),
    ({"num_outputs": 33}, ValueError, "weight must have shape [blocks, block_bytes] = [2, 1088], got [1, 1088]"),
    ({"weight": BYTES.char()}, TypeError, "weight must be uint8, got int8"),
    ({"bias": torch.zeros(5)}, ValueError, "bias must have shape [N] = [6], got [5]"),
    ({"out": torch.zeros(2, 7)}, ValueError, "out must have shape [M, num_outputs] = [2, 6], got [2, 7]"),
    ({"out_dtype": torch.int8}, TypeError, f"out_dtype must be {DTYPES}, got int8"),
]
# fmt: on


@pytest.mark.parametrize(("change", "error", "text"), WRONG)
def test_names_what_is_wrong(change, error, text):
    call = {
        "x": torch.zeros(2, 32),
        "weight": BYTES,
        "format": "int8_fp16_g32",
        "bias": torch.zeros(6),
        "num_outputs": 6,
    } | change
    out = {"out": call.pop("out")} if "out" in call else {}
    assert_raises_alike(verify_gemm_w8, OP.out if out else OP, call, out, error, text)


def test_opcheck(device):
    for act in ("none", "silu_mul"):
        packed, _ = packed_case(0, "q8_0", 40, 64, act, device=device)
        x = random_rows(0, 3, 64, torch.bfloat16).to(device)
        options = {"num_outputs": 40, "act": act, "norm_weight": torch.ones(64, device=device)}
        torch.library.opcheck(OP.default, (x, *packed), options | {"out_dtype": torch.float32})
        torch.library.opcheck(
            OP.out, (x, *packed), options | {"out": torch.empty(3, 40, device=device)}
        )
        torch.library.opcheck(OP.default, (x, *packed), {"act": act})


def test_compiles_whole(device):
    compiled = torch.compile(verify_gemm_w8, fullgraph=True)
    packed, _ = packed_case(0, "fp8", 40, 64, device=device)
    x = random_rows(0, 3, 64, torch.bfloat16).to(device)
    assert torch.equal(compiled(x, *packed, act="silu"), verify_gemm_w8(x, *packed, act="silu"))
