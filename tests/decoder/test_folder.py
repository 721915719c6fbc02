import json

import gguf_writer
import pytest
import torch
from safetensors.torch import save_file

from dflash_ops.adapters import ModelError, load

CONFIG = {
    "model_type": "llama",
    "vocab_size": 258,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 2.0**-17,
    "rope_theta": 10_000.0,
    "eos_token_id": 256,
}


def tensors_of(weights):
    """The names that transformers writes."""
    out = {"model.embed_tokens.weight": weights.embed, "model.norm.weight": weights.final_norm}
    if weights.lm_head is not weights.embed:
        out["lm_head.weight"] = weights.lm_head
    for i, layer in enumerate(weights.layers):
        prefix = f"model.layers.{i}."
        q, k, v = layer.qkv.split([32, 16, 16])
        gate, up = layer.gate_up.chunk(2)
        named = {
            "input_layernorm": layer.attn_norm,
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.o_proj": layer.o,
            "post_attention_layernorm": layer.mlp_norm,
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": layer.down,
        }
        out |= {f"{prefix}{name}.weight": tensor for name, tensor in named.items()}
    return {name: tensor.contiguous().clone() for name, tensor in out.items()}


def folder(path, *, config=None, shards=1, tied=False):
    """The tiny GGUF model again, as transformers writes it."""
    path.mkdir()
    source = load(str(gguf_writer.model(path / "source.gguf", tied=tied)))
    tensors = tensors_of(source.weights(torch.float32))
    names = sorted(tensors)
    if shards == 1:
        save_file(tensors, path / "model.safetensors")
    else:
        where = {name: f"model-{i % shards}.safetensors" for i, name in enumerate(names)}
        for file in set(where.values()):
            save_file({n: tensors[n] for n in names if where[n] == file}, path / file)
        (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    config = CONFIG | {"tie_word_embeddings": tied} | (config or {})
    (path / "config.json").write_text(json.dumps(config))
    source.tokenizer().backend.save(str(path / "tokenizer.json"))
    return path, source


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("tied", [False, True])
def test_a_folder_is_the_same_model(tmp_path, shards, tied):
    path, source = folder(tmp_path / "m", shards=shards, tied=tied)
    got, want = load(str(path)), source
    assert got.config == want.config
    a, b = (tensors_of(x.weights(torch.bfloat16)) for x in (got, want))
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    text = "cab \u4f60 42"
    assert got.tokenizer().encode(text) == want.tokenizer().encode(text)
    assert got.tokenizer().stop_ids == want.tokenizer().stop_ids


def test_rope_scaling(tmp_path):
    plain, _ = folder(tmp_path / "plain")
    base = load(str(plain)).config.inv_freq
    rope = {"rope_type": "linear", "factor": 4.0}
    linear, _ = folder(tmp_path / "linear", config={"rope_scaling": rope})
    assert load(str(linear)).config.inv_freq == tuple(f / 4 for f in base)

    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope["original_max_position_embeddings"] = 64
    llama3, _ = folder(tmp_path / "llama3", config={"rope_scaling": rope})
    got = load(str(llama3)).config.inv_freq
    assert got[0] == base[0]  # 10 turns within the original context: kept
    turns = 64 * base[1] / (2 * torch.pi)  # 1.02: just above low_freq_factor
    kept = (turns - 1) / (4 - 1)
    assert got[1] == pytest.approx(base[1] * kept + base[1] / 8 * (1 - kept))
    assert got[3] == base[3] / 8  # a hundredth of a turn


@pytest.mark.parametrize(
    "config, message",
    [
        ({"model_type": "bert"}, "model_type bert is not one of llama"),
        ({"hidden_size": "wide"}, "config.json is incomplete"),
        ({"hidden_size": 64, "head_dim": 8}, "expected"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "RoPE scaling yarn is not supported"),
        ({"use_sliding_window": True}, "sliding window"),
    ],
)
def test_folders_that_are_not_supported(tmp_path, config, message):
    path, _ = folder(tmp_path / "m", config=config)
    with pytest.raises(ModelError, match=message):
        load(str(path)).weights(torch.float32)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("damage", ["absent", "cut"])
def test_damaged_folders(tmp_path, name, damage):
    path, _ = folder(tmp_path / "m")
    whole = (path / name).read_bytes()
    (path / name).unlink()
    if damage == "cut":
        (path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError):
        model = load(str(path))
        model.weights(torch.float32)
        model.tokenizer()


def test_no_such_model(tmp_path):
    with pytest.raises(ModelError, match="no such model: nothing"):
        load("nothing")
