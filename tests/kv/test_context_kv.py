import math

import pytest
import torch
from calls import assert_raises_alike, spread
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_ops import (
    Status,
    context_kv,
    pack_weight,
    reference,
    rmsnorm,
    rope_append_kv,
    verify_gemm,
)

OP = torch.ops.dflash.context_kv
LISTS = ("kv_weights", "k_caches", "v_caches", "k_norms")
ARGS = ("features", "fc", "hidden_norm", "kv_weights", "k_caches", "v_caches")


def make_call(
    seed=0, rows=7, depth=48, hidden=32, dims=((2, 8, 6), (1, 16, 4)), dtype=torch.float32, groups=1
):
    """Layers of other shapes each; caches are NaN, some rows are not stored."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return (torch.randn(shape, generator=g) / shape[-1] ** 0.5).to(dtype)

    pages, size = rows + 1, 3
    slots = torch.stack([torch.randperm(pages * size, generator=g)[:rows] for _ in range(groups)])
    slots[:, ::3] = -1
    angles = torch.rand(64, 4, generator=g)
    return {
        "features": normal(rows, depth) * 7,
        "fc": normal(hidden, depth),
        "hidden_norm": torch.rand(hidden, generator=g).to(dtype) + 0.5,
        "kv_weights": [normal(h * (dk + dv), hidden) for h, dk, dv in dims],
        "k_caches": [torch.full((pages, size, h, dk), math.nan, dtype=dtype) for h, dk, _ in dims],
        "v_caches": [torch.full((pages, size, h, dv), math.nan, dtype=dtype) for h, _, dv in dims],
        "positions": torch.randint(0, 64, (rows,), generator=g),
        "slots": slots,
        "layer_groups": [i % groups for i in range(len(dims))],
        "k_norms": [torch.rand(dk, generator=g).to(dtype) + 0.5 for _, dk, _ in dims],
        "cos_sin": torch.cat([angles.cos(), angles.sin()], dim=1),
        "status": torch.zeros(rows, dtype=torch.int32),
    }


def changed(call, f):
    def each(x):
        return f(x) if isinstance(x, torch.Tensor) else x

    return {k: [each(x) for x in v] if isinstance(v, list) else each(v) for k, v in call.items()}


def same(a, b):
    return torch.equal(a.float().nan_to_num(99).cpu(), b.float().nan_to_num(99).cpu())


def assert_same_caches(call, want):
    for name in ("k_caches", "v_caches"):
        assert all(same(a, b) for a, b in zip(call[name], want[name], strict=True))


def composed(call):
    """What the op stands for, in public ops."""
    context = rmsnorm(verify_gemm(call["features"], call["fc"]), call["hidden_norm"])
    for i, (k_cache, v_cache) in enumerate(zip(call["k_caches"], call["v_caches"], strict=True)):
        heads, split = k_cache.shape[2], k_cache.shape[2] * k_cache.shape[3]
        kv = verify_gemm(context, call["kv_weights"][i])
        k, v = (x.unflatten(1, (heads, -1)) for x in kv.tensor_split([split], dim=1))
        options = {
            "cos_sin": call["cos_sin"],
            "k_norm": call["k_norms"][i] if call["k_norms"] else None,
        }
        for name in ("k_scales", "v_scales"):
            options[name[:-1]] = call[name][i] if name in call else None
        slots = call["slots"][call["layer_groups"][i]]
        rope_append_kv(
            k, k, v, k_cache, v_cache, positions=call["positions"], slots=slots, **options
        )


@settings(max_examples=30)
@given(
    rows=st.sampled_from([0, 1, 7, 65]),
    groups=st.integers(1, 2),
    normed=st.booleans(),
    packed=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    seed=st.integers(0, 2**31 - 1),
)
def test_is_its_steps_bit_for_bit(device, rows, groups, normed, packed, dtype, seed):
    call = changed(make_call(seed, rows, dtype=dtype, groups=groups), lambda x: x.to(device))
    call["k_norms"] = call["k_norms"] if normed else None
    want = changed(call, torch.clone)
    composed(want)
    if packed:
        call["fc"] = pack_weight(call["fc"])
        call["kv_weights"] = [pack_weight(w) for w in call["kv_weights"]]
    context_kv(**call)
    assert_same_caches(call, want)


STACKED_DIMS = ((2, 8, 8), (1, 16, 16), (4, 8, 8), (1, 8, 6), (1, 8, 6))  # 32, 32, 64, 14, 14


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("gap", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_that_follow_one_another(device, packed, gap, dtype):
    """Slices of one tensor, which one product reads; with a gap, or blocks not full, they are not."""
    call = make_call(8, dims=STACKED_DIMS, dtype=dtype)
    call = changed(call, lambda x: x.to(device))
    want = changed(call, torch.clone)
    composed(want)
    weights = [pack_weight(w) for w in call["kv_weights"]] if packed else call["kv_weights"]
    slices = [torch.cat([w, torch.full_like(w[:gap], math.nan)]) for w in weights]
    stack = torch.cat(slices).split([len(s) for s in slices])
    call["kv_weights"] = [part[: len(w)] for part, w in zip(stack, weights, strict=True)]
    context_kv(**call)
    assert_same_caches(call, want)


def test_rows_of_a_stack_are_limited(device):
    """More than 64 MB of what a stack's product would leave: layers one after the other."""
    rows, width = 2**13, 1024
    call = make_call(9, depth=8, hidden=2, dims=((1, 8, width - 8),) * 3)
    call = changed(call, lambda x: x.to(device))
    call["kv_weights"] = list(torch.cat(call["kv_weights"]).split(width))
    want = changed(call, torch.clone)
    composed(want)
    more = (0, rows - len(call["features"]))  # they cost nothing
    call |= {k: torch.nn.functional.pad(call[k], more, value=-1) for k in ("positions", "slots")}
    call["features"] = torch.nn.functional.pad(call["features"], (0, 0, *more))
    context_kv(**call | {"status": None})
    assert_same_caches(call, want)


