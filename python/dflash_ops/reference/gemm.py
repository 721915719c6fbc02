import torch
import torch.nn.functional as F
from torch import Tensor


def pack_weight(weight: Tensor, *, pair: bool = False, layout: str = "cpu") -> Tensor:
    """`layout`: that of the device class, "cpu" or "cuda"."""
    if layout == "cuda":
        return _pack_cuda(weight, pair)
    if pair:  # 16 gate rows, then their 16 up rows, block after block
        gate, up = (F.pad(half, (0, 0, 0, -len(half) % 16)) for half in weight.chunk(2))
        weight = torch.stack([gate.unflatten(0, (-1, 16)), up.unflatten(0, (-1, 16))], 1)
        weight = weight.flatten(0, 2)
    weight = F.pad(weight, (0, 0, 0, -len(weight) % 32))
    if weight.dtype == torch.float32:
        return weight.unflatten(0, (-1, 32)).transpose(1, 2).contiguous()
    weight = F.pad(weight, (0, weight.shape[1] % 2))
    return weight.unflatten(0, (-1, 32)).unflatten(2, (-1, 2)).transpose(1, 2).flip(-1).contiguous()


def unpack(
    packed: Tensor, shape: tuple[int, int], *, pair: bool = False, layout: str = "cpu"
) -> Tensor:
    if layout == "cuda":
        return _unpack_cuda(packed, shape, pair)
    if packed.dtype == torch.float32:
        weight = packed.transpose(1, 2)
    else:
        weight = packed.flip(-1).transpose(1, 2).flatten(2)
    if pair:
        gate, up = (half.flatten(0, 1) for half in weight.unflatten(1, (2, 16)).unbind(1))
        weight = torch.cat([gate[: shape[0] // 2], up[: shape[0] // 2]])
    else:
        weight = weight.flatten(0, 1)[: shape[0]]
    return weight[:, : shape[1]].contiguous()


def _chunk_depth(dtype: torch.dtype) -> int:
    return 64 // dtype.itemsize


def _turned(chunk: Tensor) -> Tensor:
    """Unit u of 16 bytes of row r stands at u ^ (r / 2 % 4) of a whole chunk: [blocks, 16, k]."""
    if chunk.shape[2] < _chunk_depth(chunk.dtype):
        return chunk
    row = torch.arange(16)[:, None]
    return chunk.unflatten(2, (4, -1))[:, row, torch.arange(4) ^ (row // 2 % 4)].flatten(2)


def _pack_cuda(weight: Tensor, pair: bool) -> Tensor:
    """Blocks of 16 rows (a pair: 8 gate rows, their 8 up rows), cut into chunks of 64 bytes."""
    if pair:
        halves = (F.pad(half, (0, 0, 0, -len(half) % 16)) for half in weight.chunk(2))
        weight = torch.stack([half.unflatten(0, (-1, 8)) for half in halves], 1).flatten(0, 2)
    depth = weight.shape[1] + (weight.shape[1] % 2 if weight.dtype.itemsize == 2 else 0)
    weight = F.pad(weight, (0, depth - weight.shape[1], 0, -len(weight) % 32))
    chunks = weight.unflatten(0, (-1, 16)).split(_chunk_depth(weight.dtype), dim=2)
    packed = torch.cat([_turned(chunk).flatten(1) for chunk in chunks], dim=1)
    inner = (depth, 32) if weight.dtype == torch.float32 else (depth // 2, 32, 2)
    return packed.reshape(len(weight) // 32, *inner)


def _unpack_cuda(packed: Tensor, shape: tuple[int, int], pair: bool) -> Tensor:
    depth = packed[0].numel() // 32 if len(packed) else shape[1]
    parts = packed.reshape(2 * len(packed), 16 * depth).split(
        16 * _chunk_depth(packed.dtype), dim=1
    )
    parts = (part.unflatten(1, (16, part.shape[1] // 16)) for part in parts)
    weight = torch.cat([_turned(part) for part in parts], dim=2)
    if pair:
        gate, up = (half.flatten(0, 1) for half in weight.unflatten(1, (2, 8)).unbind(1))
        weight = torch.cat([gate[: shape[0] // 2], up[: shape[0] // 2]])
    else:
        weight = weight.flatten(0, 1)[: shape[0]]
    return weight[:, : shape[1]].contiguous()


def rmsnorm(
    x: Tensor, weight: Tensor, *, eps: float = 1e-6, dtype: torch.dtype = torch.float64
) -> Tensor:
    """In `dtype`; not rounded to x's."""
    x = x.to(dtype)
    return x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight.to(dtype)


def verify_gemm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    norm_weight: Tensor | None = None,
    eps: float = 1e-6,
    addend: Tensor | None = None,
    act: str = "none",
    residual: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """With a plain weight, in `dtype`; only a fused norm is rounded, to x's dtype."""
    if norm_weight is not None:
        x = rmsnorm(x, norm_weight, eps=eps, dtype=dtype).to(x.dtype)
    y = x.to(dtype) @ weight.to(dtype).T
    for term in (bias, addend):
        if term is not None:
            y = y + term.to(dtype)
    if act == "silu":
        y = F.silu(y)
    elif act == "silu_mul":
        gate, up = y.chunk(2, dim=-1)
        y = F.silu(gate) * up
    return y if residual is None else y + residual.to(dtype)


def workspace_bytes(op: str, device: str | torch.device, **bounds: int) -> int:
    return {"verify_gemm": 0}[op]
