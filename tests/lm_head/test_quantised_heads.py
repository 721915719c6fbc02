"""The lm_head ops on quantised heads: the logits are those of verify_gemm_w8 and verify_gemm_w4.

A head that is the identity makes logits of themselves, so each op must give the same bits from the
quantised head and from its logits.
"""

import pytest
import torch
from bounds import assert_within
from calls import assert_raises_alike
from heads import all_ops
from hypothesis import given, settings
from hypothesis import strategies as st
from quant_products import magnitudes
from quant_sources import FLOATS, W4_SOURCES, W8_SOURCES, generator, on, w4_call, w8_call
from sampling_rows import one_request_each

from dflash_ops import (
    lm_head_gather,
    lm_head_sample,
    lm_head_topk,
    lm_head_verify,
    pack_w4,
    pack_w8,
    reference,
    sample_logits,
    verify_gemm_w4,
    verify_gemm_w8,
)
from dflash_ops.reference.quantised import parse

OPS = [lm_head_topk, lm_head_sample, lm_head_gather, lm_head_verify]
SOURCES = W4_SOURCES + W8_SOURCES
LAWS = {"temperature": [0.0, 1.0, 0.6, 1.3], "top_k": [0, 0, 7, 0], "top_p": [1, 1, 0.9, 0.95]}


class Head:
    """A random quantised head and rows; the source may round `vocab` and `hidden` up."""

    def __init__(self, seed, source, rows, vocab, hidden, dtype=torch.bfloat16, device="cpu"):
        self.is_w4 = source in W4_SOURCES
        call = (w4_call if self.is_w4 else w8_call)(seed, source, vocab, hidden)
        self.weight, self.format = (pack_w4 if self.is_w4 else pack_w8)(**on(device, call))
        self.vocab = vocab
        ggml = source in ("q8_0", "q4_0", "q4_1")
        hidden += -hidden % (32 if ggml else 8 if source.startswith("gptq") else 1)
        self.h = (2 * torch.randn(rows, hidden, generator=generator(seed + 1))).to(device, dtype)

    def logits(self, bias=None, **options):
        gemm = verify_gemm_w4 if self.is_w4 else verify_gemm_w8
        options |= {"num_outputs": self.vocab, "out_dtype": torch.float32}
        return gemm(self.h, self.weight, self.format, bias, **options)

    @property
    def given(self):
        return {"weight": self.weight, "weight_format": self.format, "vocab_size": self.vocab}


