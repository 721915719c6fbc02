"""The lm_head ops on quantised heads: the logits are those of verify_gemm_w8 and verify_gemm_w4.

A head that is the identity makes logits of themselves, so each op must give the same bits from the
quantised head and from its logits. Kernels are for the CPU.
"""

import pytest
import torch
from bounds import assert_within
from calls import assert_raises_alike
from hypothesis import given, settings
from hypothesis import strategies as st
from quant_products import magnitudes
from quant_sources import FLOATS, W4_SOURCES, W8_SOURCES, generator, w4_call, w8_call
from sampling_rows import one_request_each

from dflash_ops import (
    lm_head_gather,
    lm_head_sample,
    lm_head_topk,
    lm_head_verify,
    pack_w4,
    pack_w8,
    reference,
    verify_gemm_w4,
    verify_gemm_w8,
)
from dflash_ops.reference.quantised import parse

OPS = [lm_head_topk, lm_head_sample, lm_head_gather, lm_head_verify]
SOURCES = W4_SOURCES + W8_SOURCES
LAWS = {"temperature": [0.0, 1.0, 0.6, 1.3], "top_k": [0, 0, 7, 0], "top_p": [1, 1, 0.9, 0.95]}


class Head:
    """A random quantised head and rows; the source may round `vocab` and `hidden` up."""

    def __init__(self, seed, source, rows, vocab, hidden, dtype=torch.bfloat16):
        self.is_w4 = source in W4_SOURCES
        call = (w4_call if self.is_w4 else w8_call)(seed, source, vocab, hidden)
        self.weight, self.format = (pack_w4 if self.is_w4 else pack_w8)(**call)
        self.vocab = vocab
        ggml = source in ("q8_0", "q4_0", "q4_1")
        hidden += -hidden % (32 if ggml else 8 if source.startswith("gptq") else 1)
        self.h = (2 * torch.randn(rows, hidden, generator=generator(seed + 1))).to(dtype)

    def logits(self, bias=None, **options):
        gemm = verify_gemm_w4 if self.is_w4 else verify_gemm_w8
        options |= {"num_outputs": self.vocab, "out_dtype": torch.float32}
        return gemm(self.h, self.weight, self.format, bias, **options)

    @property
    def given(self):
        return {"weight": self.weight, "weight_format": self.format, "vocab_size": self.vocab}


def arguments(op, rows, vocab, seed=0):
    """What the op takes beside the head."""
    if op is lm_head_topk:
        return {"k": 20}
    call = {}
    if op is not lm_head_sample:
        call["ids"] = torch.randint(-1, vocab, (rows, 3), generator=generator(seed))
    laws = {name: (values * -(-rows // 4))[:rows] for name, values in LAWS.items()}
    laws = one_request_each(rows, seeds=seed, **laws)
    if op is lm_head_gather:
        return call | {name: laws[name] for name in ("cu_verify", "temperature")}
    return call | laws | {"max_fallback_rows": rows}


def assert_same(got, want):
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@settings(max_examples=60)
@given(
    op=st.sampled_from(OPS),
    source=st.sampled_from(SOURCES),
    rows=st.sampled_from([1, 3, 65]),
    vocab=st.sampled_from([1, 31, 32, 33, 65, 511, 513, 600]),
    hidden=st.sampled_from([8, 32, 40, 160, 520]),
    dtype=st.sampled_from(FLOATS),
    start=st.sampled_from([0, 5, 512]),
    has_bias=st.booleans(),
    seed=st.integers(0, 2**31 - 1),
)
def test_equals_the_op_on_its_logits(op, source, rows, vocab, hidden, dtype, start, has_bias, seed):
    head = Head(seed, source, rows, vocab, hidden, dtype)
    bias = torch.randn(vocab, generator=generator(seed)) if has_bias else None
    call = arguments(op, rows, vocab, seed) | {"vocab_start": start, "logit_scale": 0.7}
    given = head.given | {"vocab_size": start + vocab}
    got = op(head.h, **given, bias=bias, **call)
    want = op(head.logits(bias), torch.eye(vocab), **call, vocab_size=start + vocab)
    assert_same(got, want)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("source", ["q4_1", "awq", "q8_0"])
def test_norm_rounding_and_padding(op, source):
    """Without vocab_size the padding of the last block counts: columns of zeros."""
    head = Head(3, source, 6, 72, 64)
    norm = torch.rand(64, generator=generator(0)).bfloat16() + 0.5
    call = arguments(op, 6, 72)
    rounded = head.logits(norm_weight=norm, eps=1e-5).bfloat16().float()
    got = op(head.h, **head.given, norm_weight=norm, eps=1e-5, round_logits=True, **call)
    assert_same(got, op(rounded, torch.eye(72), **call))
    padded = torch.nn.functional.pad(head.logits(), (0, 24))
    got = op(head.h, head.weight, weight_format=head.format, **call)
    assert_same(got, op(padded, torch.eye(96), **call))


@pytest.mark.parametrize("source", SOURCES)
def test_close_to_reference(source):
    head = Head(1, source, 9, 320, 96)
    given = {"weight": head.weight, "weight_format": head.format, "vocab_size": 320}
    got = lm_head_topk(head.h, **given, k=20)
    want = reference.lm_head_topk(head.h, **given, k=20)
    q = parse(head.weight, (320, 96), False, head.format)
    terms = (head.h.double().abs() @ magnitudes(q).T).amax(dim=1)
    assert_within(got.values, want.values, terms=terms[:, None])
    assert_within(got.lse, want.lse, terms=terms)


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
def test_only_on_the_cpu(op):
    call = {
        name: x.to("meta") if isinstance(x, torch.Tensor) else x
        for name, x in valid_call(op).items()
    }
    with pytest.raises(ValueError, match="weight_format must be None on meta"):
        op(**call)


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
