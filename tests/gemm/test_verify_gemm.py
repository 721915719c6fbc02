import re

import pytest
import torch
from bounds import assert_within
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_ops import _C, pack_weight, reference, rmsnorm, verify_gemm

pytestmark = pytest.mark.sm90
FLOATS = [torch.bfloat16, torch.float16, torch.float32]
# Each side of the row tiles (4 and 8 in registers, 64 in a call), of the blocks and of the chunks.
ROWS = [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65]
OUTPUTS = [0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65]
DEPTHS = [0, 1, 2, 3, 7, 8, 9, 511, 512, 513, 519, 1023, 1024, 1025]
OP = torch.ops.dflash.verify_gemm

rows = st.sampled_from(ROWS) | st.integers(0, 70)
outputs = st.sampled_from(OUTPUTS) | st.integers(0, 70)
depths = st.sampled_from(DEPTHS) | st.integers(0, 1100)
dtypes = st.sampled_from(FLOATS)
seeds = st.integers(0, 2**31 - 1)


def bits(x):
    return x.contiguous().view(torch.int32 if x.dtype == torch.float32 else torch.int16)


def random_call(seed, num_rows, num_outputs, depth, dtype, act="none"):
    """x and a weight whose products are of size 1."""
    g = torch.Generator().manual_seed(seed)
    width = num_outputs * (2 if act == "silu_mul" else 1)
    x = torch.randn(num_rows, depth, generator=g).to(dtype)
    weight = (torch.randn(width, depth, generator=g) / max(depth, 1) ** 0.5).to(dtype)
    return x, weight


def exact(shape, generator, dtype, scale):
    return (torch.randint(-1, 2, shape, generator=generator) * scale).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_identity_gives_x_back(device, dtype):
    x = torch.randn(67, 545).to(device, dtype)
    weight = torch.eye(545, dtype=dtype, device=device)
    assert torch.equal(verify_gemm(x, weight), x)
    assert torch.equal(verify_gemm(x, pack_weight(weight), num_outputs=545), x)
    padded = verify_gemm(x, pack_weight(weight))
    assert padded.shape == (67, 576) and padded[:, 545:].count_nonzero() == 0


def test_planted_terms_and_activations(device):
    x, weight = torch.tensor([[1.0, 2.0]], device=device), torch.eye(2, device=device)
    bias, addend, residual = (
        torch.tensor(t, device=device) for t in ([10.0, 20.0], [[100.0, -1000.0]], [[0.5, 0.25]])
    )
    terms = {"bias": bias, "addend": addend, "residual": residual}
    assert verify_gemm(x, weight, **terms).tolist() == [[111.5, -977.75]]
    assert verify_gemm(x, weight, **terms, act="silu").tolist() == [[111.5, 0.25]]
    terms["residual"] = residual[:, :1]
    bias[1], addend[0, 1] = 1, 0  # gate 111, up 3
    assert verify_gemm(x, weight, **terms, act="silu_mul").tolist() == [[333.5]]


@given(rows, outputs, depths, dtypes, st.sampled_from([1.0, 2.0**-7, 2.0**5]), seeds)
@settings(max_examples=60)
def test_exact_inputs_give_the_exact_product(device, num_rows, num_outputs, depth, dtype, s, seed):
    g = torch.Generator().manual_seed(seed)
    x = exact((num_rows, depth), g, dtype, s)
    weight = exact((num_outputs, depth), g, dtype, 1 / s)
    bias = exact((num_outputs,), g, dtype, 4)
    residual = exact((num_rows, num_outputs), g, torch.float32, 8)
    want = reference.verify_gemm(x, weight, bias, residual=residual).float()
    x, weight, bias, residual = (t.to(device) for t in (x, weight, bias, residual))
    for w in (weight, pack_weight(weight)):
        got = verify_gemm(
            x, w, bias, num_outputs=num_outputs, residual=residual, out_dtype=torch.float32
        )
        assert torch.equal(got.cpu(), want)