def arguments(op, rows, vocab, seed=0, device="cpu"):
    """What the op takes beside the head."""
    if op is lm_head_topk:
        return {"k": 20}
    call = {}
    if op is not lm_head_sample:
        call["ids"] = torch.randint(-1, vocab, (rows, 3), generator=generator(seed)).to(device)
    laws = {name: (values * -(-rows // 4))[:rows] for name, values in LAWS.items()}
    laws = on(device, one_request_each(rows, seeds=seed, **laws))
    if op is lm_head_gather:
        return call | {name: laws[name] for name in ("cu_verify", "temperature")}
    return call | laws | {"max_fallback_rows": rows}


def assert_same(got, want):
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@settings(max_examples=60)
@given(
    op=st.sampled_from(OPS),
    source=st.sampled_from(SOURCES),
    rows=st.sampled_from([1, 3, 17, 33, 65]),
    vocab=st.sampled_from([1, 31, 32, 33, 65, 511, 513, 600]),
    hidden=st.sampled_from([8, 32, 40, 160, 520]),
    dtype=st.sampled_from(FLOATS),
    start=st.sampled_from([0, 5, 512]),
    has_bias=st.booleans(),
    seed=st.integers(0, 2**31 - 1),
)
def test_equals_the_op_on_its_logits(
    device, op, source, rows, vocab, hidden, dtype, start, has_bias, seed
):
    head = Head(seed, source, rows, vocab, hidden, dtype, device)
    bias = torch.randn(vocab, generator=generator(seed)).to(device) if has_bias else None
    call = arguments(op, rows, vocab, seed, device) | {"vocab_start": start, "logit_scale": 0.7}
    given = head.given | {"vocab_size": start + vocab}
    got = op(head.h, **given, bias=bias, **call)
    want = op(head.logits(bias), torch.eye(vocab).to(device), **call, vocab_size=start + vocab)
    assert_same(got, want)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("source", ["q4_1", "awq", "q8_0"])
def test_norm_rounding_and_padding(device, op, source):
    """Without vocab_size the padding of the last block counts: columns of zeros."""
    head = Head(3, source, 6, 72, 64, device=device)
    norm = (torch.rand(64, generator=generator(0)).bfloat16() + 0.5).to(device)
    call = arguments(op, 6, 72, device=device)
    rounded = head.logits(norm_weight=norm, eps=1e-5).bfloat16().float()
    got = op(head.h, **head.given, norm_weight=norm, eps=1e-5, round_logits=True, **call)
    assert_same(got, op(rounded, torch.eye(72).to(device), **call))
    padded = torch.nn.functional.pad(head.logits(), (0, 24))
    got = op(head.h, head.weight, weight_format=head.format, **call)
    assert_same(got, op(padded, torch.eye(96).to(device), **call))


@pytest.mark.parametrize("source", SOURCES)
def test_close_to_reference(device, layout, source):
    head = Head(1, source, 9, 320, 96, device=device)
    got = lm_head_topk(head.h, **head.given, k=20)
    h, given = head.h.cpu(), on("cpu", head.given)
    want = reference.lm_head_topk(h, **given, k=20, layout=layout)
    q = parse(given["weight"], (320, 96), False, head.format, layout)
    terms = (h.double().abs() @ magnitudes(q).T).amax(dim=1)
    assert_within(got.values.cpu(), want.values, terms=terms[:, None])
    assert_within(got.lse.cpu(), want.lse, terms=terms)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("source", ["q4_1", "gptq", "fp8"])
def test_a_row_has_its_bits_in_any_call(device, source, dtype):
    """On CUDA on each side of tiles of 10, 16 and 32 rows: fp32 has three parts, fp16 two."""
    head = Head(2, source, 40, 301, 72, dtype, device)
    norm = torch.rand(head.h.shape[1], generator=generator(0)).to(dtype)
    options = on(device, {"norm_weight": norm, "weight_format": head.format})
    options |= {"vocab_start": 40, "vocab_size": 341}
    bias = torch.randn(301, generator=generator(1)).to(device)
    whole = all_ops(head.h, head.weight, bias, torch.arange(40), **options)
    for rows in ([39], range(9, 12), range(3, 35)):
        part = all_ops(head.h, head.weight, bias, torch.tensor(list(rows)), **options)
        assert_same(part, [want[list(rows)] for want in whole])


def test_many_tiles_and_a_row_that_is_drawn_in_passes(device):
    """On CUDA a CTA has several tiles of ids, and three rows share one slot for their logits."""
    head = Head(5, "q4_0", 3, 70_000, 8, device=device)
    call = on(device, one_request_each(3, seeds=2, temperature=1.0, top_p=0.9))
    call |= {"max_fallback_rows": 1}
    got = lm_head_sample(head.h, **head.given, **call)
    del call["max_fallback_rows"]
    assert_same(got, sample_logits(head.logits(), **call))


WRONG = [
    (
        "weight_format",
        "int4_fp16_g33",
        ValueError,
        "weight_format must be as pack_w8 or pack_w4 names it, like int4_fp16_g32_mins, got "
        "int4_fp16_g33",
    ),
    (
        "weight_format",
        "int4_fp16_g32",
        ValueError,
        "weight must have shape [blocks, block_bytes] = [*, 1152], got [2, 1280]",
    ),
    ("weight_format", None, TypeError, "weight must be bfloat16, got uint8"),
    ("weight", torch.zeros(2, 1280), TypeError, "weight must be uint8, got float32"),
    ("bias", torch.zeros(41), ValueError, "bias must have shape [V] = [40], got [41]"),
]


def valid_call(op):
    head = Head(0, "q4_1", 4, 40, 64)
    return {"h": head.h, **head.given, "bias": torch.zeros(40), **arguments(op, 4, 40)}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("name", "value", "error", "text"), WRONG)
def test_names_what_is_wrong(op, name, value, error, text):
    call = valid_call(op) | {name: value}
    assert_raises_alike(op, getattr(torch.ops.dflash, op.__name__), call, {}, error, text)


@pytest.mark.parametrize("op", OPS)
def test_opcheck(op):
    call = valid_call(op)
    order = ("h", "weight", "ids", "bias") if "ids" in call else ("h", "weight", "bias")
    args = tuple(call.pop(name) for name in order)
    torch.library.opcheck(getattr(torch.ops.dflash, op.__name__).default, args, call)


@pytest.mark.parametrize("op", OPS)
def test_compiles_whole(op):
    call = valid_call(op)
    assert_same(torch.compile(op, fullgraph=True)(**call), op(**call))
