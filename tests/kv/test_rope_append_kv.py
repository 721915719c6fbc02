import math
from functools import partial

import pytest
import torch
from bounds import assert_within
from calls import assert_raises_alike, spread
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_ops import Status, reference, rope_append_kv
from dflash_ops.reference.kv import store

OP = torch.ops.dflash.rope_append_kv
FLOATS = [torch.float32, torch.bfloat16, torch.float16]
QUANTISED = [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8]


def table(num_positions, rotary_dim, base=10_000.0):
    angles = torch.arange(num_positions)[:, None] * base ** -torch.linspace(0, 1, rotary_dim // 2)
    return torch.cat([angles.cos(), angles.sin()], dim=1).float()


def make_call(
    seed=0, rows=9, heads=(4, 2), dims=(16, 8), rotary=16, pages=(5, 3), dtype=torch.float32
):
    """One row per slot in random order, a few of them padded or not stored; caches are NaN."""
    g = torch.Generator().manual_seed(seed)
    num_slots = pages[0] * pages[1]
    slots = torch.randperm(max(num_slots, rows), generator=g)[:rows]
    slots[slots >= num_slots] = -1
    positions = torch.randint(-1, 50, (rows,), generator=g)

    def heads_of(num_heads, dim):
        return torch.randn(rows, num_heads, dim, generator=g).to(dtype)

    return {
        "q": heads_of(heads[0], dims[0]),
        "k": heads_of(heads[1], dims[0]),
        "v": heads_of(heads[1], dims[1]),
        "k_cache": torch.full((*pages, heads[1], dims[0]), math.nan, dtype=dtype),
        "v_cache": torch.full((*pages, heads[1], dims[1]), math.nan, dtype=dtype),
        "positions": positions,
        "slots": slots,
        "cos_sin": table(50, rotary) if rotary else None,
        "q_norm": torch.rand(dims[0], generator=g).to(dtype) + 1,
        "k_norm": torch.rand(dims[0], generator=g).to(dtype) + 1,
        "status": torch.zeros(rows, dtype=torch.int32),
    }


def moved(call, device):
    return {k: x.to(device) if isinstance(x, torch.Tensor) else x for k, x in call.items()}


def test_turns_a_pair_by_its_angle(device):
    """(1, 0) turned by 60 degrees is (1/2, sqrt(3)/2), for each kind of pair."""
    cos_sin = torch.tensor([[0.5, 1.0, math.sqrt(0.75), 0.0]], device=device)
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    for neox, partner in ((True, 2), (False, 1)):
        x = torch.zeros(1, 1, 5, device=device)
        x[..., 0], x[..., 4] = 1, 7
        caches = torch.zeros(2, 1, 1, 1, 5, device=device).unbind()
        q = rope_append_kv(x, x, x, *caches, positions=zero, slots=zero, cos_sin=cos_sin, neox=neox)
        want = torch.zeros(5, device=device)
        want[0], want[partner], want[4] = 0.5, cos_sin[0, 2], 7
        assert torch.equal(q.flatten(), want)
        assert torch.equal(caches[0].flatten(), want)
        assert torch.equal(caches[1].flatten(), x.flatten())


@settings(max_examples=60)
@given(
    rows=st.sampled_from([0, 1, 2, 63, 64, 65, 130]),
    heads=st.sampled_from([(1, 1), (4, 2), (3, 3), (2, 0)]),
    dims=st.sampled_from([(16, 8), (2, 1), (17, 33), (64, 64)]),
    part=st.sampled_from([None, 0.0, 0.5, 1.0]),
    pages=st.sampled_from([(5, 3), (1, 1), (7, 16), (0, 4), (64, 1)]),
    norms=st.sampled_from([(False, False), (True, True), (True, False), (False, True)]),
    neox=st.booleans(),
    dtype=st.sampled_from(FLOATS),
    seed=st.integers(0, 2**31 - 1),
)
def test_equals_reference(device, rows, heads, dims, part, pages, norms, neox, dtype, seed):
    rotary = None if part is None else 2 * int(dims[0] * part / 2)
    call = make_call(seed, rows, heads, dims, rotary, pages, dtype) | {"neox": neox}
    for name, wanted in zip(("q_norm", "k_norm"), norms, strict=True):
        call[name] = call[name] if wanted else None
    got = moved(
        {k: x.clone() if isinstance(x, torch.Tensor) else x for k, x in call.items()}, device
    )
    got_q = rope_append_kv(**got).cpu()
    for name in ("k_cache", "v_cache"):
        call[name] = call[name].double()
    want_q = reference.rope_append_kv(**call)

    # A pair's turn adds two products; a norm's own rounding is half an ulp of an element before it.
    eps = torch.finfo(dtype).eps / 2 if any(norms) else 0
    for a, b in ((got_q, want_q), (got["k_cache"].cpu(), call["k_cache"])):
        size = b.nan_to_num().square().sum(-1, keepdim=True).sqrt().broadcast_to(b.shape)
        assert_within(a, b, terms=2 * size, rounding=2 * eps * size)
    assert torch.equal(
        got["v_cache"].cpu().double().nan_to_num(nan=99), call["v_cache"].nan_to_num(nan=99)
    )
    assert torch.equal(got["status"].cpu(), call["status"])


@pytest.mark.parametrize("kind", ["none", "all", "head", "row"])
@pytest.mark.parametrize("dtype", QUANTISED)
@pytest.mark.parametrize("source", FLOATS)
def test_quantises_what_a_fp32_cache_gets(device, source, dtype, kind):
    """Bit for bit torch's conversion of the fp32 rows, scales included."""
    call = make_call(3, rows=12, dtype=source)
    call["v"][0, 0, :3] = torch.tensor([math.inf, -math.inf, math.nan])
    call["v"][1:3] *= torch.tensor([0.0, 1e4])[:, None, None]
    shape = {"all": (), "head": (2,), "row": (5, 3, 2)}.get(kind)
    want, scales = {}, {}
    for name in ("k", "v"):
        call[f"{name}_cache"] = torch.full_like(call[f"{name}_cache"], 0.0, dtype=torch.float32)
        want[name] = torch.zeros_like(call[f"{name}_cache"]).to(dtype)
        scales[name] = None if shape is None else torch.rand(shape) + 0.01
    fp32 = moved(call, device)
    rope_append_kv(**fp32)

    got = moved(call, device)
    for name in ("k", "v"):
        got[f"{name}_cache"] = torch.zeros_like(want[name], device=device)
        got[f"{name}_scale"] = None if shape is None else scales[name].clone().to(device)
    rope_append_kv(**got)
    for name in ("k", "v"):
        for slot, position in zip(call["slots"].tolist(), call["positions"].tolist(), strict=True):
            if slot >= 0 and position >= 0:
                page, offset = divmod(slot, 3)
                row = fp32[f"{name}_cache"][page, offset].cpu()
                store(row, want[name], scales[name], page, offset)
        stored = got[f"{name}_cache"].cpu()
        assert torch.equal(stored.view(torch.uint8) & 0x7F, want[name].view(torch.uint8) & 0x7F)
        assert torch.equal(stored.float().nan_to_num(99), want[name].float().nan_to_num(99))
        if shape is not None:
            assert torch.equal(got[f"{name}_scale"].cpu(), scales[name])


def test_dynamic_scale_restores_the_largest_element(device):
    for dtype, largest in zip(QUANTISED, (448.0, 57344.0, 127.0), strict=True):
        x = torch.tensor([[[-3.0, 1.5, 0.0]]], device=device)
        caches = torch.zeros(2, 1, 1, 1, 3, device=device).to(dtype).unbind()
        scales = torch.zeros(2, 1, 1, 1, device=device).unbind()
        zero = torch.zeros(1, dtype=torch.int32, device=device)
        rope_append_kv(
            x, x, x, *caches, positions=zero, slots=zero, k_scale=scales[0], v_scale=scales[1]
        )
        for cache, scale in zip(caches, scales, strict=True):
            assert scale.item() == pytest.approx(3 / largest, rel=2**-23)
            assert cache.flatten()[0].item() == -largest


def test_a_row_depends_on_nothing_but_itself(device):
    """The same rows alone, among others, in another order, with other pages and threads."""
    call = moved(make_call(1, rows=40, pages=(9, 5), dtype=torch.bfloat16), device)
    together = rope_append_kv(**call)
    per_row = ("q", "k", "v", "positions", "slots", "status")
    for num_threads in (1, 3):
        torch.set_num_threads(num_threads)
        order = torch.randperm(40, generator=torch.Generator().manual_seed(num_threads))
        other = call | {name: call[name][order] for name in per_row}
        other |= {name: torch.full_like(call[name], math.nan) for name in ("k_cache", "v_cache")}
        assert torch.equal(rope_append_kv(**other), together[order])
        for name in ("k_cache", "v_cache"):
            assert torch.equal(other[name].nan_to_num(99), call[name].nan_to_num(99))
    torch.set_num_threads(1)
    for row in range(40):
        alone = call | {name: call[name][row : row + 1] for name in per_row}
        assert torch.equal(rope_append_kv(**alone), together[row : row + 1])


@pytest.mark.parametrize("dtype", FLOATS)
def test_norm_and_rotation_fused_are_the_bits_of_one_after_the_other(device, dtype):
    call = moved(make_call(5, rows=30, pages=(9, 5), dims=(64, 8), dtype=dtype), device)
    fused = rope_append_kv(**call)
    unrotated = call | {"cos_sin": None, "k_cache": torch.zeros_like(call["k_cache"])}
    normed = rope_append_kv(**unrotated)
    plain = call | {"q": normed, "q_norm": None, "k_norm": None}
    assert torch.equal(rope_append_kv(**plain), fused)


@pytest.mark.parametrize("stored", [None, *QUANTISED])
@pytest.mark.parametrize("dtype", FLOATS)
def test_every_isa_gives_the_same_bits(each_isa, dtype, stored):
    def run():
        call = make_call(6, dims=(70, 35), rotary=66, dtype=dtype) | {"neox": stored is None}
        for name in ("k", "v"):
            cache = torch.zeros_like(call[f"{name}_cache"])
            call[f"{name}_cache"] = cache.to(stored or dtype)
            call[f"{name}_scale"] = torch.zeros(cache.shape[:3]) if stored else None
        written = ["k_cache", "v_cache"] + ["k_scale", "v_scale"] * bool(stored)
        return [rope_append_kv(**call)] + [call[name].float() for name in written]

    first, *others = each_isa(run)
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_the_higher_of_two_rows_on_one_slot_stays(device):
    rows = 200
    call = make_call(2, rows=rows, pages=(2, 2), dims=(64, 64), rotary=0)
    call["slots"] = torch.arange(rows) % 3
    call["positions"] = torch.zeros(rows, dtype=torch.int64)
    call["k_norm"] = None
    call = moved(call, device)
    torch.set_num_threads(4)
    rope_append_kv(**call)
    torch.set_num_threads(1)
    for slot in range(3):
        last = max(r for r in range(rows) if r % 3 == slot)
        assert torch.equal(call["k_cache"][slot // 2, slot % 2], call["k"][last])
        assert torch.equal(call["v_cache"][slot // 2, slot % 2], call["v"][last])
    assert call["k_cache"][1, 1].isnan().all()


def test_padded_rows_and_rows_without_a_slot(device):
    call = moved(make_call(rows=3), device)
    call["slots"], call["positions"] = (
        torch.tensor(x, device=device) for x in ([2, -1, 7], [-1, 4, -1])
    )
    call["k"][:], call["v"][:], call["q"][[0, 2]] = math.nan, math.nan, math.nan
    out = rope_append_kv(**call)
    assert torch.equal(out[[0, 2]], torch.zeros_like(out[[0, 2]]))
    assert out[1].isfinite().all() and (out[1] != 0).any()
    call["k"][:], call["v"][:] = 1, 1
    assert call["k_cache"].isnan().all() and call["v_cache"].isnan().all()
    assert call["status"].tolist() == [0, 0, 0]


def test_positions_and_slots_out_of_range_touch_nothing(device):
    call = moved(make_call(rows=6), device)
    call["slots"] = torch.tensor([15, -2, 0, 1, 2**33, 14], device=device)
    call["positions"] = torch.tensor([0, 0, 50, -2, 0, 49], device=device)
    call["status"][:] = Status.BAD_TREE
    out = rope_append_kv(**call)
    bad = Status.BAD_TREE | Status.OUT_OF_RANGE
    assert call["status"].tolist() == [bad] * 5 + [Status.BAD_TREE]
    assert (out[:5] == 0).all() and (out[5] != 0).any()
    written = ~call["k_cache"].isnan().all(-1).all(-1).flatten()
    assert written.nonzero().flatten().tolist() == [14]


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_any_strides_in_place(device, index):
    call = moved(make_call(4, rows=12), device)
    plain = {k: x.clone() if isinstance(x, torch.Tensor) else x for k, x in call.items()}
    want = rope_append_kv(**plain)
    for name in ("q", "k", "v", "k_cache", "v_cache", "cos_sin"):
        call[name] = spread(call[name], last=False)
    for name in ("positions", "slots"):
        call[name] = spread(call[name].to(index))
    call["status"] = spread(call["status"])
    out = spread(torch.zeros_like(want))
    assert rope_append_kv(**call, out=out) is out
    assert torch.equal(out, want)
    for name in ("k_cache", "v_cache"):
        assert torch.equal(call[name].nan_to_num(99), plain[name].nan_to_num(99))
        assert (call[name]._base[::2] == 12345).all()  # between the pages


def test_addresses_past_32_bits(device):
    buffer = torch.empty(2**33, dtype=torch.int8, device=device)
    cache = buffer.as_strided((3, 1, 1, 2), (2**31 + 5, 2, 2, 1))
    x = torch.tensor([[[3.0, -4.0]]], device=device).expand(3, 1, 2)
    ids = torch.arange(3, device=device)
    rope_append_kv(x, x, x, cache, cache, positions=ids, slots=ids)
    assert cache.flatten(1).tolist() == [[3, -4]] * 3


INTS = "must be int32 or int64, got"
FLOAT = "must be bfloat16 or float16 or float32, got"
# fmt: off
WRONG = [
    ("q", torch.zeros(9, 4, 16).double(), TypeError, f"q {FLOAT} float64"),
    ("k", torch.zeros(9, 2, 16).half(), TypeError, "k must be float32, got float16"),
    ("k", torch.zeros(9, 2, 15), ValueError, "k must have shape [T, Hkv, Dk] = [9, *, 16], got [9, 2, 15]"),
    ("v", torch.zeros(9, 3, 8), ValueError, "v must have shape [T, Hkv, Dv] = [9, 2, *], got [9, 3, 8]"),
    ("v", torch.zeros(9, 2, 16)[..., ::2], ValueError, "v must have a contiguous last dimension, got strides [32, 16, 2]"),
    ("k_cache", torch.zeros(5, 3, 2, 16).bool(), TypeError, "k_cache must be bfloat16 or float16 or float32 or float8_e4m3fn or float8_e5m2 or int8, got bool"),
    ("k_cache", torch.zeros(5, 3, 2, 8), ValueError, "k_cache must have shape [num_pages, page_size, Hkv, Dk] = [*, *, 2, 16], got [5, 3, 2, 8]"),
    ("v_cache", torch.zeros(5, 2, 2, 8), ValueError, "v_cache must have shape [num_pages, page_size, Hkv, Dv] = [5, 3, 2, 8], got [5, 2, 2, 8]"),
    ("positions", torch.zeros(9), TypeError, f"positions {INTS} float32"),
    ("slots", torch.zeros(8).int(), ValueError, "slots must have shape [T] = [9], got [8]"),
    ("cos_sin", torch.zeros(50, 16).half(), TypeError, "cos_sin must be float32, got float16"),
    ("cos_sin", torch.zeros(50, 15), ValueError, "rotary_dim must be even and at most Dk = 16, got 15"),
    ("cos_sin", torch.zeros(50, 18), ValueError, "rotary_dim must be even and at most Dk = 16, got 18"),
    ("q_norm", torch.zeros(8), ValueError, "q_norm must have shape [Dk] = [16], got [8]"),
    ("k_norm", torch.zeros(16).int(), TypeError, f"k_norm {FLOAT} int32"),
    ("eps", -0.5, ValueError, "eps must be at least 0, got -0.5"),
    ("k_scale", torch.ones(()), ValueError, "k_scale must be absent with a float32 k_cache, got a tensor"),
    ("status", torch.zeros(9), TypeError, "status must be int32, got float32"),
    ("out", torch.zeros(9, 4, 8), ValueError, "out must have shape [T, Hq, Dk] = [9, 4, 16], got [9, 4, 8]"),
]
WRONG_SCALES = [
    (torch.ones(()).half(), TypeError, "must be float32, got float16"),
    (torch.ones(3), ValueError, "must have shape [Hkv] = [2], got [3]"),
    (torch.ones(5, 3), ValueError, "must have shape [num_pages, page_size, Hkv] = [5, 3, 2], got [5, 3]"),
]
# fmt: on


@pytest.mark.parametrize(("name", "value", "error", "text"), WRONG)
def test_names_what_is_wrong(name, value, error, text):
    call = make_call()
    out = {"out": torch.zeros_like(call["q"])}
    (out if name == "out" else call)[name] = value
    assert_raises_alike(rope_append_kv, OP.out, call, out, error, text)
    if name != "out":
        assert_raises_alike(rope_append_kv, OP, call, {}, error, text)


@pytest.mark.parametrize(("scale", "error", "text"), WRONG_SCALES)
@pytest.mark.parametrize("name", ["k", "v"])
def test_names_a_wrong_scale(name, scale, error, text):
    call = make_call() | {f"{name}_scale": scale}
    call[f"{name}_cache"] = call[f"{name}_cache"].to(torch.float8_e4m3fn)
    assert_raises_alike(rope_append_kv, OP, call, {}, error, f"{name}_scale {text}")


def test_opcheck(device):
    call = moved(make_call(), device)
    args = [call.pop(name) for name in ("q", "k", "v", "k_cache", "v_cache")]
    args[3:] = [torch.zeros_like(x) for x in args[3:]]  # opcheck compares, and NaN differs from NaN
    torch.library.opcheck(OP.default, args, call)
    torch.library.opcheck(OP.out, args, call | {"out": torch.empty_like(args[0])})
    args[3:] = [x.to(torch.int8) for x in args[3:]]
    scales = {f"{name}_scale": torch.ones(5, 3, 2, device=device) for name in ("k", "v")}
    torch.library.opcheck(OP.default, args, call | scales)


def test_compiles_whole(device):
    compiled = torch.compile(partial(rope_append_kv), fullgraph=True)
    for rows in (9, 3):
        call = moved(make_call(rows=rows), device)
        again = {k: x.clone() if isinstance(x, torch.Tensor) else x for k, x in call.items()}
        assert torch.equal(compiled(**call), rope_append_kv(**again))
        assert torch.equal(call["k_cache"].nan_to_num(99), again["k_cache"].nan_to_num(99))
