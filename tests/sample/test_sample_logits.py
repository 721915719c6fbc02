import itertools
import math

import pytest
import torch
from bounds import assert_within
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_rows import assert_draw, one_request_each

from dflash_ops import _C, Sampled, Status, cpu_isa, cpu_isas, pin_cpu_isa, reference, sample_logits
from dflash_ops.reference import sample as reference_sample

OP = torch.ops.dflash.sample_logits
INF = float("inf")
# Both sides of a word of the noise, a block of the sum, a span of the CPU loops; not multiples.
EDGES = [1, 2, 3, 4, 5, 63, 64, 65, 127, 128, 129, 511, 512, 513, 1025, 4097]


def draw(device, logits, **call):
    status = torch.zeros(len(call["positions"]), dtype=torch.int32, device=device)
    call = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in call.items()}
    got = sample_logits(logits.to(device), status=status, **call)
    return Sampled(*(x.cpu() for x in got)), status.cpu()


@pytest.mark.parametrize("vocab", EDGES)
def test_greedy_takes_the_lowest_of_equal_maxima(device, vocab):
    rows = min(vocab, 70)
    first = torch.linspace(0, vocab - 1, rows).long()
    ids = torch.arange(vocab)
    logits = torch.where((ids >= first[:, None]) & ((ids - first[:, None]) % 7 == 0), 1.0, -1.0)
    got, status = draw(device, logits, **one_request_each(rows))
    assert torch.equal(got.ids, first) and not status.any()


def test_negative_zero_ties_with_zero(device):
    got, _ = draw(device, torch.tensor([[-1.0, -0.0, 0.0]]), **one_request_each(1))
    assert got.ids.tolist() == [1]
    call = one_request_each(1, temperature=1.0, top_k=1)
    assert draw(device, torch.tensor([[-1.0, -0.0, 0.0]]), **call)[0].ids.tolist() == [1]


@pytest.mark.parametrize("law", [{}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 5}])
def test_nan_and_infinite_logits(device, law):
    nan = float("nan")
    logits = torch.tensor(
        [[nan, 1e4, nan], [nan, nan, nan], [-INF, -INF, -INF], [0, INF, 1e30], [-INF, nan, -1e38]]
    )
    got, status = draw(device, logits, **one_request_each(5, **law))
    assert got.ids.tolist() == [1, 0, 0, 1, 2]
    assert got.logprobs.tolist() == [0, -INF, -INF, 0, 0]
    bad = Status.NO_FINITE_LOGIT
    assert status.tolist() == [0, bad, bad, 0, 0]


def ids_seen(device, row, num_draws, **law):
    logits = torch.tensor(row).expand(num_draws, -1)
    got, _ = draw(device, logits, **one_request_each(num_draws, **law))
    return sorted(set(got.ids.tolist()))


@pytest.mark.parametrize("order", ["k_then_p", "joint"])
def test_filters_keep_exactly_the_set(device, device_class, order):
    """Ties at a boundary keep the lower ids only (FAULTS A11); at least one stays (A13)."""
    row = [x if x > 0 else 1e-30 for x in (0.4, 0.3, 0.3, 0.0)]
    row = [math.log(x) for x in row]

    num_draws = 60 if device_class == "ptx" else 2000

    def seen(row=row, **law):
        return ids_seen(device, row, num_draws, temperature=1.0, order=order, **law)

    assert seen(top_k=2) == [0, 1]
    assert seen(top_k=1) == [0]
    assert seen(top_k=4) == seen(top_k=0) == seen(top_k=-1) == [0, 1, 2]
    assert seen(top_p=0.41) == [0, 1]
    assert seen(top_p=0.71) == [0, 1, 2]
    assert seen(top_p=0.39) == seen(top_p=0.0) == seen(top_p=1e-8) == seen(top_p=1e-3) == [0]
    assert seen([-1.0, 0.0, 0.0], min_p=1.5) == [1]
    assert seen(top_p=1.0) == seen(top_p=2.0) == [0, 1, 2]
    assert seen(min_p=0.76) == seen(min_p=1.0) == seen(min_p=2.0) == [0]
    assert seen(min_p=0.74) == [0, 1, 2]
    # Of the best two, 0.4 is 4/7, of the whole law less than half.
    assert seen(top_k=2, top_p=0.5) == ([0] if order == "k_then_p" else [0, 1])


@pytest.mark.parametrize("temperature", [1e-6, 0.0, -1.0, float("nan")])
def test_small_temperatures_are_greedy(device, temperature):
    logits = torch.tensor([[-1e4, 1e4, 0.0, 9999.0]]).expand(100, -1)
    got, _ = draw(device, logits, **one_request_each(100, temperature=temperature))
    assert (got.ids == 1).all()


