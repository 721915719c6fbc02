"""What a decoder is made of: its shape and its tensors, wherever they came from."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .linear import Matrix


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a Llama, Qwen2 or Qwen3 decoder."""

    vocab_size: int
    hidden: int
    intermediate: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    eps: float
    inv_freq: tuple[float, ...]  # RoPE: radians per position of each pair of dimensions

    def cos_sin(self, num_positions: int) -> Tensor:
        """``[num_positions, head_dim]`` fp32: cosines, then sines; rounded once, from float64."""
        freq = torch.tensor(self.inv_freq, dtype=torch.float64)
        angle = torch.arange(num_positions, dtype=torch.float64)[:, None] * freq
        return torch.cat([angle.cos(), angle.sin()], dim=1).float()


@dataclass
class LayerWeights:
    """One block. Matrices are [outputs, inputs]; q, k, v and gate, up stand one below the other."""

    attn_norm: Tensor  # [hidden]
    qkv: Matrix  # [(num_heads + 2 num_kv_heads) head_dim, hidden]
    qkv_bias: Tensor | None
    q_norm: Tensor | None  # [head_dim]
    k_norm: Tensor | None
    o: Matrix  # [hidden, num_heads head_dim]
    mlp_norm: Tensor  # [hidden]
    gate_up: Matrix  # [2 intermediate, hidden]
    down: Matrix  # [hidden, intermediate]


@dataclass
class Weights:
    embed: Tensor  # [vocab_size, hidden]
    layers: list[LayerWeights]
    final_norm: Tensor  # [hidden]
    lm_head: Matrix  # [vocab_size, hidden]; `embed` itself when tied, unless quantised
