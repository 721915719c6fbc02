"""Random quantised weights of every make, as arguments of pack_w8 and pack_w4."""

import torch
from torch import Tensor

FLOATS = (torch.bfloat16, torch.float16, torch.float32)
W4_SOURCES = ("gptq", "gptq_v2", "awq", "q4_0", "q4_1")
W8_SOURCES = ("int8", "fp8", "q8_0")


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_words(g: torch.Generator, *shape: int) -> Tensor:
    return torch.randint(-(2**31), 2**31, shape, generator=g).int()


def random_scales(g: torch.Generator, shape: tuple[int, ...], size: float, dtype) -> Tensor:
    """Of both signs, of about this size."""
    return (
        ((torch.rand(shape, generator=g) + 0.5) * size)
        .mul(torch.randint(0, 2, shape, generator=g) * 2 - 1)
        .to(dtype)
    )


def w4_call(
    seed: int,
    source: str,
    num_rows: int,
    depth: int,
    group_size: int = 128,
    dtype: torch.dtype = torch.float16,
    has_zeros: bool = True,
) -> dict:
    """GPTQ rounds depth to a multiple of 8, AWQ num_rows, GGUF depth to one of 32. The values are
    such that products with normal x are of size 1."""
    g = generator(seed)
    size = 0.2 / max(depth, 1) ** 0.5
    if source.startswith("q4"):
        blocks = -(-depth // 32)
        head = 1 if source == "q4_0" else 2
        halves = random_scales(g, (num_rows, blocks, head), size, torch.float16)
        if source == "q4_1":
            halves[..., 1] *= -6
        codes = torch.randint(0, 256, (num_rows, blocks, 16), generator=g).to(torch.uint8)
        blocks = torch.cat([halves.view(torch.uint8), codes], -1)
        return {"weight": blocks.flatten(1), "source": source}
    if source == "awq":
        num_rows = -(-num_rows // 8) * 8
        weight = random_words(g, depth, num_rows // 8)
    else:
        depth = -(-depth // 8) * 8
        weight = random_words(g, depth // 8, num_rows)
    groups = 1 if group_size < 0 else -(-depth // group_size)
    call = {
        "weight": weight,
        "scales": random_scales(g, (groups, num_rows), size, dtype),
        "source": source,
        "group_size": group_size,
    }
    if has_zeros:
        call["zeros"] = random_words(g, groups, -(-num_rows // 8))
    return call


def w8_call(
    seed: int,
    source: str,
    num_rows: int,
    depth: int,
    block: tuple[int, int] | None = None,
    dtype: torch.dtype = torch.float32,
) -> dict:
    g = generator(seed)
    size = 1 / max(depth, 1) ** 0.5 / (64 if source == "int8" else 100)
    if source == "q8_0":
        blocks = -(-depth // 32)
        scales = random_scales(g, (num_rows, blocks, 1), size, torch.float16)
        codes = torch.randint(0, 256, (num_rows, blocks, 32), generator=g).to(torch.uint8)
        return {"weight": torch.cat([scales.view(torch.uint8), codes], -1).flatten(1)}
    codes = torch.randint(0, 256, (num_rows, depth), generator=g).to(torch.uint8)
    if source == "fp8":
        codes[codes % 128 == 127] = 0  # NaN
    weight = codes.view(torch.int8 if source == "int8" else torch.float8_e4m3fn)
    block_rows, block_k = block or (1, depth)
    groups = 1 if block_k >= depth else -(-depth // block_k)
    scales = random_scales(g, (-(-num_rows // block_rows), groups), size, dtype)
    return {"weight": weight, "scales": scales} | ({} if block is None else {"block": block})


def on(device: torch.device, call: dict) -> dict:
    return {k: v.to(device) if isinstance(v, Tensor) else v for k, v in call.items()}