# Bytes of a row of features around one and two shares of a CTA.
@pytest.mark.parametrize("depth", [4095, 4096, 4104, 8200])
def test_wide_features(device, depth):
    call = make_call(3, rows=3, depth=depth, hidden=8, dims=((1, 8, 8),), dtype=torch.bfloat16)
    call = changed(call, lambda x: x.to(device))
    want = changed(call, torch.clone)
    composed(want)
    context_kv(**call)
    assert_same_caches(call, want)


def test_equals_reference(device):
    """fp32: three sums and two norms; each term enters with its share of the row."""
    call = make_call(1, rows=40)
    want = changed(call, torch.clone)
    for name in ("k_caches", "v_caches"):
        want[name] = [x.double() for x in want[name]]
    reference.context_kv(**want)
    got = changed(call, lambda x: x.to(device))
    context_kv(**got)
    for name in ("k_caches", "v_caches"):
        for a, b in zip(got[name], want[name], strict=True):
            scale = b.nan_to_num().abs().max()
            error = (a.cpu().double() - b).nan_to_num().abs().max()
            assert error <= 4 * 16 * 2.0**-24 * scale * 4  # 4 steps of <= 4-fold condition
            assert torch.equal(a.cpu().isnan(), b.isnan())


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_quantised_caches(device, dtype):
    call = changed(make_call(2, dtype=torch.bfloat16), lambda x: x.to(device))
    for name in ("k", "v"):
        call[f"{name}_caches"] = [
            torch.zeros(x.shape).to(device, dtype) for x in call[f"{name}_caches"]
        ]
        call[f"{name}_scales"] = [
            torch.zeros(x.shape[:3]).to(device) for x in call[f"{name}_caches"]
        ]
    want = changed(call, torch.clone)
    composed(want)
    context_kv(**call)
    for name in ("k_caches", "v_caches", "k_scales", "v_scales"):
        assert all(same(a, b) for a, b in zip(call[name], want[name], strict=True))


def test_rows_that_are_not_stored_are_not_read(device):
    call = changed(make_call(3), lambda x: x.to(device))
    call["slots"][0, 1], call["positions"][2] = -1, -1
    want = changed(call, torch.clone)
    context_kv(**want)
    call["features"][[0, 1, 2, 3, 6]] = math.nan
    context_kv(**call)
    assert_same_caches(call, want)
    for name in ("k_caches", "v_caches"):
        assert int((~call[name][0].isnan().all(-1).all(-1)).sum()) == 2


def test_bad_slots_and_positions_are_flagged(device):
    call = changed(make_call(4), lambda x: x.to(device))
    call["slots"][0] = torch.tensor([0, 24, -2, 1, -1, 2, 3])
    call["positions"] = torch.tensor([0, 0, 0, 64, 99, -2, 1]).to(device)
    context_kv(**call)
    bad = Status.OUT_OF_RANGE
    assert call["status"].tolist() == [0, bad, bad, bad, 0, bad, 0]
    for cache in call["k_caches"]:
        written = ~cache.isnan().all(-1).all(-1).flatten()
        assert written.nonzero().flatten().tolist() == [0, 3]


def test_a_row_does_not_depend_on_the_others(device):
    call = changed(make_call(5, rows=30, dtype=torch.bfloat16), lambda x: x.to(device))
    alone = changed(call, torch.clone)
    context_kv(**call)
    for row in range(30):
        one = {
            "features": alone["features"][row : row + 1],
            "slots": alone["slots"][:, row : row + 1],
        }
        one |= {k: alone[k][row : row + 1] for k in ("positions", "status")}
        context_kv(**alone | one)
    assert_same_caches(alone, call)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_any_strides_in_place(device, index):
    call = changed(make_call(6), lambda x: x.to(device))
    want = changed(call, torch.clone)
    context_kv(**want)
    for name in ("fc", "features", "cos_sin"):
        call[name] = spread(call[name], last=False)
    for name in ("kv_weights", "k_caches", "v_caches"):
        call[name] = [spread(x, last=False) for x in call[name]]
    call |= {k: spread(call[k].to(index)) for k in ("positions", "slots")}
    call["status"] = spread(call["status"])
    context_kv(**call)
    assert_same_caches(call, want)


