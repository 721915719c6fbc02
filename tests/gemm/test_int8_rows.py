"""verify_gemm_w4 and verify_gemm_w8 with activations="int8": W4A8 and W8A8."""

import pytest
import torch
from bounds import ACCUMULATION
from calls import assert_raises_alike
from hypothesis import given, settings
from hypothesis import strategies as st
from quant_products import Terms, assert_product, bits, magnitudes
from quant_sources import FLOATS, W4_SOURCES, W8_SOURCES, on, w4_call, w8_call

from dflash_ops import pack_w4, pack_w8, reference, rmsnorm, verify_gemm_w4, verify_gemm_w8
from dflash_ops.reference.quantised import read_w4, read_w8, round_to_int8

ROWS = [0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33, 63, 64, 65]
DEPTHS = [0, 8, 24, 32, 40, 64, 120, 128, 136, 512, 520, 576, 1024]
OP = torch.ops.dflash.verify_gemm_w4

rows = st.sampled_from(ROWS) | st.integers(0, 70)
outputs = st.sampled_from([1, 16, 31, 32, 33, 64, 65]) | st.integers(0, 70)
depths = st.sampled_from(DEPTHS) | st.integers(0, 700)
groups = st.sampled_from([32, 64, 128, 512, -1])
dtypes = st.sampled_from(FLOATS)
sources = st.sampled_from((*W4_SOURCES, "int8", "q8_0"))
seeds = st.integers(0, 2**31 - 1)


def packed_case(seed, source, num_outputs, depth, group_size=128, pair=False, device="cpu"):
    width = num_outputs * (1 + pair)
    if source in W8_SOURCES:
        block = None if group_size < 0 or source == "q8_0" else (1, group_size)
        call = w8_call(seed, source, width, depth, block)
        packed = pack_w8(**on(device, call), pair=pair)
        return packed, read_w8(**{"scales": None, "block": None} | call)
    call = w4_call(seed, source, width, depth, group_size)
    q = read_w4(**{"scales": None, "zeros": None, "group_size": None} | call)
    return pack_w4(**on(device, call), pair=pair), q


def random_rows(seed, num_rows, depth, dtype):
    return torch.randn(num_rows, depth, generator=torch.Generator().manual_seed(seed)).to(dtype)


