"""A model from a folder as transformers writes it: config.json, *.safetensors, tokenizer.json."""

import json
import math
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..decoder.linear import Matrix
from ..decoder.weights import ModelConfig, Weights
from .build import build, inv_freq
from .errors import ModelError
from .quantised_folder import QuantisedFolder
from .tokenizer import Tokenizer

_TYPES = ("llama", "qwen2", "qwen3")


class FolderModel:
    def __init__(self, path: Path):
        self.path = path
        self._json = self._read("config.json")
        if self._json.get("model_type") not in _TYPES:
            known = ", ".join(_TYPES)
            raise ModelError(
                f"{path}: model_type {self._json.get('model_type')} is not one of {known}"
            )
        if self._json.get("use_sliding_window"):
            raise ModelError(f"{path}: models with a sliding window are not supported")
        try:
            self.config = self._config()
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(f"{path}/config.json is incomplete: {error}") from None

    def _read(self, name: str, default: Any = None) -> dict[str, Any]:
        path = self.path / name
        if default is not None and not path.exists():
            return dict(default)
        try:
            value = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise ModelError(f"cannot read {path}: {error}") from None
        if not isinstance(value, dict):
            raise ModelError(f"{path} is not a JSON object")
        return value

    def _config(self) -> ModelConfig:
        c = self._json
        heads = int(c["num_attention_heads"])
        head_dim = int(c.get("head_dim") or c["hidden_size"] // heads)
        return ModelConfig(
            vocab_size=int(c["vocab_size"]),
            hidden=int(c["hidden_size"]),
            intermediate=int(c["intermediate_size"]),
            num_layers=int(c["num_hidden_layers"]),
            num_heads=heads,
            num_kv_heads=int(c.get("num_key_value_heads") or heads),
            head_dim=head_dim,
            max_position=int(c["max_position_embeddings"]),
            eps=float(c["rms_norm_eps"]),
            inv_freq=tuple(self._inv_freq(head_dim)),
        )

    def _inv_freq(self, head_dim: int) -> list[float]:
        # transformers 5 writes rope_parameters, earlier versions rope_theta and rope_scaling.
        rope = self._json.get("rope_parameters") or self._json.get("rope_scaling") or {}
        theta = float(rope.get("rope_theta") or self._json.get("rope_theta") or 10_000.0)
        freq = inv_freq(head_dim, theta)
        kind = rope.get("rope_type") or rope.get("type") or "default"
        if kind == "linear":
            return [f / float(rope["factor"]) for f in freq]
        if kind == "llama3":
            return [_llama3(f, rope) for f in freq]
        if kind != "default":
            raise ModelError(f"{self.path}: RoPE scaling {kind} is not supported")
        return freq

    def weights(self, dtype: torch.dtype, *, as_stored: bool = False) -> Weights:
        """`as_stored`: GPTQ and AWQ matrices stay quantised."""
        options = self._json.get("quantization_config")
        quantised = QuantisedFolder(str(self.path), options) if options else None
        if as_stored and quantised is None:
            raise ModelError(f"{self.path}: no tensor is of GPTQ or AWQ")
        index = self._read("model.safetensors.index.json", {}).get("weight_map")
        names = sorted(set(index.values())) if index else ["model.safetensors"]
        try:
            files = [safe_open(self.path / name, framework="pt") for name in names]
            where = {key: file for file in files for key in file.keys()}

            def tensors(name: str) -> Tensor | None:
                return where[name].get_tensor(name) if name in where else None

            def source(name: str) -> Matrix | None:
                if name == "lm_head.weight" and self._json.get("tie_word_embeddings"):
                    return None
                if quantised is None:
                    return tensors(name)
                return quantised.matrix(tensors, name, as_stored)

            return build(self.config, source, dtype)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"cannot read the tensors of {self.path}: {error}") from None

    def tokenizer(self) -> Tokenizer:
        path = self.path / "tokenizer.json"
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the only type that the library raises
            raise ModelError(f"cannot read {path}: {error}") from None
        options = self._read("tokenizer_config.json", {})
        template = self.path / "chat_template.jinja"
        generation = self._read("generation_config.json", {})
        stops = generation.get("eos_token_id", self._json.get("eos_token_id"))
        stops = stops if isinstance(stops, list) else [stops]
        bos = _content(options.get("bos_token"))
        return Tokenizer(
            backend,
            stop_ids=tuple(stop for stop in stops if stop is not None),
            chat_template=template.read_text()
            if template.exists()
            else str(options.get("chat_template") or ""),
            bos=bos,
            eos=_content(options.get("eos_token")),
            add_bos=bool(options.get("add_bos_token")),
        )


def _content(token: Any) -> str:
    """A token is written as its text or as an object that holds it."""
    return str(token.get("content", "") if isinstance(token, dict) else token or "")


def _llama3(freq: float, rope: dict[str, Any]) -> float:
    """Low frequencies are divided by the factor, high ones kept, those between interpolated."""
    turns = rope["original_max_position_embeddings"] * freq / (2 * math.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    kept = min(max((turns - low) / (high - low), 0.0), 1.0)
    return freq * (kept + (1 - kept) / rope["factor"])
