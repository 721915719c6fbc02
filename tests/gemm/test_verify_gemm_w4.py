import pytest
import torch
from calls import assert_raises_alike
from hypothesis import given, settings
from hypothesis import strategies as st
from quant_products import Terms, assert_product, bits
from quant_sources import FLOATS, W4_SOURCES, on, w4_call

from dflash_ops import pack_w4, reference, rmsnorm, unpack, verify_gemm_w4
from dflash_ops.reference.quantised import read_w4

# Each side of the row tiles (2, 4 and 8 in registers, 64 in a call), of the blocks, words, groups.
ROWS = [0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33, 63, 64, 65]
OUTPUTS = [0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65]
DEPTHS = [0, 8, 24, 32, 40, 64, 120, 128, 136, 512, 520, 576, 1024]
GROUPS = [32, 64, 128, 256, 512, -1]
OP = torch.ops.dflash.verify_gemm_w4

rows = st.sampled_from(ROWS) | st.integers(0, 70)
outputs = st.sampled_from(OUTPUTS) | st.integers(0, 70)
depths = st.sampled_from(DEPTHS) | st.integers(0, 700)
dtypes = st.sampled_from(FLOATS)
seeds = st.integers(0, 2**31 - 1)


class Case:
    """A packed weight, what it stands for, and rows; the source may round its sizes up."""

    def __init__(
        self, seed, source, num_rows, num_outputs, depth, dtype, act="none", device="cpu", **options
    ):
        pair = act == "silu_mul"
        call = w4_call(seed, source, num_outputs * (1 + pair), depth, **options)
        self.q = read_w4(**{"scales": None, "zeros": None, "group_size": None} | call)
        self.packed, self.format = pack_w4(**on(device, call), pair=pair)
        self.width, self.depth = self.q.codes.shape
        self.outputs = self.width // (1 + pair)
        g = torch.Generator().manual_seed(seed + 1)
        self.x = torch.randn(num_rows, self.depth, generator=g).to(device, dtype)

    def run(self, x=None, **options):
        x = self.x if x is None else x
        options = {"num_outputs": self.outputs} | options
        return verify_gemm_w4(x, self.packed, self.format, **options)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("source", W4_SOURCES)
def test_unit_rows_give_the_weight(device, source, dtype):
    """Row k of the identity picks column k: its value comes out, rounded at most once."""
    case = Case(0, source, 1, 40, 160, dtype, device=device, group_size=64)
    got = case.run(torch.eye(160).to(device, dtype), out_dtype=torch.float32).T.cpu()
    values = unpack(case.packed, (case.width, 160), format=case.format).cpu()
    scale = case.q.scales.float().abs().repeat_interleave(case.q.group, 1)[:, :160]
    assert ((got - values).abs() <= 8 * scale * 2.0**-23).all()
    if case.q.offset != "mins":
        exact = dtype != torch.float32 or case.q.scales.dtype != torch.float32
        assert not exact or torch.equal(got, values)


@given(rows, outputs, depths, dtypes, st.sampled_from(W4_SOURCES), st.sampled_from(GROUPS), seeds)
@settings(max_examples=60)
def test_exact_inputs_give_the_exact_product(
    device, num_rows, num_outputs, depth, dtype, source, group, seed
):
    call = w4_call(seed, source, num_outputs, depth, group)
    g = torch.Generator().manual_seed(seed)
    if source.startswith("q4"):  # powers of two; minima of a few of them
        blocks = call["weight"].unflatten(1, (-1, 18 if source == "q4_0" else 20))
        halves = torch.randint(-3, 4, (*blocks.shape[:2], 2), generator=g).half() / 8
        halves[..., 0] = 0.125
        head = 2 if source == "q4_0" else 4
        blocks[..., :head] = halves.view(torch.uint8)[..., :head]
    else:
        call["scales"] = torch.full_like(call["scales"], -0.25)
    packed, name = pack_w4(**on(device, call))
    q = read_w4(**{"scales": None, "zeros": None, "group_size": None} | call)
    x = torch.randint(-1, 2, (num_rows, q.depth), generator=g).to(dtype)
    options = {"num_outputs": len(q.codes), "out_dtype": torch.float32}
    got = verify_gemm_w4(x.to(device), packed, name, **options).cpu()
    assert torch.equal(got.double(), x.double() @ q.values().double().T)


