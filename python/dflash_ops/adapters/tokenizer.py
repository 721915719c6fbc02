"""Text <-> token ids, chat templates, and text that comes token by token."""

from collections.abc import Iterable
from typing import Any

import tokenizers
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from .errors import ModelError

# How a byte-level BPE cuts text before it merges, by the name in `tokenizer.ggml.pre`.
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PATTERNS = {
    "qwen2": _CONTRACTIONS + r"\p{N}" + _REST,
    "llama-bpe": _CONTRACTIONS + r"\p{N}{1,3}" + _REST,
}
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def bpe_tokenizer(
    tokens: list[str], merges: list[str], special: list[str], added: list[str], splitter: str
) -> tokenizers.Tokenizer:
    """`special` tokens are markup and are not decoded; `added` ones are ordinary text."""
    pairs = [(left, right) for left, right in (merge.split(" ", 1) for merge in merges)]
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    if splitter in _PATTERNS:
        cut: Any = pre_tokenizers.Split(Regex(_PATTERNS[splitter]), "isolated")
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    elif splitter in ("smollm", "default", "gpt-2"):
        cut = pre_tokenizers.Digits(individual_digits=splitter == "smollm")
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        raise ValueError(f"unknown pre-tokenizer {splitter}")
    if splitter == "qwen2":
        backend.normalizer = normalizers.NFC()
    steps = [to_bytes] if splitter in ("default", "gpt-2") else [cut, to_bytes]
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    backend.add_tokens([AddedToken(t, normalized=False) for t in added])
    return backend


class Tokenizer:
    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        stop_ids: tuple[int, ...],
        chat_template: str = "",
        bos: str = "",
        eos: str = "",
        add_bos: bool = False,
    ):
        self.backend = backend
        self.stop_ids = stop_ids
        self._template = chat_template
        self._names = {"bos_token": bos, "eos_token": eos}
        self._prefix = bos if add_bos else ""

    def encode(self, text: str) -> list[int]:
        return list(self.backend.encode(text, add_special_tokens=False).ids)

    def encode_prompt(self, prompt: str) -> list[int]:
        """The prompt as the user's turn of a chat; as it is, if the model has no chat template."""
        if not self._template:
            return self.encode(self._prefix + prompt)
        messages = [{"role": "user", "content": prompt}]
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _refuse
        try:
            text = environment.from_string(self._template).render(
                messages=messages, add_generation_prompt=True, **self._names
            )
        except TemplateError as error:
            raise ModelError(f"the model's chat template fails: {error}") from None
        return self.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        return str(self.backend.decode(list(ids), skip_special_tokens=True))


def _refuse(message: str) -> None:
    raise TemplateError(message)


class TextStream:
    """The text of a growing list of ids, in pieces that are final.

    A character can need several tokens, so text that ends in an unfinished one is held back. Each
    piece is decoded together with the ids of the piece before it: some decoders treat the first
    token of a text differently.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._context = 0  # ids[_context : _done] are text already given
        self._done = 0

    def push(self, ids: Iterable[int]) -> str:
        self._ids += ids
        piece = self._pending()
        if not piece or piece.endswith(_REPLACEMENT):
            return ""
        self._context, self._done = self._done, len(self._ids)
        return piece

    def close(self) -> str:
        """What is left, finished or not."""
        piece = self._pending()
        self._context = self._done = len(self._ids)
        return piece

    def _pending(self) -> str:
        given = self._tokenizer.decode(self._ids[self._context : self._done])
        return self._tokenizer.decode(self._ids[self._context :])[len(given) :]