@given(
    num_rows=rows,
    num_outputs=outputs,
    depth=depths,
    dtype=dtypes,
    out_dtype=dtypes,
    act=st.sampled_from(["none", "silu", "silu_mul"]),
    terms=st.sets(st.sampled_from(["bias", "addend", "residual", "norm_weight"])),
    term_dtype=dtypes,
    seed=seeds,
)
@settings(max_examples=80)
def test_within_bound_of_reference(
    device, num_rows, num_outputs, depth, dtype, out_dtype, act, terms, term_dtype, seed
):
    x, weight = random_call(seed, num_rows, num_outputs, depth, dtype, act)
    width = len(weight)
    shapes = {
        "bias": (width,),
        "addend": (num_rows, width),
        "residual": (num_rows, num_outputs),
        "norm_weight": (depth,),
    }
    options = {name: torch.randn(shapes[name]).to(term_dtype) for name in sorted(terms)}
    packed = pack_weight(weight, pair=act == "silu_mul")
    moved = {name: t.to(device) for name, t in options.items()}
    got, same = (
        verify_gemm(
            x.to(device),
            w.to(device),
            num_outputs=num_outputs,
            act=act,
            out_dtype=out_dtype,
            **moved,
        ).cpu()
        for w in (weight, packed)
    )
    assert torch.equal(got, same) and got.dtype == out_dtype

    # The norm has its own test; what it rounds to is the input of the product.
    if "norm_weight" in options:
        x = rmsnorm(x, options.pop("norm_weight"))
    want = reference.verify_gemm(x, weight, act=act, **options)
    magnitudes = {name: t.abs() for name, t in options.items() if name != "residual"}
    size = reference.verify_gemm(x.abs(), weight.abs(), **magnitudes)
    if act == "silu_mul":  # |silu'| <= 1.1, |silu(y)| <= |y|
        size = 2.1 * size[:, :num_outputs] * size[:, num_outputs:]
    elif act == "silu":
        size = 1.1 * size
    residual = options["residual"].double().abs() if "residual" in options else 0
    peer = torch.nn.functional.linear(x, weight) if act == "none" and not options else None
    assert_within(got, want, terms=size + residual, from_torch=peer if dtype == out_dtype else None)


@given(rows, outputs, depths, dtypes, st.sampled_from(["plain", "tiny", "wild"]), seeds)
@settings(max_examples=40)
def test_every_isa_gives_the_same_bits(each_isa, num_rows, num_outputs, depth, dtype, kind, seed):
    x, weight = random_call(seed, num_rows, num_outputs, depth, dtype)
    if kind == "tiny":  # products and operands in the range of denormals
        x, weight = x * 2.0**-70, weight * 2.0**-62 if dtype != torch.float16 else weight
    if kind == "wild":
        g = torch.Generator().manual_seed(seed)
        for t in (x, weight):
            at = torch.rand(t.shape, generator=g)
            for low, value in enumerate((float("inf"), float("-inf"), float("nan"), 3e38, 1e-40)):
                t[(at * 3000).floor() == low] = value
    packed = pack_weight(weight)
    call = {"num_outputs": num_outputs, "out_dtype": torch.float32}
    first, *others = each_isa(lambda: verify_gemm(x, packed, **call))
    for other in others:
        assert torch.equal(first.isnan(), other.isnan())
        assert torch.equal(bits(first.nan_to_num(7)), bits(other.nan_to_num(7)))


def test_every_isa_gives_the_same_epilogue(each_isa):
    for dtype in FLOATS:
        x, weight = random_call(5, 21, 40, 600, dtype, "silu_mul")
        options = {
            "norm_weight": torch.rand(600),
            "bias": torch.randn(80).to(dtype),
            "residual": torch.randn(21, 40).to(dtype),
            "act": "silu_mul",
        }
        first, *others = each_isa(lambda x=x, w=weight, o=options: verify_gemm(x * 9, w, **o))
        assert all(torch.equal(bits(first), bits(other)) for other in others)


