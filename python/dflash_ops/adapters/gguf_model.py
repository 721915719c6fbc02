"""A model from a GGUF file of architecture llama, qwen2 or qwen3."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..decoder.linear import BLOCK_BYTES, Matrix, QuantisedMatrix
from ..decoder.weights import ModelConfig, Weights
from .build import build, inv_freq
from .errors import ModelError
from .gguf import GGUFFile
from .quants import FORMATS
from .tokenizer import Tokenizer, bpe_tokenizer

_ARCHITECTURES = ("llama", "qwen2", "qwen3")

# Name in transformers -> name in GGUF, for a layer and for the rest.
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_STOP_TOKENS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>")


class GGUFModel:
    def __init__(self, path: Path):
        self.file = GGUFFile(path)
        self.arch = self._value("general.architecture", str)
        if self.arch not in _ARCHITECTURES:
            known = ", ".join(_ARCHITECTURES)
            raise ModelError(f"{path}: architecture {self.arch} is not one of {known}")
        self.config = self._config()

    def _value(self, key: str, kind: type, default: Any = None) -> Any:
        value = self.file.metadata.get(key, default)
        if kind is float and isinstance(value, int):
            value = float(value)
        if not isinstance(value, kind):
            raise ModelError(f"{self.file.path}: {key} is {value!r}, expected a {kind.__name__}")
        return value

    def _config(self) -> ModelConfig:
        def number(key: str, default: int | None = None) -> int:
            value: int = self._value(f"{self.arch}.{key}", int, default)
            if value < 1:
                raise ModelError(f"{self.file.path}: {self.arch}.{key} is {value}")
            return value

        heads, hidden = number("attention.head_count"), number("embedding_length")
        head_dim = number("attention.key_length", hidden // heads)
        if self.file.metadata.get(f"{self.arch}.rope.scaling.type", "none") != "none":
            raise ModelError(f"{self.file.path}: RoPE scaling is not supported")
        theta = self._value(f"{self.arch}.rope.freq_base", float, 10_000.0)
        freq = torch.tensor(inv_freq(head_dim, theta), dtype=torch.float64)
        factors = self.file.tensor("rope_freqs.weight")  # how GGUF writes Llama 3's scaling
        if factors is not None:
            freq = freq / factors.double()
        embed = self.file.tensors.get("token_embd.weight")
        if embed is None:
            raise ModelError(f"{self.file.path}: the model has no tensor token_embd.weight")
        return ModelConfig(
            vocab_size=embed.shape[0],
            hidden=hidden,
            intermediate=number("feed_forward_length"),
            num_layers=number("block_count"),
            num_heads=heads,
            num_kv_heads=number("attention.head_count_kv", heads),
            head_dim=head_dim,
            max_position=number("context_length"),
            eps=self._value(f"{self.arch}.attention.layer_norm_rms_epsilon", float),
            inv_freq=tuple(freq.tolist()),
        )

    def weights(self, dtype: torch.dtype, *, as_stored: bool = False) -> Weights:
        """`as_stored`: matrices of Q4_0, Q4_1 and Q8_0 blocks stay quantised."""
        if as_stored and not any(self._stored_source(name) for name in self.file.tensors):
            raise ModelError(f"{self.file.path}: no tensor is of Q4_0, Q4_1 or Q8_0")
        return build(self.config, lambda name: self._matrix(name, as_stored), dtype)

    def _matrix(self, name: str, as_stored: bool) -> Matrix | None:
        stem, _, kind = name.rpartition(".")
        layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)
        own = f"blk.{layer[1]}.{_LAYER_NAMES[layer[2]]}" if layer else _NAMES[stem]
        matrix = self._read(f"{own}.{kind}", as_stored)
        if matrix is not None and self.arch == "llama" and own.endswith(("attn_q", "attn_k")):
            return self._halves_apart(matrix)
        return matrix

    def _read(self, name: str, as_stored: bool) -> Matrix | None:
        if as_stored and (source := self._stored_source(name)):
            return QuantisedMatrix(source, self.file.rows(name))
        return self.file.tensor(name)

    def _stored_source(self, name: str) -> str | None:
        """The quantised format of a matrix that can stay in it."""
        info = self.file.tensors.get(name)
        if info is None or len(info.shape) != 2:
            return None
        source = FORMATS[info.format].name.lower()
        return source if source in BLOCK_BYTES else None

    def _halves_apart(self, matrix: Matrix) -> Matrix:
        """llama files hold the rows of a head in pairs (i, i + D/2), for interleaved RoPE."""
        if isinstance(matrix, QuantisedMatrix):  # a row is whole blocks
            return replace(matrix, weight=self._rows_apart(matrix.weight))
        return self._rows_apart(matrix)

    def _rows_apart(self, tensor: Tensor) -> Tensor:
        half = self.config.head_dim // 2
        if tensor.shape[0] % (2 * half):
            raise ModelError(f"{self.file.path}: q or k has {tensor.shape[0]} rows")
        return tensor.reshape(-1, half, 2, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)

    def tokenizer(self) -> Tokenizer:
        if self._value("tokenizer.ggml.model", str) != "gpt2":
            raise ModelError(f"{self.file.path}: only byte-level BPE tokenizers are supported")
        tokens = self._value("tokenizer.ggml.tokens", list)
        kinds = self._value("tokenizer.ggml.token_type", list, [1] * len(tokens))
        try:
            backend = bpe_tokenizer(
                tokens,
                self._value("tokenizer.ggml.merges", list),
                special=[t for t, kind in zip(tokens, kinds, strict=True) if kind == 3],
                added=[t for t, kind in zip(tokens, kinds, strict=True) if kind == 4],
                splitter=self._value("tokenizer.ggml.pre", str, "default"),
            )
        except (ValueError, TypeError) as error:
            raise ModelError(f"{self.file.path}: bad tokenizer: {error}") from None
        stops = {backend.token_to_id(token) for token in _STOP_TOKENS}
        stops |= {self.file.metadata.get(f"tokenizer.ggml.{n}_token_id") for n in ("eos", "eot")}

        def text_of(name: str) -> str:
            token_id = self.file.metadata.get(f"tokenizer.ggml.{name}_token_id")
            in_range = isinstance(token_id, int) and 0 <= token_id < len(tokens)
            return str(tokens[token_id]) if in_range else ""

        return Tokenizer(
            backend,
            stop_ids=tuple(sorted(stop for stop in stops if isinstance(stop, int))),
            chat_template=self._value("tokenizer.chat_template", str, ""),
            bos=text_of("bos"),
            eos=text_of("eos"),
            add_bos=self._value("tokenizer.ggml.add_bos_token", bool, False),
        )
