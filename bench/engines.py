"""Other engines on SmolLM2's file, for those that are installed: see requirements-bench.txt.

Each is a function of prompts (their tokens) and of how many tokens it decodes greedily after each,
one prompt after another, whatever the model says about the end.
"""

import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path

import torch

Run = Callable[[list[list[int]], int], int]  # -> tokens decoded

# llama.cpp looks for the last `n` tokens and proposes what followed, `m` of them; its defaults are
# for long texts, so shorter ones stand beside them.
NGRAMS = {"n-gram": None, "n-gram 3, 8": (3, 8), "n-gram 4, 12": (4, 12)}
PROMPT_LOOKUP = 8
CONTEXT = 2048


def plain(gguf: Path) -> dict[str, Callable[[], Run]]:
    return _llama_cpp(gguf, {"llama.cpp": None}) | _transformers(gguf, {"transformers": {}})


def speculative(gguf: Path) -> dict[str, Callable[[], Run]]:
    llama_cpp = _llama_cpp(gguf, {f"llama.cpp {name}": (n,) for name, n in NGRAMS.items()})
    lookup = {"prompt_lookup_num_tokens": PROMPT_LOOKUP}
    return llama_cpp | _transformers(gguf, {"transformers prompt lookup": lookup})


def _llama_cpp(gguf: Path, modes: dict) -> dict[str, Callable[[], Run]]:
    if importlib.util.find_spec("xllamacpp") is None:
        return {}
    import xllamacpp

    def engine(mode) -> Run:
        params = xllamacpp.CommonParams()
        params.model.path = str(gguf)
        params.n_ctx, params.n_parallel, params.n_gpu_layers = CONTEXT, 1, 0
        params.hostnames = ["127.0.0.1"]
        for cpu in (params.cpuparams, params.cpuparams_batch):
            cpu.n_threads = torch.get_num_threads()
        if mode is not None:
            kinds = xllamacpp.common_speculative_type
            params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
            if mode[0] is not None:
                ngram = params.speculative.ngram_simple
                ngram.size_n, ngram.size_m = mode[0]
        server = xllamacpp.Server(params)

        def run(prompts: list[list[int]], num_tokens: int) -> int:
            request = {"n_predict": num_tokens, "temperature": 0, "ignore_eos": True}
            results = [
                server.handle_completions(request | {"prompt": prompt, "cache_prompt": False})
                for prompt in prompts
            ]
            return sum(result["usage"]["completion_tokens"] for result in results)

        return run

    return {name: lambda mode=mode: engine(mode) for name, mode in modes.items()}


def _transformers(gguf: Path, modes: dict) -> dict[str, Callable[[], Run]]:
    if any(importlib.util.find_spec(name) is None for name in ("transformers", "accelerate")):
        return {}

    def engine(options) -> Run:
        model = _transformers_model(gguf)

        def run(prompts: list[list[int]], num_tokens: int) -> int:
            count = 0
            for prompt in prompts:
                ids = torch.tensor([prompt])
                out = model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    **options,
                    max_new_tokens=num_tokens,
                    min_new_tokens=num_tokens,
                    do_sample=False,
                )
                count += out.shape[1] - len(prompt)
            return count

        return run

    return {name: lambda options=options: engine(options) for name, options in modes.items()}


@functools.cache
def _transformers_model(gguf: Path) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), gguf_file=gguf.name, dtype=torch.bfloat16
    ).eval()
