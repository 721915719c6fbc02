from collections.abc import Iterator

import peers as installed
import torch
from case import Case
from torch import Tensor

from dflash_ops import pack_weight, rmsnorm, unpack, verify_gemm, workspace_bytes

COLD_BYTES = 2**28  # weights are rotated over copies of this much, so none comes from a cache
# LM heads and an MLP of small models; each at least 16 MB.
SHAPES = ((151_936, 896), (49_152, 576), (8960, 1536))


def cases(device: torch.device) -> Iterator[Case]:
    for num_outputs, depth in SHAPES:
        yield from gemm_cases(device, num_outputs, depth, (1, 2, 4, 8, 16, 32, 64))
    yield from gemm_cases(device, 8960, 1536, (2048,))
    yield mlp(device, rows=8)
    for rows in (1, 64, 2048):
        yield norm(device, rows)
    yield packing(device, inverse=False)
    yield packing(device, inverse=True)
    yield Case(
        op="workspace_bytes",
        name="a call",
        ours=lambda: torch.tensor(workspace_bytes("verify_gemm", "cpu", max_rows=64)),
        peers={},
        bytes_moved=0,
    )


class Rotation:
    """Copies of a weight, a different one on each call."""

    def __init__(self, weight: Tensor, make) -> None:
        copies = max(1, COLD_BYTES // weight.nbytes)
        self.weights = [make(weight) for _ in range(copies)]
        self.calls = 0

    def next(self) -> Tensor:
        self.calls += 1
        return self.weights[self.calls % len(self.weights)]


def close(ours: Tensor, peer: Tensor) -> None:
    """Both are right to a rounding of the output; sums of size 1 may cancel."""
    torch.testing.assert_close(ours.float(), peer.float(), rtol=2**-7, atol=2**-6)


def gemm_cases(device, num_outputs: int, depth: int, rows: tuple[int, ...]) -> Iterator[Case]:
    g = torch.Generator().manual_seed(0)
    weight = (torch.randn(num_outputs, depth, generator=g) / depth**0.5).bfloat16().to(device)
    packed = Rotation(weight, pack_weight)
    plain = Rotation(weight, torch.clone)
    for num_rows in rows:
        x = torch.randn(num_rows, depth, generator=g).bfloat16().to(device)
        out = torch.empty(num_rows, num_outputs, dtype=x.dtype, device=device)
        yield Case(
            op="verify_gemm",
            name=f"bf16 {num_outputs}x{depth}, M={num_rows}",
            ours=lambda x=x, out=out: verify_gemm(
                x, packed.next(), num_outputs=num_outputs, out=out
            ),
            peers=peers(x, weight, plain),
            bytes_moved=weight.nbytes + x.nbytes + out.nbytes,
            macs=num_rows * weight.numel(),
            check=close,
        )


def peers(x: Tensor, weight: Tensor, plain: Rotation) -> dict:
    result = {"torch linear": lambda: torch.nn.functional.linear(x, plain.next())}
    ops = torch.ops.mkldnn  # what torch.compile's freezing uses
    if x.device.type == "cpu" and ops._is_mkldnn_bf16_supported():
        reordered = Rotation(weight, lambda w: ops._reorder_linear_weight(w, len(x)))
        result["oneDNN prepacked"] = lambda: ops._linear_pointwise(
            x, reordered.next(), None, "none", [], ""
        )
    return result


def mlp(device, rows: int) -> Case:
    """Norm, gate and up projections, SiLU and product of a Qwen2.5-1.5B layer in one call."""
    g = torch.Generator().manual_seed(0)
    depth, inner = 1536, 8960
    x = torch.randn(rows, depth, generator=g).bfloat16().to(device)
    norm_weight = torch.rand(depth, generator=g).bfloat16().to(device)
    weight = (torch.randn(2 * inner, depth, generator=g) / depth**0.5).bfloat16().to(device)
    packed = Rotation(weight, lambda w: pack_weight(w, pair=True))
    plain = Rotation(weight, torch.clone)

    def eager() -> Tensor:
        normed = torch.nn.functional.rms_norm(x, (depth,), norm_weight, 1e-6)
        gate, up = torch.nn.functional.linear(normed, plain.next()).chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up

    return Case(
        op="verify_gemm",
        name=f"bf16 norm + silu_mul 2x{inner}x{depth}, M={rows}",
        ours=lambda: verify_gemm(x, packed.next(), norm_weight=norm_weight, act="silu_mul"),
        peers={"eager": eager},
        bytes_moved=weight.nbytes + x.nbytes + 2 * rows * inner,
        macs=rows * weight.numel(),
        check=lambda ours, peer: torch.testing.assert_close(ours, peer, rtol=0.05, atol=0.05),
    )


def norm(device, rows: int) -> Case:
    x = torch.randn(rows, 1536).bfloat16().to(device)
    weight = torch.rand(1536).bfloat16().to(device)
    return Case(
        op="rmsnorm",
        name=f"bf16 H=1536, M={rows}",
        ours=lambda: rmsnorm(x, weight),
        peers={
            "torch": lambda: torch.nn.functional.rms_norm(x, (1536,), weight, 1e-6),
            **installed.rmsnorm(x, weight, 1e-6),
        },
        bytes_moved=2 * x.nbytes,
        check=close,
    )


def packing(device, inverse: bool) -> Case:
    weight = torch.randn(8960, 1536).bfloat16().to(device)
    packed = pack_weight(weight)
    return Case(
        op="unpack" if inverse else "pack_weight",
        name="bf16 8960x1536",
        ours=(lambda: unpack(packed, weight.shape)) if inverse else lambda: pack_weight(weight),
        peers={"copy": lambda: (weight if inverse else packed).clone()},
        bytes_moved=2 * weight.nbytes,
    )