def run(x, packed, q, **options):
    pair = options.get("act") == "silu_mul"
    options = {"num_outputs": len(q.codes) // (1 + pair)} | options
    op = verify_gemm_w4 if q.kind == "int4" else verify_gemm_w8
    return op(x, *packed, activations="int8", **options)


def rounded(x):
    """What the rows count as, exactly."""
    codes, scales = round_to_int8(x)
    return codes.double() * scales.double().repeat_interleave(32, 1)[:, : x.shape[1]]


@pytest.mark.parametrize("dtype", FLOATS)
def test_rows_of_small_integers_are_exact(device, layout, dtype):
    """With 127 in every block the scale is 1; the weight's are powers of two."""
    call = w4_call(0, "gptq", 40, 320)
    call["scales"] = torch.full_like(call["scales"], -0.25)
    weight, name = pack_w4(**on(device, call))
    x = torch.randint(-127, 128, (9, 320)).to(dtype)
    x[:, ::32] = 127
    options = {"num_outputs": 40, "out_dtype": torch.float32}
    got = verify_gemm_w4(x.to(device), weight, name, activations="int8", **options)
    want = reference.verify_gemm_w4(x, weight.cpu(), name, num_outputs=40, layout=layout)
    assert torch.equal(got.cpu(), want.float())


def test_how_rows_are_rounded(device):
    x = torch.zeros(1, 40)
    x[0, :4] = torch.tensor([127.0, -2.5, 3.5, 0.49])  # ties to even
    x[0, 32:34] = torch.tensor([-1.0, 0.5])  # its own scale, 1 / 127
    codes, scales = round_to_int8(x)
    assert codes[0, :4].tolist() == [127, -2, 4, 0]
    assert codes[0, 32:34].tolist() == [-127, 64]
    assert scales.tolist() == [[1, torch.tensor(1 / 127).item()]]
    ones = on(
        device, {"weight": torch.full((5, 32), 0x11111111).int(), "scales": torch.ones(1, 32)}
    )
    weight = pack_w4(**ones, source="gptq", group_size=64)  # every value is -7
    got = verify_gemm_w4(x.to(device), *weight, activations="int8", num_outputs=1)
    want = -7 * (129 - 63 * scales[0, 1].double())
    assert abs(got.item() - want) <= ACCUMULATION * 7 * (133 + 1.5)


@given(
    num_rows=rows,
    num_outputs=outputs,
    depth=depths,
    dtype=dtypes,
    out_dtype=dtypes,
    source=sources,
    group_size=groups,
    act=st.sampled_from(["none", "silu_mul"]),
    names=st.sets(st.sampled_from(["bias", "addend", "residual"])),
    seed=seeds,
)
@settings(max_examples=60)
def test_within_bound_of_the_rounded_rows(
    device,
    layout,
    num_rows,
    num_outputs,
    depth,
    dtype,
    out_dtype,
    source,
    group_size,
    act,
    names,
    seed,
):
    pair = act == "silu_mul"
    packed, q = packed_case(seed, source, num_outputs, depth, group_size, pair, device)
    x = random_rows(seed, num_rows, q.depth, dtype)
    width = len(q.codes)
    terms = Terms.random(names, num_rows, width, width // (1 + pair), q.depth, out_dtype)
    call = terms.given() | {"act": act}
    got = run(x.to(device), packed, q, **on(device, call), out_dtype=out_dtype)
    assert_product(got.cpu(), rounded(x), q, act, terms)
    op = reference.verify_gemm_w4 if q.kind == "int4" else reference.verify_gemm_w8
    call |= {"num_outputs": width // (1 + pair), "layout": layout}
    want = op(x, packed.packed.cpu(), packed.format, activations="int8", **call)
    call = terms.given() | {"act": act}
    assert torch.equal(want, reference.verify_gemm(rounded(x), q.values().contiguous(), **call))


@given(rows, outputs, depths, dtypes, sources, groups, seeds)
@settings(max_examples=40)
def test_the_error_against_float_rows(
    device, num_rows, num_outputs, depth, dtype, source, group_size, seed
):
    """At most half a scale for each x: sum |w| scale / 2, beside the rounding of the sums."""
    packed, q = packed_case(seed, source, num_outputs, depth, group_size, device=device)
    x = random_rows(seed, num_rows, q.depth, dtype)
    if q.depth:
        x[:, seed % q.depth] *= 20  # an outlier, which takes the resolution of its block
    options = {"num_outputs": len(q.codes), "out_dtype": torch.float32}
    exact = reference.verify_gemm(x, q.values())
    error = (run(x.to(device), packed, q, **options).cpu().double() - exact).abs()
    scales = round_to_int8(x)[1].double().repeat_interleave(32, 1)[:, : q.depth]
    sizes = q.values().double().abs()
    allowed = (scales / 2 * (1 + 2.0**-20)) @ sizes.T
    sums = ACCUMULATION * (x.double().abs() + scales) @ magnitudes(q).T
    assert (error <= allowed + sums).all()


@given(rows, outputs, depths, dtypes, sources, groups, seeds)
@settings(max_examples=40)
def test_every_isa_gives_the_same_bits(
    each_isa, num_rows, num_outputs, depth, dtype, source, group_size, seed
):
    packed, q = packed_case(seed, source, num_outputs, depth, group_size)
    x = random_rows(seed, num_rows, q.depth, dtype)
    first, *others = each_isa(lambda: run(x, packed, q, out_dtype=torch.float32))
    assert all(torch.equal(bits(first), bits(other)) for other in others)


def test_largest_codes_are_exact(device):
    words = torch.full((8, 32), -1).int()  # codes 15
    w4 = on(device, {"weight": words, "scales": torch.ones(1, 32)})
    w8 = on(device, {"weight": torch.full((32, 64), -128).char(), "scales": torch.ones(32, 1)})
    calls = (
        (verify_gemm_w4, pack_w4(**w4, source="gptq", group_size=64), 7),
        (verify_gemm_w8, pack_w8(**w8), -128),
    )
    for op, packed, value in calls:
        x = torch.full((3, 64), 127.0, device=device)  # of scale 1
        assert (op(x, *packed, activations="int8") == 127 * 64 * value).all()


def test_largest_codes_do_not_overflow(each_isa):
    """All codes and all x at the largest: sums of pairs in 16 bits are at their end."""
    words = torch.full((8, 32), -1).int()  # codes 15
    w4 = pack_w4(words, torch.ones(1, 32), source="gptq", group_size=64)
    w8 = pack_w8(torch.full((32, 64), -128).char(), torch.ones(32, 1))
    for op, packed, value in ((verify_gemm_w4, w4, 7), (verify_gemm_w8, w8, -128)):
        for sign in (1, -1):
            x = torch.full((3, 64), sign * 127.0)  # of scale 1
            call = lambda x=x, op=op, w=packed: op(x, *w, activations="int8")  # noqa: E731
            assert all((result == sign * 127 * 64 * value).all() for result in each_isa(call))


@pytest.mark.parametrize(
    ("source", "group_size"),
    [("q4_1", 32), ("gptq", 128), ("awq", -1), ("q8_0", 32), ("int8", -1)],
)
def test_a_row_has_its_bits_in_any_call(device, source, group_size):
    packed, q = packed_case(1, source, 65, 544, group_size, device=device)
    x = random_rows(1, 200, 544, torch.bfloat16).to(device)
    want = run(x, packed, q)
    for num_rows in range(1, 66):
        first = (7 * num_rows) % 130
        part = run(x[first : first + num_rows], packed, q)
        assert torch.equal(part, want[first : first + num_rows]), num_rows
    shuffle = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    assert torch.equal(run(x[shuffle], packed, q), want[shuffle])


@given(rows, st.sampled_from(DEPTHS), dtypes, seeds)
@settings(max_examples=20)
def test_the_norm_comes_before_the_rounding(device, num_rows, depth, dtype, seed):
    packed, q = packed_case(seed, "q4_1", 40, depth, device=device)
    x = random_rows(seed, num_rows, q.depth, dtype).to(device)
    norm_weight = torch.randn(q.depth).to(device)
    fused = run(x, packed, q, norm_weight=norm_weight, eps=1e-5)
    assert torch.equal(fused, run(rmsnorm(x, norm_weight, eps=1e-5), packed, q))


def test_a_row_that_is_not_finite_is_nan_and_alone(device):
    packed, q = packed_case(2, "q4_1", 40, 96, device=device)
    x = random_rows(2, 5, 96, torch.float32).to(device)
    want = run(x, packed, q)
    x[1, 70], x[3, 0] = float("nan"), float("-inf")
    got = run(x, packed, q)
    assert got[[1, 3]].isnan().all()
    assert torch.equal(got[[0, 2, 4]], want[[0, 2, 4]])


def test_names_what_is_wrong():
    packed, _ = packed_case(3, "q4_0", 32, 32)
    call = {"x": torch.zeros(2, 32), "weight": packed.packed, "format": packed.format}
    text = "activations must be one of float, int8, got fp8"
    assert_raises_alike(verify_gemm_w4, OP, call | {"activations": "fp8"}, {}, ValueError, text)
    weight = pack_w8(torch.ones(4, 32).to(torch.float8_e4m3fn), torch.ones(4, 1))
    call = {"x": torch.zeros(2, 32), "weight": weight.packed, "format": weight.format}
    text = "activations must be float with fp8 weights, got int8"
    op = torch.ops.dflash.verify_gemm_w8
    assert_raises_alike(verify_gemm_w8, op, call | {"activations": "int8"}, {}, ValueError, text)


def test_opcheck_and_compile(device):
    packed, q = packed_case(4, "awq", 40, 64, device=device)
    x = random_rows(4, 3, 64, torch.bfloat16).to(device)
    torch.library.opcheck(OP.default, (x, *packed), {"activations": "int8"})
    compiled = torch.compile(verify_gemm_w4, fullgraph=True)
    got = compiled(x, *packed, num_outputs=40, activations="int8")
    assert torch.equal(got, run(x, packed, q))
