"""Writes GGUF files and quantised blocks, the way the format's description reads."""

import struct

import torch
from quant_sources import w4_call, w8_call

KINDS = {"q4_0": 2, "q4_1": 3, "q8_0": 8}


def string(text):
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def value(item):
    if isinstance(item, bool):
        return struct.pack("<I?", 7, item)
    if isinstance(item, int):
        return struct.pack("<Ii", 5, item)
    if isinstance(item, float):
        return struct.pack("<If", 6, item)
    if isinstance(item, str):
        return struct.pack("<I", 8) + string(item)
    kind = 8 if isinstance(item[0], str) else 5
    body = b"".join(string(x) if kind == 8 else struct.pack("<i", x) for x in item)
    return struct.pack("<IIQ", 9, kind, len(item)) + body


def write(path, metadata, tensors, align=32):
    """`tensors`: name -> (shape, format number, bytes)."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, item in metadata.items():
        head += string(key) + value(item)
    body = b""
    for name, (shape, kind, data) in tensors.items():
        head += string(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *reversed(shape))
        head += struct.pack("<IQ", kind, len(body))
        body += data + b"\0" * (-len(data) % align)
    path.write_bytes(head + b"\0" * (-len(head) % align) + body)
    return path


def f32(tensor):
    return tuple(tensor.shape), 0, tensor.float().contiguous().numpy().tobytes()


def blocks(seed, source, rows, depth):
    """A random matrix of quantised blocks."""
    call = (w8_call if source == "q8_0" else w4_call)(seed, source, rows, depth)
    return (rows, depth), KINDS[source], call["weight"].numpy().tobytes()


def half(number):
    return struct.pack("<e", number)


def model(
    path,
    *,
    arch="llama",
    layers=2,
    context=64,
    tied=True,
    template="",
    seed=0,
    quantised=False,
    **changes,
):
    """A tiny random model over the 256 bytes and a few markers; quantised: as SmolLM2's file is."""
    g = torch.Generator().manual_seed(seed)
    hidden, inner, heads, kv_heads, dim = 32, 64, 4, 2, 8
    tokens = [*byte_tokens(), "<|end|>", "ab"]

    def rand(*shape):
        return f32(torch.randn(*shape, generator=g) / shape[-1] ** 0.5)

    def matrix(*shape, source="q4_1"):
        if not quantised:
            return rand(*shape)
        return blocks(int(torch.randint(2**31, (), generator=g)), source, *shape)

    tensors = {
        "token_embd.weight": matrix(len(tokens), hidden, source="q8_0"),
        "output_norm.weight": f32(torch.ones(hidden)),
    }
    if not tied:
        tensors["output.weight"] = rand(len(tokens), hidden)
    for i in range(layers):
        blk = {
            "attn_norm": f32(torch.ones(hidden)),
            "attn_q": matrix(heads * dim, hidden),
            "attn_k": matrix(kv_heads * dim, hidden),
            "attn_v": matrix(kv_heads * dim, hidden),
            "attn_output": matrix(hidden, heads * dim),
            "ffn_norm": f32(torch.ones(hidden)),
            "ffn_gate": matrix(inner, hidden),
            "ffn_up": matrix(inner, hidden),
            "ffn_down": matrix(hidden, inner),
        }
        tensors |= {f"blk.{i}.{name}.weight": data for name, data in blk.items()}
        if arch == "qwen2":
            sizes = {"q": heads, "k": kv_heads, "v": kv_heads}
            tensors |= {f"blk.{i}.attn_{p}.bias": rand(n * dim) for p, n in sizes.items()}
        if arch == "qwen3":
            norm = f32(torch.rand(dim, generator=g) + 0.5)
            tensors |= {f"blk.{i}.attn_{p}_norm.weight": norm for p in ("q", "k")}
    metadata = {
        "general.architecture": arch,
        f"{arch}.block_count": layers,
        f"{arch}.context_length": context,
        f"{arch}.embedding_length": hidden,
        f"{arch}.feed_forward_length": inner,
        f"{arch}.attention.head_count": heads,
        f"{arch}.attention.head_count_kv": kv_heads,
        f"{arch}.attention.layer_norm_rms_epsilon": 2.0**-17,
        f"{arch}.rope.freq_base": 10_000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 256 + [3, 1],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": 256,
    }
    if template:
        metadata["tokenizer.chat_template"] = template
    return write(path, metadata | changes.get("metadata", {}), tensors | changes.get("tensors", {}))


def byte_tokens():
    """The printable stand-ins that byte-level BPE uses for the 256 bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = [b for b in range(256) if b not in printable]
    return [chr(b if b in printable else 256 + shifted.index(b)) for b in range(256)]
