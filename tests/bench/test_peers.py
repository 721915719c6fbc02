"""bench/peers.py on stand-ins for the libraries: what it hands them, by what their pages say."""

import sys
from types import ModuleType

import peers
import pytest
import torch

ROWS, KEYS, HEADS, KV_HEADS, DIM, PAGE = 3, 37, 4, 2, 8, 16


def attended(q, k, v):
    """q [rows, heads, dim], k and v [keys, kv_heads, dim]; the last row sees the last key."""
    mask = torch.arange(len(k)) <= torch.arange(len(k) - len(q), len(k))[:, None]
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return sdpa(q, k, v, attn_mask=mask, enable_gqa=True)[0].transpose(0, 1)


class Wrapper:
    def __init__(self, workspace, layout):
        assert workspace.dtype == torch.uint8 and layout == "NHD"

    def plan(self, rows, indptr, indices, last, heads, kv_heads, dim, page, causal, q_data_type):
        assert rows.tolist() == [0, ROWS] and causal
        assert (heads, kv_heads, dim, page) == (HEADS, KV_HEADS, DIM, PAGE)
        self._pages = indices[indptr[0] : indptr[1]].long()
        self._keys = (len(self._pages) - 1) * page + int(last)

    def run(self, q, caches):
        k, v = (cache[self._pages].flatten(0, 1)[: self._keys] for cache in caches)
        return attended(q, k, v)


def varlen(q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, seqused_k, block_table, causal):
    assert (max_seqlen_q, max_seqlen_k, causal) == (ROWS, KEYS, True)
    k, v = (x[block_table[0].long()].flatten(0, 1)[: int(seqused_k)] for x in (k, v))
    return attended(q, k, v)


def norm(x, weight, eps):
    return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)


def sampler(probs, top_k, top_p):
    assert probs.sum(1).allclose(torch.ones(len(probs))) and (top_k, top_p) == (5, 0.9)
    return probs.argmax(1)


STAND_INS = {
    "flashinfer": {"BatchPrefillWithPagedKVCacheWrapper": Wrapper},
    "flashinfer.norm": {"rmsnorm": norm},
    "flashinfer.sampling": {"top_k_top_p_sampling_from_probs": sampler},
    "flash_attn": {
        "flash_attn_func": lambda q, k, v, causal: (
            attended(q[0], k[0], v[0])[None] if causal else None
        )
    },
    "sgl_kernel": {"rmsnorm": norm, "top_k_top_p_sampling_from_probs": sampler},
    "vllm": {},
    "vllm.vllm_flash_attn": {"flash_attn_varlen_func": varlen},
    "vllm._custom_ops": {"rms_norm": lambda out, *args: out.copy_(norm(*args))},
}


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch):
    for name, functions in STAND_INS.items():
        module = ModuleType(name)
        vars(module).update(functions)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(peers, "installed", lambda module, device: module in STAND_INS)


def test_attention():
    g = torch.Generator().manual_seed(0)
    caches = torch.randn(2, 5, PAGE, KV_HEADS, DIM, generator=g)
    q, table = torch.randn(ROWS, HEADS, DIM, generator=g), torch.tensor([3, 0, 4])
    want = attended(q, *(cache[table].flatten(0, 1)[:KEYS] for cache in caches))
    calls = peers.attention(q, *caches, table, KEYS)
    assert len(calls) == 3
    for name, call in calls.items():
        assert torch.equal(call(), want), name


def test_norm_and_sampling():
    x, weight = torch.randn(4, 8), torch.rand(8)
    calls = peers.rmsnorm(x, weight, 1e-6)
    assert len(calls) == 3 and all(torch.equal(c(), norm(x, weight, 1e-6)) for c in calls.values())
    calls = peers.sampling(x, temperature=0.5, top_k=5.0, top_p=0.9)
    assert len(calls) == 2 and all(torch.equal(c(), x.argmax(1)) for c in calls.values())
    assert peers.sampling(x) == peers.sampling(x, temperature=1.0) == {}


def test_none_on_a_cpu(monkeypatch):
    monkeypatch.undo()
    assert peers.rmsnorm(torch.zeros(1, 8), torch.ones(8), 1e-6) == {}