@pytest.mark.parametrize("temperature", [1e-5, 2e-5, 1e30, INF])
def test_extreme_temperatures(device, temperature):
    logits = torch.tensor([[-1e4, 1e4, 0.0, -INF]]).expand(100, -1)
    got, _ = draw(device, logits, **one_request_each(100, temperature=temperature))
    assert set(got.ids.tolist()) == ({1} if temperature < 1 else {0, 1, 2})


def test_infinite_temperature_with_a_filter_and_a_mask(device):
    """Every allowed id weighs the same, a masked one nothing."""
    logits = torch.tensor([[5.0, 4.0, 3.0, 2.0, 1.0]]).expand(100, -1)
    call = one_request_each(100, temperature=INF, top_p=0.5)
    mask = torch.full((100, 1), 0b11101, dtype=torch.int32)
    got, _ = draw(device, logits, **call, token_mask=mask)
    assert set(got.ids.tolist()) == {0, 2}


@settings(max_examples=60)
@given(
    vocab=st.sampled_from(EDGES) | st.integers(1, 700),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7, 5.0]),
    top_k=st.sampled_from([0, 1, 2, 31, 32, 33, 63, 64, 65, 300, 5000]),
    top_p=st.sampled_from([0.0, 1e-8, 0.3, 0.9, 0.99, 0.9999, 1.0]),
    min_p=st.sampled_from([0.0, 0.0, 1e-3, 0.2]),
    order=st.sampled_from(["k_then_p", "joint"]),
    spread=st.sampled_from([0.0, 0.1, 3.0, 20.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    seed=st.integers(-(2**63), 2**63 - 1),
)
def test_equals_reference(
    device, vocab, temperature, top_k, top_p, min_p, order, spread, dtype, seed
):
    g = torch.Generator().manual_seed(seed % 2**31)
    rows = 4
    logits = (torch.randn(rows, vocab, generator=g) * spread).to(dtype)
    law = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    call = one_request_each(rows, seeds=seed, **law, order=order)
    got, status = draw(device, logits, **call)
    law = reference_sample.state_law(call, 0)
    z = logits.double()
    for i in range(rows):
        assert_draw(int(got.ids[i]), z[i], law, seed, int(call["positions"][i]))
    assert not status.any()
    picked = z.gather(1, got.ids[:, None])[:, 0]
    lse = z.logsumexp(dim=1)
    assert_within(got.logprobs, picked - lse, terms=picked.abs() + lse.abs() + 1)


@pytest.mark.parametrize(
    "law",
    [
        {"top_p": 0.95},
        {"top_k": 3000},
        {"top_k": 5000, "top_p": 0.9},
        {"min_p": 0.05},
        {"top_k": 60, "top_p": 0.7, "order": "joint"},
    ],
)
def test_kept_sets_larger_than_a_pass(device, law):
    """A flat row keeps thousands of candidates, some of them equal."""
    g = torch.Generator().manual_seed(1)
    logits = (torch.randn(3, 20_011, generator=g) * 64).round() / 64
    call = one_request_each(3, temperature=1.3, seeds=5, **law)
    got, _ = draw(device, logits, **call)
    law = reference_sample.state_law(call, 0)
    sure = [
        assert_draw(int(got.ids[i]), logits[i].double(), law, 5, int(call["positions"][i]))
        for i in range(3)
    ]
    assert any(sure) or "top_p" in law


def test_wide_rows_skip_nothing_that_wins(device):
    """The skipped logarithms could not have won: every row against all scores in float64."""
    g = torch.Generator().manual_seed(2)
    rows, vocab = 24, 50_257
    logits = torch.randn(rows, vocab, generator=g) * 2
    call = one_request_each(rows, temperature=1.0, seeds=9)
    got, _ = draw(device, logits, **call)
    sure = [
        assert_draw(
            int(got.ids[i]), logits[i].double(), {"temperature": 1.0}, 9, int(call["positions"][i])
        )
        for i in range(rows)
    ]
    assert sum(sure) >= rows - 1


def options_call(g, rows, vocab):
    """Every logit option at once."""
    mask = torch.randint(-(2**31), 2**31 - 1, (3, (vocab + 31) // 32), generator=g).int()
    counts = torch.randint(0, 5, (rows,), generator=g)
    cu = torch.cat([torch.zeros(1).long(), counts.cumsum(0)])
    nnz = int(cu[-1])
    return {
        "logit_scale": 0.5,
        "softcap": 4.0,
        "token_mask": mask,
        "mask_rows": torch.randint(-1, 3, (rows,), generator=g),
        "adj_cu": cu,
        "adj_ids": torch.randint(0, vocab, (nnz,), generator=g),
        "adj_values": torch.randn(nnz, generator=g) * 5,
    }


@pytest.mark.parametrize("vocab", [5, 64, 777, 1500])
@pytest.mark.parametrize("start", [0, 37, 512, 1000])
def test_options_equal_reference(device, vocab, start):
    g = torch.Generator().manual_seed(vocab + start)
    rows = 12
    logits = torch.randn(rows, vocab, generator=g) * 6
    options = options_call(g, rows, start + vocab - 2) | {
        "vocab_start": start,
        "vocab_size": start + vocab - 2,
    }
    call = one_request_each(rows, temperature=[0.0, 1.0, 0.8] * 4, top_k=[0, 0, 9] * 4, seeds=3)
    got, status = draw(device, logits, **call, **options)
    want_status = torch.zeros_like(status)
    want = reference.sample_logits(logits, **call, **options, status=want_status)
    assert torch.equal(got.ids, want.ids)
    assert torch.equal(status, want_status)
    assert_within(got.logprobs, want.logprobs, terms=80.0)


def test_a_shard_has_the_bits_of_the_row_that_starts_with_minus_infinity(device):
    g = torch.Generator().manual_seed(4)
    logits = torch.randn(6, 1300, generator=g)
    for start, law in itertools.product(
        [1, 63, 64, 200, 513, 700], [{}, {"temperature": 1.0}, {"temperature": 0.9, "top_p": 0.8}]
    ):
        full = torch.cat([torch.full((6, start), -INF), logits[:, start:]], dim=1)
        call = one_request_each(6, **law)
        a, _ = draw(device, full, **call)
        b, _ = draw(device, logits[:, start:], vocab_start=start, **call)
        assert torch.equal(a.ids, b.ids) and torch.equal(a.logprobs, b.logprobs)


def test_log_sum_exp_in_the_one_order(device):
    """The vector loops against the scalar tree, bit for bit."""
    g = torch.Generator().manual_seed(5)
    for vocab in [*EDGES, 12_345]:
        logits = torch.randn(1, vocab, generator=g) * 3
        got, _ = draw(device, logits, **one_request_each(1))
        lse = _C.hooks.lse(logits.data_ptr(), vocab, 0)
        assert got.logprobs[0] == logits.max() - torch.tensor(lse)


LAWS = {
    "temperature": [0.0, 1.0, 0.6, 1.0, 2.0, 1.0, 0.9, 1.0],
    "top_k": [0, 0, 7, 0, 0, 900, 0, 0],
    "top_p": [1.0, 1.0, 0.9, 0.95, 1.0, 0.5, 0.3, 0.999],
    "min_p": [0.0, 0.0, 0.0, 0.0, 0.05, 0.0, 0.0, 0.0],
}


def mixed_call():
    g = torch.Generator().manual_seed(6)
    logits = torch.randn(8, 1999, generator=g) * 2
    return logits, one_request_each(8, seeds=list(range(8)), **LAWS)


def test_a_row_does_not_depend_on_its_neighbours(device):
    logits, call = mixed_call()
    whole, _ = draw(device, logits, **call)
    for i in range(8):
        laws = {name: call[name] for name in (*LAWS, "seeds")}
        alone, _ = draw(
            device,
            logits[i : i + 1],
            positions=call["positions"][i : i + 1],
            cu_verify=torch.tensor([0, 1]),
            req_rows=torch.tensor([i]),
            **laws,
        )
        assert alone.ids[0] == whole.ids[i] and torch.equal(alone.logprobs[0], whole.logprobs[i])


def test_a_row_does_not_depend_on_threads_or_instruction_set():
    logits, call = mixed_call()
    logits, call = (
        logits.repeat(8, 1),
        call | {"cu_verify": torch.arange(0, 65, 8), "positions": call["positions"].repeat(8)},
    )
    want, _ = draw("cpu", logits, **call)
    threads, isa = torch.get_num_threads(), cpu_isa()
    try:
        for other in cpu_isas():
            pin_cpu_isa(other)
            torch.set_num_threads(1 + (other == "avx2"))
            got, _ = draw("cpu", logits, **call)
            assert torch.equal(got.ids, want.ids) and torch.equal(got.logprobs, want.logprobs)
    finally:
        torch.set_num_threads(threads)
        pin_cpu_isa(isa)


def test_rows_of_one_request_share_its_law(device):
    """Ragged requests, through state rows, padded ones among them."""
    g = torch.Generator().manual_seed(8)
    logits = torch.randn(7, 100, generator=g)
    call = {
        "positions": torch.tensor([5, 6, 7, 0, 9, 2, 2]),
        "cu_verify": torch.tensor([0, 3, 3, 4, 5, 6]),
        "req_rows": torch.tensor([2, 0, -1, 1, 0]),
        "temperature": torch.tensor([0.0, 1.0, 0.7]),
        "seeds": torch.tensor([1, 2, 3]),
    }
    got, status = draw(device, logits, **call)
    want = reference.sample_logits(logits, **call)
    assert torch.equal(got.ids, want.ids) and not status.any()
    assert got.ids[3] == got.ids[6] == -1 and got.logprobs[3] == 0


def test_bad_data_reaches_only_its_own_row(device):
    logits = torch.zeros(6, 40)
    logits[:, 3] = 1
    call = {
        "positions": torch.tensor([0, 1, 2, -5, 2**40, 0]),
        "cu_verify": torch.tensor([0, 2, -7, 2, 3, 4, 5, 6]),
        "req_rows": torch.tensor([0, 0, 0, 9, 1, 1, 0]),
        "temperature": torch.tensor([0.0, 1.0]),
        "seeds": torch.tensor([0, 0]),
        "verify_rows": torch.tensor([0, 77, 0, 0, 0, -1]),
    }
    got, status = draw(device, logits, **call)
    bad = Status.OUT_OF_RANGE
    assert got.ids.tolist() == [3, -1, -1, -1, -1, -1]
    assert status.tolist() == [0, bad, bad, bad, bad, 0]


def test_bad_masks_and_terms(device):
    call = one_request_each(5)
    options = {
        "token_mask": torch.tensor([[0b1010], [0]], dtype=torch.int32),
        "mask_rows": torch.tensor([0, 1, 2, -1, -2]),
    }
    got, status = draw(device, torch.zeros(5, 4), **call, **options)
    assert got.ids.tolist() == [1, 0, -1, 0, -1]
    assert status.tolist() == [
        0,
        Status.NO_FINITE_LOGIT,
        Status.OUT_OF_RANGE,
        0,
        Status.OUT_OF_RANGE,
    ]
    terms = {
        "adj_cu": torch.tensor([0, 3, 2, 5, 4, 4]),
        "adj_ids": torch.tensor([2, -1, 2**40, 1]),
        "adj_values": torch.tensor([1.0, 9.0, 9.0, 1.0]),
    }
    got, status = draw(device, torch.zeros(5, 4), **call, **terms)
    assert got.ids.tolist() == [2, -1, -1, -1, 0]
    assert (status != 0).tolist() == [False, True, True, True, False]


def test_strided_inputs_and_outputs_in_place(device):
    logits, call = mixed_call()
    want, _ = draw(device, logits, **call)
    wide = torch.full((16, 2100), float("nan"), device=device)
    wide[::2, :1999] = logits.to(device)

    def spread(x):
        buffer = torch.zeros((len(x), 3), dtype=x.dtype, device=device)
        buffer[:, 1] = x
        return buffer[:, 1]

    out = Sampled(spread(want.ids.int() * 0), spread(want.logprobs * 0))
    call = {k: spread(v) if isinstance(v, torch.Tensor) else v for k, v in call.items()}
    assert sample_logits(wide[::2, :1999], **call, out=out) is out
    assert torch.equal(out.ids.cpu().long(), want.ids) and torch.equal(
        out.logprobs.cpu(), want.logprobs
    )
    half = logits.half()
    padded = torch.full((8, 2048), float("nan"), dtype=torch.float16)
    padded[:, :1999] = half
    a, _ = draw(device, padded, **call, vocab_size=1999)
    b, _ = draw(device, half, **call)
    assert torch.equal(a.ids, b.ids) and torch.equal(a.logprobs, b.logprobs)


def test_addresses_past_32_bits(device):
    buffer = torch.empty(2**32 + 2048, dtype=torch.bfloat16, device=device)  # few pages are touched
    logits = buffer.as_strided((3, 100), (2**31, 1))
    for i in range(3):
        logits[i] = torch.arange(100, device=device) == 10 + i
    assert draw(device, logits, **one_request_each(3))[0].ids.tolist() == [10, 11, 12]


def test_empty(device):
    got, _ = draw(device, torch.zeros(0, 9), **one_request_each(0))
    assert got.ids.shape == (0,)
    got, status = draw(device, torch.zeros(2, 0), **one_request_each(2))
    assert got.ids.tolist() == [-1, -1] and status.tolist() == [Status.NO_FINITE_LOGIT] * 2


def valid_call():
    logits, call = mixed_call()
    call = {k: v.contiguous() for k, v in call.items()} | {
        "status": torch.zeros(8, dtype=torch.int32)
    }
    call |= {"order": "joint", "req_rows": torch.arange(8), "softcap": 0.0, "vocab_start": 0}
    call |= options_call(torch.Generator().manual_seed(0), 8, 1999) | {
        "vocab_size": 1999,
        "verify_rows": torch.arange(8),
    }
    return {"logits": logits, **call}, Sampled(torch.zeros(8).long(), torch.zeros(8))._asdict()


INTS = "must be int32 or int64, got"
# fmt: off
WRONG = [
    ("logits", torch.zeros(8, 1999).double(), TypeError, "logits must be bfloat16 or float16 or float32, got float64"),
    ("logits", torch.zeros(8), ValueError, "logits must have shape [num_rows, V] = [*, *], got [8]"),
    ("logits", torch.zeros(1999, 8).T, ValueError, "logits must have a contiguous last dimension, got strides [1, 8]"),
    ("positions", torch.zeros(7).int(), ValueError, "positions must have shape [Tv] = [8], got [7]"),
    ("cu_verify", torch.zeros(0).int(), ValueError, "len(cu_verify) must be at least 1, got 0"),
    ("req_rows", torch.zeros(7).int(), ValueError, "req_rows must have shape [B] = [8], got [7]"),
    ("temperature", torch.zeros(8).half(), TypeError, "temperature must be float32, got float16"),
    ("top_k", torch.zeros(8), TypeError, f"top_k {INTS} float32"),
    ("top_p", torch.zeros(3), ValueError, "top_p must have shape [R] = [8], got [3]"),
    ("min_p", torch.zeros(8).double(), TypeError, "min_p must be float32, got float64"),
    ("seeds", None, ValueError, "seeds must be given with temperature, got None"),
    ("order", "p", ValueError, "order must be one of k_then_p, joint, got p"),
    ("verify_rows", torch.zeros(8), TypeError, f"verify_rows {INTS} float32"),
    ("softcap", -0.5, ValueError, "softcap must be at least 0, got -0.5"),
    ("vocab_start", -1, ValueError, "vocab_start must be at least 0, got -1"),
    ("vocab_size", 2**32, ValueError, "vocab_size must be at most 4294967295, got 4294967296"),
    ("token_mask", torch.zeros(3, 62).int(), ValueError, "token_mask must have shape [num_masks, ceil(vocab_size / 32)] = [*, 63], got [3, 62]"),
    ("token_mask", None, ValueError, "token_mask must be given with mask_rows, got None"),
    ("mask_rows", torch.zeros(7).int(), ValueError, "mask_rows must have shape [Tv] = [8], got [7]"),
    ("adj_ids", None, ValueError, "adj_ids must be given with adj_cu, got None"),
    ("adj_cu", torch.zeros(8).int(), ValueError, "adj_cu must have shape [Tv + 1] = [9], got [8]"),
    ("adj_values", torch.zeros(1), ValueError, "adj_values must have shape [nnz] = [{nnz}], got [1]"),
    ("status", torch.zeros(8).long(), TypeError, "status must be int32, got int64"),
    ("ids", torch.zeros(8), TypeError, f"ids {INTS} float32"),
    ("logprobs", torch.zeros(7), ValueError, "logprobs must have shape [Tv] = [8], got [7]"),
]
# fmt: on


@pytest.mark.parametrize(("name", "value", "error", "text"), WRONG)
def test_names_what_is_wrong(name, value, error, text):
    call, out = valid_call()
    text = "sample_logits: " + text.replace("{nnz}", str(len(call["adj_ids"])))
    (out if name in out else call)[name] = value
    with pytest.raises(error) as from_python:
        sample_logits(**call, out=Sampled(**out))
    with pytest.raises(RuntimeError) as from_op:
        OP.out(**call, **out)
    assert str(from_python.value) == str(from_op.value) == text


def test_opcheck(device):
    call, out = valid_call()
    call, out = (
        {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in x.items()}
        for x in (call, out)
    )
    logits = call.pop("logits")
    torch.library.opcheck(OP.default, (logits,), call)
    torch.library.opcheck(OP.out, (logits,), call | out)


def test_compiles_whole(device):
    compiled = torch.compile(sample_logits, fullgraph=True)
    logits, call = mixed_call()
    logits, call = logits.to(device), {k: v.to(device) for k, v in call.items()}
    got, want = compiled(logits, **call), sample_logits(logits, **call)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