def test_denormals_are_flushed_inside_the_product_only():
    tiny = torch.tensor([[2.0**-130]], dtype=torch.bfloat16)
    one = torch.ones(1, 1, dtype=torch.bfloat16)
    options = {"out_dtype": torch.float32}
    assert verify_gemm(one, tiny, **options).item() == 0
    assert verify_gemm(one, tiny, residual=tiny, **options).item() == 2.0**-130
    assert tiny.float().mul(1).item() == 2.0**-130  # the caller's mode is back


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("num_outputs", "depth"), [(65, 1030), (600, 576)])
def test_a_row_has_its_bits_in_any_call(device, device_class, dtype, num_outputs, depth):
    x, weight = random_call(1, 300, num_outputs, depth, dtype)
    x, weight = x.to(device), weight.to(device)
    packed = pack_weight(weight)
    call = {"num_outputs": num_outputs}
    want = verify_gemm(x, packed, **call)
    assert torch.equal(verify_gemm(x, weight), want)
    for num_rows in range(1, 65) if device_class == "cpu" else ROWS[1:-1]:
        first = (7 * num_rows) % 200
        part = verify_gemm(x[first : first + num_rows], packed, **call)
        assert torch.equal(part, want[first : first + num_rows]), num_rows
    for row in (0, 150, 299):
        assert torch.equal(verify_gemm(x[row : row + 1], weight)[0], want[row])
    shuffle = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    assert torch.equal(verify_gemm(x[shuffle], packed, **call), want[shuffle])


def test_many_rows_have_the_bits_of_one(device):
    """Enough outputs for every shape of a CUDA tile: their warps share k differently."""
    for dtype in FLOATS[::2]:
        depth = 330 if dtype == torch.bfloat16 else 36
        x, weight = (t.to(device) for t in random_call(6, 520, 4100, depth, dtype))
        want = verify_gemm(x, weight)
        for num_rows in (1, 9, 17, 40):
            rows = torch.arange(num_rows, device=device) * 13
            assert torch.equal(verify_gemm(x[rows], weight), want[rows])


def test_deep_products_by_few_ctas_or_many(device):
    """On sm_90a more steps of k than a ring has stages, and the splits of k in a CTA or a cluster."""
    x, weight = (t.to(device) for t in random_call(7, 33, 132 * 64, 1100, torch.bfloat16))
    packed = pack_weight(weight)
    want = verify_gemm(x, packed)
    for num_rows in (1, 9):
        assert torch.equal(verify_gemm(x[:num_rows], packed), want[:num_rows])
    assert torch.equal(verify_gemm(x, weight[:128]), want[:, :128])


def test_cuda_plan_covers_every_row():
    for num_rows in (1, 8, 9, 16, 17, 32, 33, 64, 65, 2048, 2**33):
        for weight_rows in (1, 16, 4095, 4096, 151936, 2**31):
            plan = _C.plan_verify_gemm_cuda(num_rows, weight_rows)
            blocks, rest = divmod(plan.num_ctas, plan.row_tiles)
            assert rest == 0
            assert 0 <= plan.row_tiles * plan.tokens - num_rows < plan.tokens
            assert 0 <= blocks * plan.weight_rows - weight_rows < plan.weight_rows
            assert plan.smem_bytes <= 99 * 1024 and plan.threads <= 1024


