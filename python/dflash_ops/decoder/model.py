"""The target model over packed rows: what it computes is a sequence of this library's ops.

Rows of any kind stand in one call. Every op is row invariant, so the hidden state of a token does
not depend on what else is in the call, nor on how often its row was computed.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import Accepted
from .batch import Batch
from .cache import KVCache
from .linear import Linear
from .state import State
from .weights import LayerWeights, ModelConfig, Weights

# The ops themselves, looked up once: a step calls six a layer, and what the public functions check
# first holds here by construction.
_rope_append_kv = torch.ops.dflash.rope_append_kv.out
_tree_attention = torch.ops.dflash.tree_attention.out
_lm_head_sample = torch.ops.dflash.lm_head_sample.default
_lm_head_verify = torch.ops.dflash.lm_head_verify.default
_verify_chain = torch.ops.dflash.verify_chain.default

_MAX_FALLBACK_ROWS = 16  # rows whose filter needs a second pass over the head, at a time


class _Buffers(NamedTuple):
    """Of T rows. They are views into the memory of the largest step, made once per T."""

    x: Tensor  # [T, hidden]
    x_mid: Tensor
    qkv: Tensor  # [T, (num_heads + 2 num_kv_heads) head_dim]
    q: Tensor  # [T, num_heads, head_dim], a view of qkv, as the next two
    k: Tensor
    v: Tensor
    q_rotated: Tensor
    attn: Tensor  # [T, num_heads, head_dim]
    attn_rows: Tensor  # [T, num_heads head_dim], the same memory
    lse: Tensor  # [T, num_heads]
    inner: Tensor  # [T, intermediate]


class _Layer(NamedTuple):
    """LayerWeights, packed."""

    attn_norm: Tensor
    qkv: Linear
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear

    @staticmethod
    def of(layer: LayerWeights) -> "_Layer":
        return _Layer(
            attn_norm=layer.attn_norm,
            qkv=Linear(layer.qkv),
            qkv_bias=layer.qkv_bias,
            q_norm=layer.q_norm,
            k_norm=layer.k_norm,
            o=Linear(layer.o),
            mlp_norm=layer.mlp_norm,
            gate_up=Linear(layer.gate_up, pair=True),
            down=Linear(layer.down),
        )


class Model:
    """A decoder of the Llama family, in the dtype of its embedding: bf16 or fp32.

    Args:
        config: its shape.
        weights: its tensors; packed here, `weights` may be dropped afterwards.
        max_rows: most rows of one step.
        max_position: positions that RoPE covers; at most ``config.max_position``.
    """

    def __init__(
        self, config: ModelConfig, weights: Weights, *, max_rows: int, max_position: int
    ) -> None:
        self.config = config
        self.max_rows, self.max_position = max_rows, max_position
        self.dtype, self.device = weights.embed.dtype, weights.embed.device
        self._embed = weights.embed
        self._layers = [_Layer.of(layer) for layer in weights.layers]
        self._final_norm = weights.final_norm
        self._lm_head = Linear(weights.lm_head)
        self._cos_sin = config.cos_sin(max_position).to(self.device)
        self._buffers: dict[int, _Buffers] = {}
        self._memory = self._allocate(max_rows)

    def forward(self, batch: Batch, cache: KVCache, state: State) -> Tensor:
        """``[T, hidden]`` after the last layer, before the final norm. K, V go to the cache.

        The result is overwritten by the next call.
        """
        config, b = self.config, self._of_rows(len(batch.ids))
        eps = config.eps
        append = {"positions": batch.positions, "slots": batch.slots, "cos_sin": self._cos_sin}
        attend = {
            "block_table": state.block_table,
            "cu_rows": batch.cu_rows,
            "ctx_lens": state.ctx_lens,
            "req_rows": batch.req_rows,
            "out": b.attn,
            "lse": b.lse,
            **batch.tree,
        }
        torch.index_select(self._embed, 0, batch.ids, out=b.x)
        for w, k_cache, v_cache in zip(self._layers, cache.k, cache.v, strict=True):
            w.qkv(b.x, w.qkv_bias, norm_weight=w.attn_norm, eps=eps, out=b.qkv)
            _rope_append_kv(
                b.q,
                b.k,
                b.v,
                k_cache,
                v_cache,
                **append,
                q_norm=w.q_norm,
                k_norm=w.k_norm,
                eps=eps,
                out=b.q_rotated,
            )
            _tree_attention(b.q_rotated, k_cache, v_cache, **attend)
            w.o(b.attn_rows, residual=b.x, out=b.x_mid)
            w.gate_up(b.x_mid, norm_weight=w.mlp_norm, eps=eps, act="silu_mul", out=b.inner)
            w.down(b.inner, residual=b.x_mid, out=b.x)
        return b.x

    def sample(self, hidden: Tensor, batch: Batch, state: State) -> Tensor:
        """``[Tv]`` the target's own token after each verify row."""
        laws = _laws(batch, state)
        ids: Tensor = _lm_head_sample(hidden, **self._head(batch), **laws)[0]
        return ids

    def verify(
        self, hidden: Tensor, batch: Batch, state: State, rule: str, max_path: int
    ) -> Accepted:
        """Rejection verification of deterministic chains; the logits are not in memory."""
        drafts = batch.verify_ids.roll(-1)[:, None]  # of the row after each
        head, laws = self._head(batch), _laws(batch, state)
        record = _lm_head_verify(hidden, ids=drafts, **head, **laws)
        got = _verify_chain(
            batch.verify_ids,
            record_ids=drafts,
            record=list(record),
            rule=rule,
            max_path=max_path,
            verify_rows=batch.verify_rows,
            vocab_size=self.config.vocab_size,
            **laws,
        )
        return Accepted(*got[:4])

    def _head(self, batch: Batch) -> dict[str, Any]:
        return {
            "weight": self._lm_head.packed,
            "weight_format": self._lm_head.format,
            "verify_rows": batch.verify_rows,
            "norm_weight": self._final_norm,
            "eps": self.config.eps,
            "vocab_size": self.config.vocab_size,
            "max_fallback_rows": min(max(len(batch.verify_rows), 1), _MAX_FALLBACK_ROWS),
        }

    def logits(self, hidden: Tensor) -> Tensor:
        """``[T, vocab_size]`` fp32: what `sample` never puts in memory, for tests and tools."""
        out = torch.empty(len(hidden), self.config.vocab_size, device=self.device)
        self._lm_head(hidden, norm_weight=self._final_norm, eps=self.config.eps, out=out)
        return out

    def _allocate(self, num_rows: int) -> _Buffers:
        c = self.config
        q_size, kv_size = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim

        def empty(*shape: int) -> Tensor:
            return torch.empty(num_rows, *shape, dtype=self.dtype, device=self.device)

        qkv, attn = empty(q_size + 2 * kv_size), empty(c.num_heads, c.head_dim)
        q, k, v = (
            part.unflatten(1, (-1, c.head_dim)) for part in qkv.split([q_size, kv_size, kv_size], 1)
        )
        return _Buffers(
            x=empty(c.hidden),
            x_mid=empty(c.hidden),
            qkv=qkv,
            q=q,
            k=k,
            v=v,
            q_rotated=empty(c.num_heads, c.head_dim),
            attn=attn,
            attn_rows=attn.flatten(1),
            lse=torch.empty(num_rows, c.num_heads, device=self.device),
            inner=empty(c.intermediate),
        )

    def _of_rows(self, num_rows: int) -> _Buffers:
        if num_rows not in self._buffers:
            self._buffers[num_rows] = _Buffers(*(whole[:num_rows] for whole in self._memory))
        return self._buffers[num_rows]


def _laws(batch: Batch, state: State) -> dict[str, Tensor]:
    """How every verify row's token is chosen."""
    return {
        "positions": batch.verify_positions,
        "cu_verify": batch.cu_verify,
        "req_rows": batch.req_rows,
        "temperature": state.temperature,
        "top_k": state.top_k,
        "top_p": state.top_p,
        "min_p": state.min_p,
        "seeds": state.seeds,
    }
