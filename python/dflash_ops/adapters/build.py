"""Names of the Llama family -> Weights. The sources of tensors differ, this does not."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..decoder.linear import Matrix, plain, stack
from ..decoder.weights import LayerWeights, ModelConfig, Weights
from .errors import ModelError
from .progress import progress

Source = Callable[[str], Matrix | None]  # a tensor by its name in transformers, None if absent


def build(config: ModelConfig, source: Source, dtype: torch.dtype) -> Weights:
    """What is not quantised comes in `dtype`: rounded once, from what the file holds."""

    def find(name: str, *shape: int) -> Matrix | None:
        matrix = source(name)
        if matrix is not None and tuple(matrix.shape) != shape:
            got = list(matrix.shape)
            raise ModelError(f"tensor {name} has shape {got}, expected {list(shape)}")
        return matrix

    def get(name: str, *shape: int) -> Matrix:
        matrix = find(name, *shape)
        if matrix is None:
            raise ModelError(f"the model has no tensor {name}")
        return matrix

    def vector(name: str, size: int) -> Tensor:
        return plain(get(name, size), dtype)

    def optional(name: str, size: int) -> Tensor | None:
        found = find(name, size)
        return None if found is None else plain(found, dtype)

    def stacked(prefix: str, outputs: dict[str, int], inputs: int) -> Matrix:
        parts = [get(f"{prefix}{p}_proj.weight", n, inputs) for p, n in outputs.items()]
        return stack(parts, dtype)

    hidden, inner, head_dim = config.hidden, config.intermediate, config.head_dim
    q_size, kv_size = config.num_heads * head_dim, config.num_kv_heads * head_dim

    def layer(idx: int) -> LayerWeights:
        prefix = f"model.layers.{idx}."
        attn, mlp = prefix + "self_attn.", prefix + "mlp."
        sizes = {"q": q_size, "k": kv_size, "v": kv_size}
        biases = [optional(f"{attn}{part}_proj.bias", size) for part, size in sizes.items()]
        present = [bias for bias in biases if bias is not None]
        if len(present) not in (0, len(sizes)):
            raise ModelError(f"{attn}* has biases for some of q, k and v only")
        return LayerWeights(
            attn_norm=vector(prefix + "input_layernorm.weight", hidden),
            qkv=stacked(attn, sizes, hidden),
            qkv_bias=torch.cat(present) if present else None,
            q_norm=optional(attn + "q_norm.weight", head_dim),
            k_norm=optional(attn + "k_norm.weight", head_dim),
            o=stacked(attn, {"o": hidden}, q_size),
            mlp_norm=vector(prefix + "post_attention_layernorm.weight", hidden),
            gate_up=stacked(mlp, {"gate": inner, "up": inner}, hidden),
            down=stacked(mlp, {"down": hidden}, inner),
        )

    table = get("model.embed_tokens.weight", config.vocab_size, hidden)
    embed = plain(table, dtype)
    head = find("lm_head.weight", config.vocab_size, hidden)
    if head is None:
        head = embed if isinstance(table, Tensor) else table
    layers = []
    with progress(config.num_layers, "loading", "layer") as bar:
        for idx in range(config.num_layers):
            layers.append(layer(idx))
            bar.update()
    return Weights(
        embed=embed,
        layers=layers,
        final_norm=vector("model.norm.weight", hidden),
        lm_head=head.to(dtype) if isinstance(head, Tensor) else head,
    )


def inv_freq(head_dim: int, theta: float) -> list[float]:
    return [theta ** (-2 * i / head_dim) for i in range(head_dim // 2)]
