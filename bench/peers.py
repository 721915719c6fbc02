"""Kernels of other libraries for the GPU, of those that are installed: each call is made when it is
first asked for, since it may fail with the version that is there."""

import functools
import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor

Call = Callable[[], Tensor]


def installed(module: str, device: torch.device) -> bool:
    return device.type == "cuda" and importlib.util.find_spec(module) is not None


def _of(device: torch.device, *makers: tuple[str, str, Callable[[], Call]]) -> dict[str, Call]:
    """Name, package and a function that makes the call."""
    calls = {}
    for name, module, make in makers:
        if installed(module, device):
            made = functools.cache(make)
            calls[name] = lambda made=made: made()()
    return calls


def attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, table: Tensor, keys: int) -> dict:
    """One request, whose last rows are q [rows, heads, dim]; its pages are those of `table`."""
    rows, heads, dim = q.shape
    page_size, kv_heads = k_cache.shape[1:3]

    def ints(*values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=q.device)

    def flashinfer() -> Call:
        from flashinfer import BatchPrefillWithPagedKVCacheWrapper

        workspace = torch.empty(2**27, dtype=torch.uint8, device=q.device)
        wrapper = BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
        last_page = ints((keys - 1) % page_size + 1)
        pages = ints(0, len(table)), table.int(), last_page
        shape = heads, kv_heads, dim, page_size
        wrapper.plan(ints(0, rows), *pages, *shape, causal=True, q_data_type=q.dtype)
        return lambda: wrapper.run(q, (k_cache, v_cache))

    def flash_attn() -> Call:
        from flash_attn import flash_attn_func

        k, v = (cache[table].flatten(0, 1)[None, :keys] for cache in (k_cache, v_cache))
        return lambda: flash_attn_func(q[None], k, v, causal=True)[0]

    def vllm() -> Call:
        from vllm.vllm_flash_attn import flash_attn_varlen_func

        options = {
            "max_seqlen_q": rows,
            "cu_seqlens_q": ints(0, rows),
            "max_seqlen_k": keys,
            "seqused_k": ints(keys),
            "block_table": table.int()[None],
            "causal": True,
        }
        return lambda: flash_attn_varlen_func(q, k_cache, v_cache, **options)

    return _of(
        q.device,
        ("FlashInfer", "flashinfer", flashinfer),
        ("flash-attn, keys in a row", "flash_attn", flash_attn),
        ("vLLM's flash-attn", "vllm", vllm),
    )


def rmsnorm(x: Tensor, weight: Tensor, eps: float) -> dict:
    def flashinfer() -> Call:
        from flashinfer.norm import rmsnorm

        return lambda: rmsnorm(x, weight, eps)

    def sgl_kernel() -> Call:
        from sgl_kernel import rmsnorm

        return lambda: rmsnorm(x, weight, eps)

    def vllm() -> Call:
        from vllm._custom_ops import rms_norm

        out = torch.empty_like(x)

        def call() -> Tensor:
            rms_norm(out, x, weight, eps)
            return out

        return call

    return _of(
        x.device,
        ("FlashInfer", "flashinfer", flashinfer),
        ("sgl-kernel", "sgl_kernel", sgl_kernel),
        ("vLLM", "vllm", vllm),
    )


def sampling(logits: Tensor, temperature: float = 0, top_k: float = 0, top_p: float = 1) -> dict:
    """Laws with a filter: a softmax, then their sampler of probabilities."""
    if temperature == 0 or (top_k == 0 and top_p >= 1):
        return {}
    most = int(top_k) or logits.shape[1]

    def sampler(module: str) -> Call:
        sample = importlib.import_module(module).top_k_top_p_sampling_from_probs
        return lambda: sample((logits / temperature).softmax(dim=1), most, top_p)

    return _of(
        logits.device,
        ("FlashInfer", "flashinfer", lambda: sampler("flashinfer.sampling")),
        ("sgl-kernel", "sgl_kernel", lambda: sampler("sgl_kernel")),
    )