def test_addresses_past_32_bits(device):
    buffer = torch.empty(2**32, dtype=torch.bfloat16, device=device)
    features = buffer.as_strided((2, 1), (2**31, 1))
    features.copy_(torch.tensor([[2.0], [-3.0]]))
    one = torch.ones(1, 1, dtype=torch.bfloat16, device=device)
    caches = torch.zeros(2, 2, 1, 1, 1, dtype=torch.bfloat16, device=device).unbind()
    ids = torch.arange(2, device=device)
    weight = torch.tensor([[1.0], [4.0]], dtype=torch.bfloat16, device=device)
    context_kv(
        features, one, one[0], [weight], caches[:1], caches[1:], positions=ids, slots=ids[None]
    )
    assert caches[0].flatten().tolist() == [1, -1] and caches[1].flatten().tolist() == [4, -4]


INTS = "must be int32 or int64, got"
FLOAT = "must be bfloat16 or float16 or float32, got"
CACHE = torch.zeros(8, 3, 2, 8)
# fmt: off
WRONG = [
    ({"features": torch.zeros(7)}, ValueError, "features must have shape [T, F * H] = [*, *], got [7]"),
    ({"hidden_norm": torch.zeros(32).int()}, TypeError, f"hidden_norm {FLOAT} int32"),
    ({"fc": torch.zeros(31, 48)}, ValueError, "fc must have shape [N, K] = [32, 48], got [31, 48]"),
    ({"fc": torch.zeros(32, 48).half()}, TypeError, "fc must be float32, got float16"),
    ({"positions": torch.zeros(7)}, TypeError, f"positions {INTS} float32"),
    ({"slots": torch.zeros(7).int()}, ValueError, "slots must have shape [G, T] = [*, 7], got [7]"),
    ({"k_caches": [CACHE]}, ValueError, "len(k_caches) must be 2, got 1"),
    ({"k_norms": []}, ValueError, "len(k_norms) must be 2, got 0"),
    ({"cos_sin": torch.zeros(64, 9)}, ValueError, "rotary_dim must be even and at most Dk = 8, got 9"),
    ({"cos_sin": torch.zeros(64, 10)}, ValueError, "rotary_dim must be even and at most Dk = 8, got 10"),
    ({"eps": -0.5}, ValueError, "eps must be at least 0, got -0.5"),
    ({"layer_groups": [0, 1]}, ValueError, "layer_groups[1] must be below len(slots) = 1, got 1"),
    ({"layer_groups": [0, -1]}, ValueError, "layer_groups[1] must be at least 0, got -1"),
    ({"k_caches": [CACHE, CACHE[0]]}, ValueError, "k_caches[1] must have shape [num_pages, page_size, Hkv, Dk] = [*, *, *, *], got [3, 2, 8]"),
    ({"v_caches": [CACHE[:, :2], CACHE]}, ValueError, "v_caches[0] must have shape [num_pages, page_size, Hkv, Dv] = [8, 3, 2, *], got [8, 2, 2, 8]"),
    ({"kv_weights": [torch.zeros(28, 32), torch.zeros(21, 32)]}, ValueError, "kv_weights[1] must have shape [N, K] = [20, 32], got [21, 32]"),
    ({"k_norms": [torch.zeros(8), torch.zeros(8)]}, ValueError, "k_norms[1] must have shape [Dk] = [16], got [8]"),
    ({"k_scales": [torch.ones(())] * 2}, ValueError, "k_scale must be absent with a float32 k_cache, got a tensor"),
    ({"status": torch.zeros(6).int()}, ValueError, "status must have shape [T] = [7], got [6]"),
]
# fmt: on


@pytest.mark.parametrize(("wrong", "error", "text"), WRONG)
def test_names_what_is_wrong(wrong, error, text):
    assert_raises_alike(context_kv, OP, make_call() | wrong, {}, error, text)


def test_opcheck_and_compile(device):
    call = changed(make_call(7), lambda x: x.to(device))
    for name in ("k_caches", "v_caches"):
        call[name] = [torch.zeros_like(x) for x in call[name]]
    args, options = [call[name] for name in ARGS], {k: x for k, x in call.items() if k not in ARGS}
    torch.library.opcheck(OP.default, args, options)
    want = changed(call, torch.clone)
    context_kv(**want)
    torch.compile(context_kv, fullgraph=True)(**call)
    for name in ("k_caches", "v_caches"):
        assert all(torch.equal(a, b) for a, b in zip(call[name], want[name], strict=True))
