import json

import gguf_writer
import pytest
import torch
from quant_sources import w4_call
from safetensors.torch import load_file, save_file

from dflash_ops.adapters import ModelError, load
from dflash_ops.cli.main import main
from dflash_ops.reference.quantised import read_w4

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


def quantised_folder(path, source, **options):
    """Every projection replaced by a random quantised one: the folder, and what they stand for."""
    method = "awq" if source == "awq" else "gptq"
    config = {"quant_method": method, "bits": 4, "group_size": 32} | options
    if source == "gptq_v2":
        config["checkpoint_format"] = "gptq_v2"
    path, _ = folder(path, config={"quantization_config": config})
    tensors = load_file(path / "model.safetensors")
    values = {}
    for seed, name in enumerate([name for name in tensors if name.endswith("_proj.weight")]):
        call = w4_call(seed, source, *tensors.pop(name).shape, group_size=32)
        values[name] = read_w4(**call).values()
        stem = name.removesuffix(".weight")
        stored = {"qweight": call["weight"], "qzeros": call["zeros"], "scales": call["scales"]}
        if method == "gptq":
            stored["g_idx"] = torch.arange(values[name].shape[1]).int() // 32
        tensors |= {f"{stem}.{part}": t.contiguous() for part, t in stored.items()}
    save_file(tensors, path / "model.safetensors")
    return path, values


@pytest.mark.parametrize("source", ["gptq", "gptq_v2", "awq"])
def test_quantised_folders(tmp_path, capsys, source):
    path, values = quantised_folder(tmp_path / "m", source)
    stored = load(str(path)).weights(torch.bfloat16, as_stored=True)
    plain = load(str(path)).weights(torch.float32)
    layer, prefix = stored.layers[1], "model.layers.1."
    for name, parts in {
        "qkv": [f"self_attn.{p}_proj" for p in "qkv"],
        "o": ["self_attn.o_proj"],
        "gate_up": ["mlp.gate_proj", "mlp.up_proj"],
        "down": ["mlp.down_proj"],
    }.items():
        want = torch.cat([values[f"{prefix}{part}.weight"] for part in parts])
        matrix = getattr(layer, name)
        assert matrix.source == source and matrix.shape == want.shape
        assert torch.equal(matrix.values(), want)
        assert torch.equal(getattr(plain.layers[1], name), want)
    assert stored.lm_head.dtype == torch.bfloat16
    options = ["--model", str(path), "--weights", "w4", "--compare", "--json", "--raw"]
    assert main(["generate", "abcabc", *options, "--max-new-tokens", "9"]) == 0
    assert json.loads(capsys.readouterr().out)["identical_to_plain"] is True


@pytest.mark.parametrize(
    "options, message",
    [
        ({"bits": 8}, "8-bit gptq weights are not supported"),
        ({"quant_method": "fp8"}, "4-bit fp8 weights are not supported"),
        ({"quant_method": "awq", "version": "gemv"}, "4-bit awq weights are not supported"),
        ({"group_size": "all"}, "quantization_config has group_size all"),
        ({"group_size": 64}, "is in act-order, which is not supported"),
    ],
)
def test_quantised_folders_that_are_not_supported(tmp_path, options, message):
    path, _ = quantised_folder(tmp_path / "m", "gptq", **options)
    with pytest.raises(ModelError, match=message):
        load(str(path)).weights(torch.float32, as_stored=True)


def test_a_plain_folder_has_nothing_stored(tmp_path):
    path, _ = folder(tmp_path / "m")
    with pytest.raises(ModelError, match="no tensor is of GPTQ or AWQ"):
        load(str(path)).weights(torch.float32, as_stored=True)