@given(
    num_rows=rows,
    num_outputs=outputs,
    depth=depths,
    dtype=dtypes,
    out_dtype=dtypes,
    source=st.sampled_from(W4_SOURCES),
    group_size=st.sampled_from(GROUPS),
    scale_dtype=dtypes,
    has_zeros=st.booleans(),
    act=st.sampled_from(["none", "silu", "silu_mul"]),
    terms=st.sets(st.sampled_from(["bias", "addend", "residual", "norm_weight"])),
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
    group_size,
    scale_dtype,
    has_zeros,
    act,
    terms,
    term_dtype,
    seed,
):
    options = {"group_size": group_size, "dtype": scale_dtype, "has_zeros": has_zeros}
    g = {} if source.startswith("q4") else options
    pair = act == "silu_mul"
    call = w4_call(seed, source, num_outputs * (1 + pair), depth, **g)
    q = read_w4(**{"scales": None, "zeros": None, "group_size": None} | call)
    packed, name = pack_w4(**on(device, call), pair=pair)
    width, depth = q.codes.shape
    x = torch.randn(num_rows, depth, generator=torch.Generator().manual_seed(seed)).to(dtype)
    t = Terms.random(terms, num_rows, width, width // (1 + pair), depth, term_dtype)
    call = t.given() | {"num_outputs": width // (1 + pair), "act": act}
    got = verify_gemm_w4(x.to(device), packed, name, **on(device, call), out_dtype=out_dtype)
    assert got.dtype == out_dtype
    assert_product(got.cpu(), x, q, act, t)
    if "norm_weight" not in terms:
        want = reference.verify_gemm_w4(x, packed.cpu(), name, layout=layout, **call)
        assert torch.equal(
            want, reference.verify_gemm(x, q.values().contiguous(), act=act, **t.given())
        )


@given(rows, outputs, depths, dtypes, st.sampled_from(W4_SOURCES), st.booleans(), seeds)
@settings(max_examples=40)
def test_every_isa_gives_the_same_bits(
    each_isa, num_rows, num_outputs, depth, dtype, source, tiny, seed
):
    case = Case(seed, source, num_rows, num_outputs, depth, dtype, group_size=64)
    if tiny:  # products and operands in the range of denormals
        case.x = case.x * 2.0**-127
    first, *others = each_isa(lambda: case.run(out_dtype=torch.float32))
    assert all(torch.equal(bits(first), bits(other)) for other in others)


def test_every_isa_gives_the_same_epilogue(each_isa):
    for dtype in FLOATS:
        case = Case(5, "q4_1", 21, 40, 608, dtype, "silu_mul")
        names = {"bias", "addend", "residual", "norm_weight"}
        options = Terms.random(names, 21, 80, 40, 608, dtype).given() | {"act": "silu_mul"}
        first, *others = each_isa(lambda c=case, o=options: c.run(**o))
        assert all(torch.equal(bits(first), bits(other)) for other in others)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("source", "options"), [("q4_1", {}), ("gptq", {"group_size": 128})])
def test_a_row_has_its_bits_in_any_call(device, dtype, source, options):
    """On CUDA on each side of the tiles of 16 and 32 tokens, of two fp16 and three fp32 parts."""
    case = Case(1, source, 200, 65, 544, dtype, device=device, **options)
    want = case.run()
    for num_rows in range(1, 66):
        first = (7 * num_rows) % 130
        part = case.run(case.x[first : first + num_rows])
        assert torch.equal(part, want[first : first + num_rows]), num_rows
    shuffle = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    assert torch.equal(case.run(case.x[shuffle]), want[shuffle])


@pytest.mark.parametrize(("dtype", "num_outputs"), [(torch.bfloat16, 3560), (torch.float32, 1290)])
def test_wide_tiles_have_the_bits_of_narrow_ones(device, dtype, num_outputs):
    """On CUDA this many rows and outputs take tiles of 256 outputs, the parts those of 32."""
    case = Case(8, "q4_1", 200, num_outputs, 160, dtype, device=device)
    want = case.run()
    for first in (0, 31, 96, 195):
        part = case.run(case.x[first : first + 5])
        assert torch.equal(part, want[first : first + 5])


def test_threads_do_not_reach_the_bits():
    case = Case(2, "awq", 20, 2080, 512, torch.bfloat16)
    in_use = torch.get_num_threads()
    results = []
    for num_threads in (1, 2, 3):
        torch.set_num_threads(num_threads)
        results.append(case.run())
    torch.set_num_threads(in_use)
    assert all(torch.equal(results[0], other) for other in results)


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_stood_in_memory_before_is_not_read(device, dtype):
    """A row of 36 k ends inside a word; the call before it leaves NaN where that word ends."""
    case = Case(9, "awq", 3, 40, 36, dtype, device=device)
    before = Case(9, "awq", 3, 40, 40, dtype, device=device)
    before.x.fill_(torch.nan)
    want = case.run()
    assert want.isfinite().all()
    for _ in range(4):
        before.run()
        assert torch.equal(case.run(), want)


@given(rows, st.sampled_from(DEPTHS), dtypes, dtypes, seeds)
@settings(max_examples=30)
def test_the_fused_norm_has_the_bits_of_rmsnorm(device, num_rows, depth, dtype, norm_dtype, seed):
    case = Case(seed, "q4_1", num_rows, 40, depth, dtype, device=device)
    norm_weight = torch.randn(case.depth).to(device, norm_dtype)
    fused = case.run(norm_weight=norm_weight, eps=1e-5)
    assert torch.equal(fused, case.run(rmsnorm(case.x, norm_weight, eps=1e-5)))


def test_zeros_of_8_have_the_bits_of_none(device):
    call = on(device, w4_call(7, "gptq_v2", 40, 256))
    call["zeros"] = torch.full_like(call["zeros"], -0x77777778)  # eight nibbles of 8
    with_zeros = pack_w4(**call)
    without = pack_w4(**call | {"zeros": None})
    x = torch.randn(9, 256).to(device, torch.bfloat16)
    assert torch.equal(verify_gemm_w4(x, *with_zeros), verify_gemm_w4(x, *without))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("act", ["none", "silu_mul"])
def test_any_stride_and_nothing_beside_the_rows_is_read(device, dtype, act):
    case = Case(3, "gptq", 9, 41, 80, dtype, act, device, group_size=64)
    options = {"addend": torch.randn(9, case.width), "residual": torch.randn(9, 41).to(dtype)}
    options = on(device, options)
    want = case.run(act=act, **options)

    def spread(t):  # rows of a wider buffer whose rest is NaN
        buffer = torch.full(
            (2 * len(t), t.shape[1] + 9), float("nan"), dtype=t.dtype, device=device
        )
        buffer[::2, 5:-4] = t
        return buffer[::2, 5:-4]

    options = {name: spread(t) for name, t in options.items()}
    out = torch.full((41, 27), 5.0, dtype=dtype, device=device).t()[::3]
    got = case.run(spread(case.x), act=act, out=out, **options)
    assert got is out and torch.equal(out, want)
    residual = options["residual"]  # in place
    assert torch.equal(case.run(spread(case.x), act=act, **options, out=residual), want)


def test_without_num_outputs_the_padding_is_zero(device):
    case = Case(4, "q4_1", 3, 40, 64, torch.bfloat16, device=device)
    padded = verify_gemm_w4(case.x, case.packed, case.format)
    assert padded.shape == (3, 64) and padded[:, 40:].count_nonzero() == 0
    assert torch.equal(padded[:, :40], case.run())


def test_a_weight_at_any_address(device):
    """Also between two 16-byte boundaries, where nothing can be copied in pieces."""
    for depth in (128, 136, 200):
        case = Case(6, "gptq", 3, 40, depth, torch.bfloat16, device=device, group_size=32)
        want = case.run()
        buffer = torch.zeros(case.packed.numel() + 16, dtype=torch.uint8, device=device)
        for offset in (1, 2, 4, 8):
            moved = buffer[offset : offset + case.packed.numel()].view(case.packed.shape)
            case.packed = moved.copy_(case.packed.clone())
            assert torch.equal(case.run(), want)


def test_addresses_past_32_bits(device):
    case = Case(5, "q4_1", 3, 3, 32, torch.bfloat16, device=device)
    buffer = torch.empty(2**32 + 64, dtype=torch.bfloat16, device=device)  # few pages are touched
    want = case.run()
    far = buffer.as_strided((3, 32), (2**31, 1))
    far.copy_(case.x)
    assert torch.equal(case.run(far), want)
    out = buffer.as_strided((3, 3), (2**31, 2))
    assert torch.equal(case.run(out=out), want)


DTYPES = "bfloat16 or float16 or float32"
BYTES = torch.zeros(1, 576, dtype=torch.uint8)
# fmt: off
WRONG = [
    ({"x": torch.zeros(2, 4, 1)}, ValueError, "x must have shape [M, K] = [*, *], got [2, 4, 1]"),
    ({"x": torch.zeros(2, 32).double()}, TypeError, f"x must be {DTYPES}, got float64"),
    ({"act": "gelu"}, ValueError, "act must be one of none, silu, silu_mul, got gelu"),
    ({"format": "q4_1"}, ValueError, "format must be as pack_w8 or pack_w4 names it, like int4_fp16_g32_mins, got q4_1"),
    ({"format": "int4_fp32_g32_mins"}, ValueError, "format must be as pack_w8 or pack_w4 names it, like int4_fp16_g32_mins, got int4_fp32_g32_mins"),
    ({"format": "int8_fp16_g32_zeros"}, ValueError, "format must be as pack_w8 or pack_w4 names it, like int4_fp16_g32_mins, got int8_fp16_g32_zeros"),
    ({"format": "int4_fp16_g320"}, ValueError, "format must be as pack_w8 or pack_w4 names it, like int4_fp16_g32_mins, got int4_fp16_g320"),
    ({"format": "int8_fp16_g32"}, ValueError, "format must be one of pack_w4, got int8_fp16_g32"),
    ({"num_outputs": 33}, ValueError, "weight must have shape [blocks, block_bytes] = [2, 576], got [1, 576]"),
    ({"format": "int4_fp16_g32_mins"}, ValueError, "weight must have shape [blocks, block_bytes] = [1, 640], got [1, 576]"),
    ({"weight": BYTES.char()}, TypeError, "weight must be uint8, got int8"),
    ({"weight": torch.zeros(1, 1152, dtype=torch.uint8)[:, ::2]}, ValueError, "weight must be contiguous, got strides [1152, 2]"),
    ({"bias": torch.zeros(5)}, ValueError, "bias must have shape [N] = [6], got [5]"),
    ({"norm_weight": torch.zeros(5)}, ValueError, "norm_weight must have shape [K] = [32], got [5]"),
    ({"eps": float("nan")}, ValueError, "eps must be at least 0, got nan"),
    ({"addend": torch.zeros(3, 6)}, ValueError, "addend must have shape [M, N] = [2, 6], got [3, 6]"),
    ({"residual": torch.zeros(2, 5)}, ValueError, "residual must have shape [M, num_outputs] = [2, 6], got [2, 5]"),
    ({"out": torch.zeros(2, 7)}, ValueError, "out must have shape [M, num_outputs] = [2, 6], got [2, 7]"),
    ({"out": torch.zeros(2, 6).long()}, TypeError, f"out must be {DTYPES}, got int64"),
    ({"out_dtype": torch.int8}, TypeError, f"out_dtype must be {DTYPES}, got int8"),
]
# fmt: on


@pytest.mark.parametrize(("change", "error", "text"), WRONG)
def test_names_what_is_wrong(change, error, text):
    call = {
        "x": torch.zeros(2, 32),
        "weight": BYTES,
        "format": "int4_fp16_g32",
        "bias": torch.zeros(6),
        "num_outputs": 6,
        "norm_weight": torch.zeros(32),
        "addend": torch.zeros(2, 6),
        "residual": torch.zeros(2, 6),
    } | change
    out = {"out": call.pop("out")} if "out" in call else {}
    assert_raises_alike(verify_gemm_w4, OP.out if out else OP, call, out, error, text)


def test_opcheck(device):
    for act in ("none", "silu_mul"):
        case = Case(0, "q4_1", 3, 40, 64, torch.bfloat16, act, device)
        options = {"num_outputs": 40, "act": act, "norm_weight": torch.ones(64, device=device)}
        args = (case.x, case.packed, case.format)
        torch.library.opcheck(OP.default, args, options | {"out_dtype": torch.float32})
        torch.library.opcheck(OP.out, args, options | {"out": torch.empty(3, 40, device=device)})
        torch.library.opcheck(OP.default, args, {"act": act})


def test_compiles_whole(device):
    compiled = torch.compile(verify_gemm_w4, fullgraph=True)
    case = Case(0, "awq", 3, 40, 64, torch.bfloat16, device=device)
    got = compiled(case.x, case.packed, case.format, act="silu")
    assert torch.equal(got, verify_gemm_w4(case.x, case.packed, case.format, act="silu"))
