"""Names of the Llama family -> Weights. The sources of tensors differ, this does not."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..decoder.weights import LayerWeights, ModelConfig, Weights
from .errors import ModelError
from .progress import progress

Source = Callable[[str], Tensor | None]  # a tensor by its name in transformers, None if absent


def build(config: ModelConfig, source: Source, dtype: torch.dtype) -> Weights:
    """Every tensor in `dtype`: each is rounded once, from what the file holds."""

    def get(name: str, *shape: int) -> Tensor:
        tensor = find(name, *shape)
        if tensor is None:
            raise ModelError(f"the model has no tensor {name}")
        return tensor

    def find(name: str, *shape: int) -> Tensor | None:
        tensor = source(name)
        if tensor is not None and tensor.shape != shape:
            got = list(tensor.shape)
            raise ModelError(f"tensor {name} has shape {got}, expected {list(shape)}")
        return None if tensor is None else tensor.to(dtype)

    hidden, inner, head_dim = config.hidden, config.intermediate, config.head_dim
    q_size, kv_size = config.num_heads * head_dim, config.num_kv_heads * head_dim

    def layer(idx: int) -> LayerWeights:
        prefix = f"model.layers.{idx}."
        attn, mlp = prefix + "self_attn.", prefix + "mlp."
        sizes = {"q": q_size, "k": kv_size, "v": kv_size}
        biases = [find(f"{attn}{part}_proj.bias", size) for part, size in sizes.items()]
        present = [bias for bias in biases if bias is not None]
        if len(present) not in (0, len(sizes)):
            raise ModelError(f"{attn}* has biases for some of q, k and v only")
        return LayerWeights(
            attn_norm=get(prefix + "input_layernorm.weight", hidden),
            qkv=torch.cat([get(f"{attn}{p}_proj.weight", n, hidden) for p, n in sizes.items()]),
            qkv_bias=torch.cat(present) if present else None,
            q_norm=find(attn + "q_norm.weight", head_dim),
            k_norm=find(attn + "k_norm.weight", head_dim),
            o=get(attn + "o_proj.weight", hidden, q_size),
            mlp_norm=get(prefix + "post_attention_layernorm.weight", hidden),
            gate_up=torch.cat(
                [get(f"{mlp}{p}_proj.weight", inner, hidden) for p in ("gate", "up")]
            ),
            down=get(mlp + "down_proj.weight", hidden, inner),
        )

    embed = get("model.embed_tokens.weight", config.vocab_size, hidden)
    head = find("lm_head.weight", config.vocab_size, hidden)
    layers = []
    with progress(config.num_layers, "loading", "layer") as bar:
        for idx in range(config.num_layers):
            layers.append(layer(idx))
            bar.update()
    return Weights(
        embed=embed,
        layers=layers,
        final_norm=get("model.norm.weight", hidden),
        lm_head=embed if head is None else head,
    )


def inv_freq(head_dim: int, theta: float) -> list[float]:
    return [theta ** (-2 * i / head_dim) for i in range(head_dim // 2)]
