import random
import struct

import gguf_writer
import pytest
import torch
from gguf_writer import half

from dflash_ops.adapters import ModelError, load
from dflash_ops.adapters.gguf import GGUFFile
from dflash_ops.adapters.quants import FORMATS

RANDOM = random.Random(0)


# One block of each format, decoded a value at a time as ggml's C code does.


def decode_q8_0(b):
    (d,) = struct.unpack_from("<e", b)
    return [d * q for q in struct.unpack_from("<32b", b, 2)]


def decode_q4_0(b):
    (d,) = struct.unpack_from("<e", b)
    return [d * ((b[2 + i % 16] >> 4 * (i // 16) & 15) - 8) for i in range(32)]


def decode_q4_1(b):
    d, m = struct.unpack_from("<ee", b)
    return [d * (b[4 + i % 16] >> 4 * (i // 16) & 15) + m for i in range(32)]


def decode_q5_0(b):
    d, high = struct.unpack_from("<eI", b)
    low = [b[6 + i % 16] >> 4 * (i // 16) & 15 for i in range(32)]
    return [d * ((low[i] | (high >> i & 1) << 4) - 16) for i in range(32)]


def decode_q4_k(b):
    d, dmin = struct.unpack_from("<ee", b)
    s, out = b[4:16], []
    for group in range(8):
        if group < 4:
            scale, minimum = s[group] & 63, s[group + 4] & 63
        else:
            scale = s[group + 4] & 15 | s[group - 4] >> 6 << 4
            minimum = s[group + 4] >> 4 | s[group] >> 6 << 4
        for i in range(32):
            q = b[16 + 32 * (group // 2) + i] >> 4 * (group % 2) & 15
            out.append(d * scale * q - dmin * minimum)
    return out


def decode_q6_k(b):
    (d,) = struct.unpack_from("<e", b, 208)
    scales = struct.unpack_from("<16b", b, 192)
    out = [0.0] * 256
    for half_idx in range(2):
        low, high = b[64 * half_idx :], b[128 + 32 * half_idx :]
        for i in range(32):
            for part in range(4):
                nibble = low[i + 32 * (part % 2)] >> 4 * (part // 2) & 15
                q = (nibble | (high[i] >> 2 * part & 3) << 4) - 32
                scale = scales[8 * half_idx + i // 16 + 2 * part]
                out[128 * half_idx + 32 * part + i] = d * scale * q
    return out


DECODERS = {
    "Q8_0": (decode_q8_0, lambda: half(RANDOM.uniform(-1, 1))),
    "Q4_0": (decode_q4_0, lambda: half(RANDOM.uniform(-1, 1))),
    "Q4_1": (decode_q4_1, lambda: half(RANDOM.uniform(-1, 1)) + half(RANDOM.uniform(-9, 9))),
    "Q5_0": (decode_q5_0, lambda: half(RANDOM.uniform(-1, 1))),
    "Q4_K": (decode_q4_k, lambda: half(RANDOM.uniform(-1, 1)) + half(RANDOM.uniform(-1, 1))),
    "Q6_K": (decode_q6_k, lambda: b""),
}
KINDS = {block.name: kind for kind, block in FORMATS.items()}


@pytest.mark.parametrize("name", DECODERS)
def test_blocks_decode_to_the_formats_values(tmp_path, name):
    decode, scales = DECODERS[name]
    block = FORMATS[KINDS[name]]
    rows, blocks = 3, []
    for _ in range(2 * rows):
        head = scales()
        body = RANDOM.randbytes(block.bytes - len(head))
        if name == "Q6_K":
            body = body[:208] + half(RANDOM.uniform(-1, 1))
        blocks.append(head + body)
    data = rows, 2 * block.values
    path = gguf_writer.write(tmp_path / "x.gguf", {}, {"w": (data, KINDS[name], b"".join(blocks))})
    want = torch.tensor([decode(b) for b in blocks], dtype=torch.float64)
    got = GGUFFile(path).tensor("w")
    assert torch.equal(got, want.float().reshape(rows, -1))  # one rounding at most


@pytest.mark.parametrize(
    "dtype, name", [(torch.float32, "F32"), (torch.float16, "F16"), (torch.bfloat16, "BF16")]
)
def test_floats_are_taken_as_they_are(tmp_path, dtype, name):
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    raw = x.view(torch.uint8).numpy().tobytes()
    path = gguf_writer.write(tmp_path / "x.gguf", {}, {"w": ((3, 5), KINDS[name], raw)})
    assert torch.equal(GGUFFile(path).tensor("w"), x.float())


def test_metadata(tmp_path):
    items = {"a": 7, "b": -1, "c": 0.5, "d": True, "e": "text", "f": ["x", ""], "g": [1, -2]}
    path = gguf_writer.write(tmp_path / "x.gguf", items, {})
    assert GGUFFile(path).metadata == items
    assert GGUFFile(path).tensor("w") is None


def test_alignment(tmp_path):
    w = torch.arange(6.0).reshape(2, 3)
    tensors = {"v": gguf_writer.f32(w + 1), "w": gguf_writer.f32(w)}
    path = gguf_writer.write(tmp_path / "x.gguf", {"general.alignment": 64}, tensors, align=64)
    assert torch.equal(GGUFFile(path).tensor("w"), w)


def test_damaged_files_give_one_error_each(tmp_path):
    whole = gguf_writer.model(tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "damaged.gguf"
    # Every length of the beginning, then some: the header's end, inside the tensors.
    for size in [*range(300), *range(300, len(whole), 997), len(whole) - 33]:
        path.write_bytes(whole[:size])
        with pytest.raises(ModelError, match=r"damaged\.gguf"):
            GGUFFile(path)
    rng = random.Random(1)
    for _ in range(300):  # flipped bytes: an error of ours, or a file that is still readable
        data = bytearray(whole)
        for _ in range(3):
            data[rng.randrange(12_000)] = rng.randrange(256)
        path.write_bytes(data)
        try:
            file = load(str(path))
            file.weights(torch.float32)
            file.tokenizer()
        except ModelError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"metadata": {"general.architecture": "gpt2"}}, "architecture gpt2 is not one of llama"),
        (
            {"metadata": {"llama.context_length": "long"}},
            "llama.context_length is 'long', expected a int",
        ),
        ({"metadata": {"llama.block_count": 3}}, "no tensor model.layers.2.input_layernorm.weight"),
        ({"metadata": {"llama.rope.scaling.type": "yarn"}}, "RoPE scaling is not supported"),
        (
            {"tensors": {"blk.0.ffn_up.weight": gguf_writer.f32(torch.ones(5, 32))}},
            r"shape \[5, 32\], expected \[64, 32\]",
        ),
        ({"tensors": {"token_embd.weight": ((2, 4), 99, b"")}}, "token_embd.weight has format 99"),
        ({"metadata": {"tokenizer.ggml.pre": "other"}}, "unknown pre-tokenizer other"),
        ({"metadata": {"tokenizer.ggml.model": "llama"}}, "only byte-level BPE"),
    ],
)
def test_models_that_are_not_supported(tmp_path, changes, message):
    path = gguf_writer.model(tmp_path / "x.gguf", **changes)
    with pytest.raises(ModelError, match=message):
        file = load(str(path))
        file.weights(torch.float32)
        file.tokenizer()


def test_llama_rows_are_put_back(tmp_path):
    """llama files interleave the halves of each head: row 2i holds i, row 2i + 1 holds i + D/2."""
    q = torch.arange(32.0)[:, None].expand(32, 32)
    path = gguf_writer.model(
        tmp_path / "x.gguf", tensors={"blk.0.attn_q.weight": gguf_writer.f32(q)}
    )
    got = load(str(path)).weights(torch.float32).layers[0].qkv[:32, 0].reshape(4, 8)
    assert got[0].tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert torch.equal(got, got[0] + 8 * torch.arange(4)[:, None])

    path = gguf_writer.model(
        tmp_path / "y.gguf", arch="qwen2", tensors={"blk.0.attn_q.weight": gguf_writer.f32(q)}
    )
    assert torch.equal(load(str(path)).weights(torch.float32).layers[0].qkv[:32], q)


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_architectures(tmp_path, arch, tied):
    weights = load(str(gguf_writer.model(tmp_path / "x.gguf", arch=arch, tied=tied))).weights(
        torch.bfloat16
    )
    assert (weights.lm_head is weights.embed) == tied
    layer = weights.layers[1]
    assert layer.qkv.shape == (64, 32) and layer.gate_up.shape == (128, 32)
    assert (layer.qkv_bias is not None) == (arch == "qwen2")
    assert (layer.q_norm is not None) == (layer.k_norm is not None) == (arch == "qwen3")
    assert layer.down.dtype == torch.bfloat16


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
@pytest.mark.parametrize("tied", [True, False])
def test_quantised_matrices_stay_as_they_are_stored(tmp_path, arch, tied):
    """The same numbers in the same rows, but not rounded to the activations' dtype."""
    path = gguf_writer.model(tmp_path / "x.gguf", arch=arch, tied=tied, quantised=True)
    file = load(str(path))
    got, want = file.weights(torch.bfloat16, as_stored=True), file.weights(torch.float32)
    for layer, exact in zip(got.layers, want.layers, strict=True):
        for name in ("qkv", "o", "gate_up", "down"):
            matrix = getattr(layer, name)
            assert matrix.source == "q4_1" and matrix.shape == getattr(exact, name).shape
            assert torch.equal(matrix.values(), getattr(exact, name))
        assert layer.attn_norm.dtype == torch.bfloat16
    assert torch.equal(got.embed, want.embed.bfloat16())
    if tied:
        assert got.lm_head.source == "q8_0"
        assert torch.equal(got.lm_head.values(), want.lm_head)
    else:
        assert torch.equal(got.lm_head, want.lm_head.bfloat16())


def test_a_matrix_beside_one_of_another_format_is_dequantised(tmp_path):
    tensors = {"blk.0.attn_v.weight": gguf_writer.blocks(5, "q4_0", 16, 32)}
    path = gguf_writer.model(tmp_path / "x.gguf", quantised=True, tensors=tensors)
    file = load(str(path))
    got, want = file.weights(torch.bfloat16, as_stored=True), file.weights(torch.bfloat16)
    assert torch.equal(got.layers[0].qkv, want.layers[0].qkv)
    assert got.layers[0].o.source == got.layers[1].qkv.source == "q4_1"
