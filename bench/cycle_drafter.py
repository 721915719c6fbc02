"""A DFlash 2 drafter of random weights as a sequence of ops: the block of masks, its layers with
their convolutions, and the candidates of every slot."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from dflash_ops import (
    Block,
    block_conv,
    context_kv,
    lm_head_topk,
    pack_weight,
    prepare_block,
    rmsnorm,
    rope_append_kv,
    tree_attention,
    verify_gemm,
)
from dflash_ops.decoder import ModelConfig
from dflash_ops.decoder.state import State

TAPS, CONV_GROUP, WINDOW = 2, 16, 2048


class Draft(NamedTuple):
    """Of B requests with D slots of K candidates each."""

    block: Block
    values: Tensor  # [B, D, K] logits
    ids: Tensor  # [B, D, K]
    lse: Tensor  # [B, D]
    hidden: Tensor  # [B, D, H], normed: what the candidate selector takes


class Random:
    """Tensors of normal numbers, of size 1 / sqrt(fan-in)."""

    def __init__(self, seed: int, dtype: torch.dtype, device: torch.device) -> None:
        self._generator = torch.Generator(device).manual_seed(seed)
        self._like = {"dtype": dtype, "device": device}

    def __call__(self, *shape: int, scale: float = 1.0) -> Tensor:
        x = torch.empty(shape, **self._like).normal_(generator=self._generator)
        return x.mul_(scale / math.sqrt(shape[-1]))

    def norm(self, size: int) -> Tensor:
        return 1 + self(size) / 4


class _Layer(NamedTuple):
    norms: list[Tensor]  # of attention and MLP: [H]
    conv_projections: list[Tensor]  # [2 * taps * groups, H]
    conv_bases: list[Tensor]  # [2, taps, H]
    qkv: Tensor
    q_norm: Tensor
    k_norm: Tensor
    o: Tensor
    gate_up: Tensor
    down: Tensor


class Drafter:
    """
    Args:
        config: its shape; heads, head_dim and vocabulary are the target's.
        head: the target's ``weight`` and ``vocab_size``, as the lm_head ops take them.
        embed: the target's ``[V, H]``.
        cache_shape: of one layer's keys; pages and their tables are those of the target.
        drafts: D, tokens of a block after the anchor.
    """

    def __init__(
        self,
        config: ModelConfig,
        head: dict,
        embed: Tensor,
        cos_sin: Tensor,
        cache_shape: tuple[int, ...],
        drafts: int,
        random: Random,
    ) -> None:
        self.config, self.drafts, self._head, self._embed = config, drafts, head, embed
        self._cos_sin = cos_sin
        hidden, kv_size = config.hidden, config.num_kv_heads * config.head_dim
        q_size, groups = config.num_heads * config.head_dim, hidden // CONV_GROUP
        self._sizes = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        self._layers = [
            _Layer(
                norms=[random.norm(hidden) for _ in range(2)],
                conv_projections=[pack_weight(random(2 * TAPS * groups, hidden)) for _ in range(2)],
                conv_bases=[random(2, TAPS, hidden, scale=hidden**0.5) for _ in range(2)],
                qkv=pack_weight(random(q_size + 2 * kv_size, hidden)),
                q_norm=random.norm(config.head_dim),
                k_norm=random.norm(config.head_dim),
                o=pack_weight(random(hidden, q_size)),
                gate_up=pack_weight(random(2 * config.intermediate, hidden), pair=True),
                down=pack_weight(random(hidden, config.intermediate)),
            )
            for _ in range(config.num_layers)
        ]
        stack = [pack_weight(random(2 * kv_size, hidden)) for _ in self._layers]
        self._kv_weights = list(torch.stack(stack))
        self._fc, self._hidden_norm = pack_weight(random(hidden, hidden)), random.norm(hidden)
        self._final_norm = random.norm(hidden)
        caches = torch.full((2, len(self._layers), *cache_shape), math.nan).to(embed)
        self._k_caches, self._v_caches = (list(half.unbind()) for half in caches)

    def ingest(self, features: Tensor, positions: Tensor, slots: Tensor) -> None:
        """The target's hidden states [T, H] become keys and values; slots: [T], -1: none."""
        context_kv(
            features,
            self._fc,
            self._hidden_norm,
            self._kv_weights,
            self._k_caches,
            self._v_caches,
            positions=positions,
            slots=slots[None],
            k_norms=[layer.k_norm for layer in self._layers],
            cos_sin=self._cos_sin,
            eps=self.config.eps,
        )

    def propose(self, state: State, req_rows: Tensor, candidates: int) -> Draft:
        """Best candidates of every slot, in one pass over the block."""
        batch, size = len(req_rows), self.drafts + 1
        num_pages, page_size = self._k_caches[0].shape[:2]
        block = prepare_block(
            state.tokens,
            state.ctx_lens,
            state.block_table,
            req_rows=req_rows,
            max_block=size,
            mask_id=self.config.vocab_size - 1,
            page_size=page_size,
            num_pages=num_pages,
        )
        x = self._embed[block.ids.flatten()]
        attend = {
            "block_table": state.block_table,
            "cu_rows": torch.arange(0, batch * size + 1, size, device=x.device),
            "ctx_lens": state.ctx_lens,
            "req_rows": req_rows,
            "causal": False,
            "window_left": WINDOW - 1,
            "window_right": WINDOW - 1,
        }
        for index, layer in enumerate(self._layers):
            x = self._sublayer(x, layer, 0, lambda y, i=index: self._attention(y, i, block, attend))
            x = self._sublayer(x, layer, 1, lambda y, w=layer: self._mlp(y, w))
        rows = block.draft_rows.flatten()
        top = lm_head_topk(
            x,
            k=candidates,
            verify_rows=rows,
            norm_weight=self._final_norm,
            eps=self.config.eps,
            **self._head,
        )
        shape = batch, self.drafts
        normed = rmsnorm(x, self._final_norm, eps=self.config.eps)[rows.clamp(min=0)]
        return Draft(
            block,
            top.values.view(*shape, -1),
            top.ids.view(*shape, -1),
            top.lse.view(shape),
            normed.view(*shape, -1),
        )

    def _sublayer(self, x: Tensor, layer: _Layer, which: int, inner) -> Tensor:
        """DFlash 2: both sides of a sublayer are convolved, by weights that its input gives."""
        normed = rmsnorm(x, layer.norms[which], eps=self.config.eps)
        base, groups = layer.conv_bases[which], x.shape[1] // CONV_GROUP
        outputs = 2 * TAPS * groups
        delta = verify_gemm(normed, layer.conv_projections[which], num_outputs=outputs)
        delta = delta.view(-1, 2, TAPS, groups)
        size = self.drafts + 1
        y = inner(block_conv(normed, delta[:, 0], base[0], block_size=size))
        return block_conv(y, delta[:, 1], base[1], block_size=size, residual=x)

    def _attention(self, x: Tensor, index: int, block: Block, attend: dict) -> Tensor:
        layer, dim = self._layers[index], self.config.head_dim
        qkv = verify_gemm(x, layer.qkv, num_outputs=sum(self._sizes) * dim)
        q, k, v = qkv.unflatten(1, (-1, dim)).split(self._sizes, dim=1)
        caches = self._k_caches[index], self._v_caches[index]
        q = rope_append_kv(
            q,
            k,
            v,
            *caches,
            positions=block.positions.flatten(),
            slots=block.slots.flatten(),
            cos_sin=self._cos_sin,
            q_norm=layer.q_norm,
            k_norm=layer.k_norm,
            eps=self.config.eps,
        )
        out = tree_attention(q, *caches, **attend).out.flatten(1)
        return verify_gemm(out, layer.o, num_outputs=self.config.hidden)

    def _mlp(self, x: Tensor, layer: _Layer) -> Tensor:
        inner = verify_gemm(x, layer.gate_up, num_outputs=self.config.intermediate, act="silu_mul")
        return verify_gemm(inner, layer.down, num_outputs=self.config.hidden)
