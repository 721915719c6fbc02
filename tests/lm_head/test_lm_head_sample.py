import pytest
import torch
from bounds import assert_within
from heads import EDGES, both_layouts, fp32_logits, random_head
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_rows import one_request_each

from dflash_ops import (
    Sampled,
    Status,
    cpu_isa,
    cpu_isas,
    lm_head_sample,
    pack_weight,
    pin_cpu_isa,
    reference,
    sample_logits,
    workspace_bytes,
)

pytestmark = pytest.mark.sm90
OP = torch.ops.dflash.lm_head_sample
INF = float("inf")
LAWS = {
    "temperature": [0.0, 1.0, 0.6, 1.0, 2.0, 1.0, 0.9, 1.0],
    "top_k": [0, 0, 7, 0, 0, 900, 0, 0],
    "top_p": [1.0, 1.0, 0.9, 0.95, 1.0, 0.5, 0.3, 0.999],
    "min_p": [0.0, 0.0, 0.0, 0.0, 0.05, 0.0, 0.0, 0.0],
}


def sample(h, weight, bias=None, **call):
    status = torch.zeros(len(call["positions"]), dtype=torch.int32, device=h.device)
    return lm_head_sample(h, weight, bias, status=status, **call), status


def assert_same(got, want):
    assert torch.equal(got.ids, want.ids)
    assert torch.equal(got.logprobs, want.logprobs)


