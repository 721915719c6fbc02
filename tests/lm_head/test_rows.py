"""What all ops over the head have in common: a row's bits are its own, whoever shares the call."""

import pytest
import torch
from heads import all_ops, fp32_logits, random_head, sampling

from dflash_ops import (
    _C,
    lm_head_gather,
    lm_head_sample,
    lm_head_topk,
    lm_head_verify,
    pack_weight,
    reference,
    sample_logits,
)

pytestmark = pytest.mark.sm90


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_row_has_its_bits_in_any_call(device, dtype):
    """Rows on both sides of 32, where CUDA takes another tile."""
    h, weight, bias = random_head(0, 40, 301, 40, dtype)
    options = {"norm_weight": torch.rand(40).to(dtype), "vocab_start": 40, "vocab_size": 341}
    whole = all_ops(h, weight, bias, torch.arange(40), **options)
    for rows in ([39], range(9, 12), range(3, 35)):
        part = all_ops(h, weight, bias, torch.tensor(list(rows)), **options)
        for got, want in zip(part, whole, strict=True):
            assert torch.equal(got, want[list(rows)])


WIDE = {"vocab_start": 100, "vocab_size": 70_100}  # on CUDA a CTA has several tiles of ids


@pytest.mark.parametrize(("rows", "vocab"), [(2, 70_000), (33, 35_000)])
def test_best_of_many_tiles(device, rows, vocab):
    h, weight, bias = random_head(2, rows, vocab, 4, exact=True)
    got = lm_head_topk(h, weight, bias, k=64, **WIDE)
    want = reference.lm_head_topk(h, weight, bias, k=64, **WIDE)
    assert torch.equal(got.ids, want.ids) and torch.equal(got.values.double(), want.values)


def test_sums_ranks_and_draws_of_many_tiles(device):
    h, weight, bias = random_head(2, 2, 70_000, 4)
    logits = fp32_logits(h, weight, bias)
    top = lm_head_topk(h, weight, bias, k=64, **WIDE)
    lse = [_C.hooks.lse(row.data_ptr(), 70_000, 100) for row in logits]
    assert torch.equal(top.lse, torch.tensor(lse))
    ids = top.ids[:, [20, 63]]
    assert lm_head_gather(h, weight, ids, bias, **WIDE).ranks.tolist() == [[20, 63]] * 2
    law = sampling(torch.arange(2))  # greedy, and unfiltered
    drawn = lm_head_sample(h, weight, bias, **law, **WIDE)
    assert torch.equal(drawn.ids, sample_logits(logits, **law, **WIDE).ids)


def test_given_ids_have_the_logits_of_the_pass(device):
    """With every option that shapes a logit."""
    g = torch.Generator().manual_seed(0)
    h, weight, bias = random_head(1, 6, 300, 64, torch.float16, scale=3.0)
    options = {
        "logit_scale": 0.7,
        "softcap": 9.0,
        "round_logits": True,
        "vocab_start": 50,
        "vocab_size": 340,
        "token_mask": torch.randint(-(2**31), 2**31 - 1, (6, 11), generator=g).int(),
        "adj_cu": torch.arange(7) * 4,
        "adj_ids": torch.randint(50, 60, (24,), generator=g),
        "adj_values": torch.randn(24, generator=g) * 4,
    }
    ids = torch.randint(50, 340, (6, 20), generator=g)
    ids[:, :10] = torch.arange(50, 60)
    law = {"positions": torch.arange(6), "cu_verify": torch.arange(7)}
    for layout in (weight, pack_weight(weight)):
        cut = bias if layout.dim() == 2 else bias[:290]
        gathered = lm_head_gather(h, layout, ids, cut, **options)
        record = lm_head_verify(h, layout, ids, cut, **law, **options)
        assert torch.equal(gathered.lse, record.lse)
        assert torch.equal(gathered.logprobs, record.values - record.lse[:, None])
        best = lm_head_topk(h, layout, cut, k=1, **options)
        first = gathered.ranks == 0
        assert torch.equal(first, ids == best.ids) and (gathered.logprobs.isfinite()).any()


def test_addresses_past_32_bits(device):
    buffer = torch.empty(2**32 + 64, dtype=torch.bfloat16, device=device)  # few pages are touched
    h, weight, bias = random_head(3, 3, 3, 20, torch.bfloat16)
    rows = torch.tensor([2, 0, 1])
    want = all_ops(h, weight, bias, rows)
    far = buffer.as_strided((3, 20), (2**31, 1))
    for first, second in ((far, weight), (h, far)):
        far.copy_(h if first is far else weight)
        got = all_ops(first, second, bias, rows)
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