def test_plan_for_sm90_covers_every_row():
    for num_rows in (1, 8, 9, 32, 33, 64, 65, 128, 129, 2048, 2**33):
        for weight_rows in (1, 16, 4095, 4096, 151936, 2**31):
            plan = _C.plan_verify_gemm_sm90(num_rows, weight_rows)
            blocks, rest = divmod(plan.num_ctas // plan.cluster, plan.row_tiles)
            assert rest == 0 and plan.num_ctas % plan.cluster == 0
            assert 0 <= plan.row_tiles * plan.tokens - num_rows < plan.tokens
            assert 0 <= blocks * plan.weight_rows - weight_rows < plan.weight_rows


def test_threads_do_not_reach_the_bits():
    x, weight = random_call(2, 20, 2080, 520, torch.bfloat16)
    in_use = torch.get_num_threads()
    results = []
    for num_threads in (1, 2, 3):
        torch.set_num_threads(num_threads)
        results += [verify_gemm(x, w) for w in (weight, pack_weight(weight))]
    torch.set_num_threads(in_use)
    assert all(torch.equal(results[0], other) for other in results)


@given(rows, st.sampled_from(DEPTHS), dtypes, dtypes, seeds)
@settings(max_examples=30)
def test_the_fused_norm_has_the_bits_of_rmsnorm(device, num_rows, depth, dtype, norm_dtype, seed):
    x, weight = random_call(seed, num_rows, 40, depth, dtype)
    x, weight = x.to(device), weight.to(device)
    norm_weight = torch.randn(depth).to(device, norm_dtype)
    fused = verify_gemm(x, weight, norm_weight=norm_weight, eps=1e-5)
    assert torch.equal(fused, verify_gemm(rmsnorm(x, norm_weight, eps=1e-5), weight))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("act", ["none", "silu_mul"])
def test_any_stride_and_nothing_beside_the_rows_is_read(device, dtype, act):
    x, weight = random_call(3, 9, 41, 77, dtype, act)
    options = {"addend": torch.randn(9, len(weight)), "residual": torch.randn(9, 41).to(dtype)}
    want = verify_gemm(x, weight, act=act, **options).to(device)

    def spread(t):  # rows of a wider buffer whose rest is NaN
        buffer = torch.full((2 * len(t), t.shape[1] + 9), float("nan"), dtype=t.dtype)
        buffer = buffer.to(device)
        buffer[::2, 5:-4] = t
        return buffer[::2, 5:-4]

    options = {name: spread(t) for name, t in options.items()}
    out = torch.full((41, 27), 5.0, dtype=dtype, device=device).t()[::3]
    got = verify_gemm(spread(x), spread(weight), act=act, out=out, **options)
    assert got is out and torch.equal(out, want)
    residual = options["residual"]  # in place
    assert torch.equal(
        verify_gemm(spread(x), spread(weight), act=act, **options, out=residual), want
    )


def test_addresses_past_32_bits(device):
    buffer = torch.empty(2**32 + 64, dtype=torch.bfloat16, device=device)  # few pages are touched
    x, weight = random_call(4, 3, 3, 20, torch.bfloat16)
    want = verify_gemm(x, weight).to(device)
    far = buffer.as_strided((3, 20), (2**31, 1))
    far.copy_(x)
    assert torch.equal(verify_gemm(far, weight.to(device)), want)
    far.copy_(weight)
    assert torch.equal(verify_gemm(x.to(device), far), want)
    out = buffer.as_strided((3, 3), (2**31, 2))
    assert torch.equal(verify_gemm(x.to(device), weight.to(device), out=out), want)


def valid_call():
    return {
        "x": torch.zeros(2, 4),
        "weight": torch.zeros(6, 4),
        "bias": torch.zeros(6),
        "num_outputs": 6,
        "norm_weight": torch.zeros(4),
        "eps": 1e-6,
        "addend": torch.zeros(2, 6),
        "act": "none",
        "residual": torch.zeros(2, 6),
        "out": torch.zeros(2, 6),
    }


DTYPES = "bfloat16 or float16 or float32"
# fmt: off
WRONG = [
    ("x", torch.zeros(2, 4, 1), ValueError, "x must have shape [M, K] = [*, *], got [2, 4, 1]"),
    ("x", torch.zeros(2, 4).double(), TypeError, f"x must be {DTYPES}, got float64"),
    ("x", torch.zeros(4, 2).t(), ValueError, "x must have a contiguous last dimension, got strides [1, 2]"),
    ("act", "gelu", ValueError, "act must be one of none, silu, silu_mul, got gelu"),
    ("num_outputs", -1, ValueError, "num_outputs must be at least 0, got -1"),
    ("num_outputs", 5, ValueError, "weight must have shape [N, K] = [5, 4], got [6, 4]"),
    ("weight", torch.zeros(6, 4).half(), TypeError, "weight must be float32, got float16"),
    ("weight", torch.zeros(6, 5), ValueError, "weight must have shape [N, K] = [6, 4], got [6, 5]"),
    ("weight", torch.zeros(4, 6).t(), ValueError, "weight must have a contiguous last dimension, got strides [1, 6]"),
    ("weight", torch.zeros(2, 4, 32), ValueError, "weight must have shape [N, K] or packed [blocks, K, 32] = [1, 4, 32], got [2, 4, 32]"),
    ("weight", torch.zeros(2, 4, 32)[::2], None, None),
    ("weight", torch.zeros(1, 4, 64)[..., ::2], ValueError, "weight must be contiguous, got strides [256, 64, 2]"),
    ("bias", torch.zeros(5), ValueError, "bias must have shape [N] = [6], got [5]"),
    ("bias", torch.zeros(6).int(), TypeError, f"bias must be {DTYPES}, got int32"),
    ("bias", torch.zeros(12)[::2], ValueError, "bias must have a contiguous last dimension, got strides [2]"),
    ("norm_weight", torch.zeros(5), ValueError, "norm_weight must have shape [K] = [4], got [5]"),
    ("norm_weight", torch.zeros(8)[::2], ValueError, "norm_weight must have a contiguous last dimension, got strides [2]"),
    ("eps", float("nan"), ValueError, "eps must be at least 0, got nan"),
    ("addend", torch.zeros(3, 6), ValueError, "addend must have shape [M, N] = [2, 6], got [3, 6]"),
    ("addend", torch.zeros(6, 2).t(), ValueError, "addend must have a contiguous last dimension, got strides [1, 2]"),
    ("residual", torch.zeros(2, 5), ValueError, "residual must have shape [M, num_outputs] = [2, 6], got [2, 5]"),
    ("residual", torch.zeros(6, 2).t(), ValueError, "residual must have a contiguous last dimension, got strides [1, 2]"),
    ("out", torch.zeros(2, 7), ValueError, "out must have shape [M, num_outputs] = [2, 6], got [2, 7]"),
    ("out", torch.zeros(2, 6).long(), TypeError, f"out must be {DTYPES}, got int64"),
]
# fmt: on


@pytest.mark.parametrize(("name", "value", "error", "text"), WRONG)
def test_names_what_is_wrong(name, value, error, text):
    call = valid_call()
    call[name] = value
    if error is None:  # looks wrong and is not
        verify_gemm(**call)
        return
    text = f"^{re.escape('verify_gemm: ' + text)}$"
    with pytest.raises(error, match=text):
        verify_gemm(**call)
    with pytest.raises(RuntimeError, match=text):
        OP.out(**call)


def test_names_a_wrong_pair_dtype_and_device():
    call = {"x": torch.zeros(2, 4), "weight": torch.zeros(5, 4)}
    for text, error, options in (
        ("weight must have an even number of rows, got 5", ValueError, {"act": "silu_mul"}),
        (f"out_dtype must be {DTYPES}, got int8", TypeError, {"out_dtype": torch.int8}),
    ):
        with pytest.raises(error, match=f"verify_gemm: {text}"):
            verify_gemm(**call, **options)
        with pytest.raises(RuntimeError, match=f"verify_gemm: {text}"):
            OP(**call, **options)
    with pytest.raises(ValueError, match="verify_gemm: bias must be on cpu, got meta"):
        verify_gemm(**call, bias=torch.zeros(5, device="meta"))
    with pytest.raises(TypeError, match="verify_gemm: out must be float16, got float32"):
        verify_gemm(**call, out_dtype=torch.float16, out=torch.zeros(2, 5))


def test_opcheck(device):
    for act in ("none", "silu_mul"):
        x, weight = (t.to(device) for t in random_call(0, 3, 40, 70, torch.bfloat16, act))
        packed = pack_weight(weight, pair=act == "silu_mul")
        options = {"num_outputs": 40, "act": act, "norm_weight": torch.ones(70, device=device)}
        out = torch.empty(3, 40, device=device)
        for w in (weight, packed):
            torch.library.opcheck(OP.default, (x, w), options | {"out_dtype": torch.float32})
            torch.library.opcheck(OP.out, (x, w, None), options | {"out": out})
    torch.library.opcheck(OP.default, (x, packed), {"act": act})
    bias, residual = torch.ones(len(weight), device=device), torch.ones(3, 40, device=device)
    torch.library.opcheck(OP.default, (x, weight, bias), {"act": act, "residual": residual})


def test_compiles_whole(device):
    compiled = torch.compile(verify_gemm, fullgraph=True)
    for num_rows in (3, 20):
        x, weight = (t.to(device) for t in random_call(0, num_rows, 40, 70, torch.bfloat16))
        packed = pack_weight(weight)
        assert torch.equal(compiled(x, packed, act="silu"), verify_gemm(x, packed, act="silu"))