def test_argmax_of_a_planted_head(device):
    """Row i is column 3 i and 3 i + 1 of the head: the lower one wins."""
    hidden = 40
    weight = torch.zeros(120, hidden, device=device)
    weight[torch.arange(120), torch.arange(120) // 3] = 1.0
    weight[2::3] = 0
    got, status = sample(torch.eye(hidden, device=device), weight, **one_request_each(hidden))
    assert got.ids.tolist() == [3 * i for i in range(hidden)] and not status.any()


@settings(max_examples=40)
@given(
    vocab=st.sampled_from(EDGES) | st.integers(1, 700),
    start=st.sampled_from([0, 0, 1, 37, 512, 1000]),
    hidden=st.sampled_from([1, 31, 64, 513]),
    rows=st.sampled_from([1, 3, 8, 65]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    packed=st.booleans(),
    exact=st.booleans(),
    order=st.sampled_from(["k_then_p", "joint"]),
    seed=st.integers(0, 2**31 - 1),
)
def test_equals_sample_logits(
    device, vocab, start, hidden, rows, dtype, packed, exact, order, seed
):
    """Bit for bit the draw from the logits in memory, for every kind of row at once."""
    h, weight, bias = random_head(seed, rows, vocab, hidden, dtype, exact)
    laws = {k: (v * 9)[:rows] for k, v in LAWS.items()}
    call = one_request_each(rows, seeds=seed, order=order, **laws)
    call |= {"vocab_start": start, "vocab_size": start + vocab}
    want = sample_logits(fp32_logits(h, weight, bias), **call)
    got, status = sample(
        h, pack_weight(weight) if packed else weight, bias, max_fallback_rows=rows, **call
    )
    assert_same(got, want)
    assert not status.any()


def test_every_option_at_once(device):
    g = torch.Generator().manual_seed(0)
    rows, vocab, start = 8, 777, 100
    h, weight, bias = random_head(1, rows, vocab, 96, torch.bfloat16, scale=3.0)
    norm = torch.rand(96, generator=g).bfloat16() + 0.5
    options = {
        "logit_scale": 0.7,
        "softcap": 9.0,
        "vocab_start": start,
        "vocab_size": start + vocab - 5,
        "token_mask": torch.randint(
            -(2**31), 2**31 - 1, (2, (start + vocab - 5 + 31) // 32), generator=g
        ).int(),
        "mask_rows": torch.tensor([0, 1, -1, 0, 1, -1, 0, 1]),
        "adj_cu": torch.arange(9) * 2,
        "adj_ids": torch.randint(0, start + vocab, (16,), generator=g),
        "adj_values": torch.randn(16, generator=g) * 4,
        "verify_rows": torch.tensor([3, 3, 0, 7, 1, 2, 5, 4]),
    }
    call = one_request_each(rows, **LAWS) | options
    logits = fp32_logits(h, weight, bias, norm, 1e-5)
    for rounded in (False, True):
        shaped = logits.bfloat16() if rounded else logits
        want = sample_logits(shaped, **call)
        for layout in (weight, pack_weight(weight)):
            cut = bias if layout.dim() == 2 else bias[: vocab - 5]
            got, _ = sample(
                h, layout, cut, norm_weight=norm, eps=1e-5, round_logits=rounded, **call
            )
            assert_same(got, want)


def test_close_to_reference(device):
    h, weight, bias = random_head(5, 6, 300, 64)
    call = one_request_each(6, temperature=[0.0, 1.0, 0.5] * 2, top_k=[0, 0, 10] * 2)
    got, _ = sample(h, weight, bias, **call)
    want = reference.lm_head_sample(h, weight, bias, **call)
    assert torch.equal(got.ids, want.ids)
    assert_within(got.logprobs, want.logprobs, terms=40.0)


@pytest.mark.parametrize("max_fallback_rows", [1, 2, 5, 100])
def test_rows_whose_set_is_not_in_the_best_64(device, max_fallback_rows):
    """They share one pass up to the bound; beyond it the result is the same, and the bit says so."""
    rows = 5
    h, weight, _ = random_head(2, rows, 2000, 16, scale=0.3)
    call = one_request_each(
        rows, temperature=1.0, top_p=[0.99, 0.9, 1e-8, 0.95, 0.9], top_k=[0, 300, 0, 0, 65]
    )
    got, status = sample(h, weight, max_fallback_rows=max_fallback_rows, **call)
    assert_same(got, sample_logits(fp32_logits(h, weight), **call))
    late = (status & Status.BOUND_TOO_SMALL) != 0
    assert int(late.sum()) == max(4 - max_fallback_rows, 0) and not late[2]


def mixed():
    h, weight, bias = random_head(7, 8, 1999, 70, torch.bfloat16, scale=2.0)
    return h, weight, bias, one_request_each(8, seeds=list(range(8)), **LAWS)


def test_a_row_does_not_depend_on_its_neighbours(device):
    h, weight, bias, call = mixed()
    whole, _ = sample(h, weight, bias, **call)
    many = call | {
        "verify_rows": torch.arange(160) % 8,
        "positions": call["positions"].repeat(20),
        "cu_verify": torch.arange(161),
        "req_rows": torch.arange(160) % 8,
    }
    got, _ = sample(h, weight, bias, max_fallback_rows=160, **many)
    assert torch.equal(got.ids, whole.ids.repeat(20)) and torch.equal(
        got.logprobs, whole.logprobs.repeat(20)
    )
    for i in range(8):
        laws = {name: call[name] for name in (*LAWS, "seeds")}
        alone, _ = sample(
            h,
            weight,
            bias,
            positions=call["positions"][i : i + 1],
            cu_verify=torch.tensor([0, 1]),
            req_rows=torch.tensor([i]),
            verify_rows=torch.tensor([i]),
            **laws,
        )
        assert alone.ids[0] == whole.ids[i] and torch.equal(alone.logprobs[0], whole.logprobs[i])


def test_threads_and_instruction_sets_change_nothing():
    h, weight, bias, call = mixed()
    want, _ = sample(h, weight, bias, **call)
    threads, isa = torch.get_num_threads(), cpu_isa()
    try:
        for other in cpu_isas():
            pin_cpu_isa(other)
            for count in (1, 3):
                torch.set_num_threads(count)
                for layout in both_layouts(weight):
                    assert_same(sample(h, layout, bias, vocab_size=1999, **call)[0], want)
    finally:
        torch.set_num_threads(threads)
        pin_cpu_isa(isa)


def test_rows_without_a_finite_logit(device):
    nan = float("nan")
    h = torch.tensor([[1.0], [nan], [-INF], [0.0]], device=device)
    weight = torch.tensor([[1.0], [2.0], [3.0]], device=device)
    bias = torch.tensor([0.0, INF, 1.0], device=device)
    call = one_request_each(4, temperature=[0.0, 1.0, 1.0, 1.0], top_k=[0, 0, 1, 0])
    got, status = sample(h, weight, bias, **call)
    assert got.ids.tolist() == [1, 0, 0, 1]
    none = Status.NO_FINITE_LOGIT
    assert status.tolist() == [0, none, none, 0]
    assert got.logprobs.tolist() == [0, -INF, -INF, 0]


def test_padded_and_bad_rows(device):
    h, weight, _ = random_head(3, 4, 50, 8)
    h[2] = float("nan")
    call = one_request_each(5, temperature=1.0) | {
        "verify_rows": torch.tensor([-1, 0, 4, 1, -2]),
        "req_rows": torch.tensor([0, -1, 0, 1, 0]),
    }
    got, status = sample(h, weight, **call)
    assert (got.ids >= 0).tolist() == [False, False, False, True, False]
    bad = Status.OUT_OF_RANGE
    assert status.tolist() == [0, 0, bad, 0, bad]


def test_strided_in_place(device):
    h, weight, bias, call = mixed()
    want, _ = sample(h, weight, bias, **call)
    wide = torch.full((16, 90), float("nan"), dtype=h.dtype, device=device)
    wide[::2, :70] = h
    tall = torch.full((1999, 100), float("nan"), dtype=h.dtype, device=device)
    tall[:, 10:80] = weight
    out = Sampled(
        torch.zeros(8, 2, dtype=torch.int32, device=device)[:, 1],
        torch.zeros(8, 2, device=device)[:, 1],
    )
    memory = torch.empty(
        workspace_bytes("lm_head_sample", "cpu", vocab_size=1999, max_fallback_rows=3),
        dtype=torch.uint8,
    )
    assert (
        lm_head_sample(
            wide[::2, :70],
            tall[:, 10:80],
            bias,
            out=out,
            workspace=memory,
            max_fallback_rows=3,
            **call,
        )
        is out
    )
    assert torch.equal(out.ids.long(), want.ids) and torch.equal(out.logprobs, want.logprobs)


def test_empty(device):
    h, weight, _ = random_head(0, 0, 50, 8)
    assert sample(h, weight, **one_request_each(0))[0].ids.shape == (0,)
    got, _ = sample(torch.zeros(2, 8), torch.zeros(0, 8), **one_request_each(2))
    assert got.ids.tolist() == [-1, -1]


def valid_call():
    h, weight, bias, call = mixed()
    call = {k: v.contiguous() for k, v in call.items()} | {
        "status": torch.zeros(8, dtype=torch.int32),
        "vocab_size": 1999,
    }
    call |= {
        "norm_weight": torch.ones(70).bfloat16(),
        "workspace": torch.empty(40000, dtype=torch.uint8),
    }
    return {"h": h, "weight": weight, "bias": bias, **call}, Sampled(
        torch.zeros(8).long(), torch.zeros(8)
    )._asdict()


WRONG = [
    (
        "h",
        torch.zeros(8, 70).double(),
        TypeError,
        "h must be bfloat16 or float16 or float32, got float64",
    ),
    (
        "weight",
        torch.zeros(1999, 71).bfloat16(),
        ValueError,
        "weight must have shape [N, K] = [*, 70], got [1999, 71]",
    ),
    ("weight", torch.zeros(1999, 70), TypeError, "weight must be bfloat16, got float32"),
    ("bias", torch.zeros(1998), ValueError, "bias must have shape [V] = [1999], got [1998]"),
    (
        "norm_weight",
        torch.zeros(71),
        ValueError,
        "norm_weight must have shape [H] = [70], got [71]",
    ),
    ("eps", -1.5, ValueError, "eps must be at least 0, got -1.5"),
    (
        "positions",
        torch.zeros(7).int(),
        ValueError,
        "positions must have shape [Tv] = [8], got [7]",
    ),
    ("seeds", None, ValueError, "seeds must be given with temperature, got None"),
    ("max_fallback_rows", 0, ValueError, "max_fallback_rows must be at least 1, got 0"),
    (
        "workspace",
        torch.zeros(9, dtype=torch.uint8),
        ValueError,
        "len(workspace) must be at least 10240, got 9",
    ),
    ("workspace", torch.zeros(9), TypeError, "workspace must be uint8, got float32"),
    ("status", torch.zeros(7).int(), ValueError, "status must have shape [Tv] = [8], got [7]"),
    ("ids", torch.zeros(8), TypeError, "ids must be int32 or int64, got float32"),
    ("logprobs", torch.zeros(7), ValueError, "logprobs must have shape [Tv] = [8], got [7]"),
]


@pytest.mark.parametrize(("name", "value", "error", "text"), WRONG)
def test_names_what_is_wrong(name, value, error, text):
    call, out = valid_call()
    (out if name in out else call)[name] = value
    with pytest.raises(error) as from_python:
        lm_head_sample(**call, out=Sampled(**out))
    with pytest.raises(RuntimeError) as from_op:
        OP.out(**call, **out)
    assert str(from_python.value) == str(from_op.value) == f"lm_head_sample: {text}"


def test_opcheck(device):
    call, out = valid_call()
    call.pop("workspace")  # what is left in it is not a result
    args = tuple(call.pop(name) for name in ("h", "weight", "bias"))
    torch.library.opcheck(OP.default, args, call)
    torch.library.opcheck(OP.out, args, call | out)


def test_compiles_whole(device):
    h, weight, bias, call = mixed()
    got = torch.compile(lm_head_sample, fullgraph=True)(h, weight, bias, **call)
    assert_same(got, lm_head_sample(h, weight, bias, **call))
