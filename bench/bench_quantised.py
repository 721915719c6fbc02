from collections.abc import Iterator

import torch
from bench_gemm import COLD_BYTES, SHAPES
from case import Case
from torch import Tensor

from dflash_ops import QuantisedWeight, pack_w4, pack_w8, unpack, verify_gemm_w4, verify_gemm_w8

ROWS = (1, 2, 4, 8, 16, 32, 64)


def cases(device: torch.device) -> Iterator[Case]:
    if device.type != "cpu":
        return
    for num_outputs, depth in SHAPES:
        for group in (32, 128):
            yield from w4_cases(num_outputs, depth, group)
        yield from w8_cases(num_outputs, depth)
    yield packing("pack_w4")
    yield packing("pack_w8")


def copies_of(tensor: Tensor) -> list[Tensor]:
    """So many that none comes from a cache."""
    return [tensor.clone() for _ in range(max(1, COLD_BYTES // tensor.nbytes))]


class Turns:
    """A different element on each call."""

    def __init__(self, items: list) -> None:
        self.items = items
        self.calls = 0

    def next(self):
        self.calls += 1
        return self.items[self.calls % len(self.items)]


def gptq(num_outputs: int, depth: int, group: int) -> dict:
    """Uniform codes with zeros of 8; products with normal x are of size 1."""
    g = torch.Generator().manual_seed(0)
    words = torch.randint(-(2**31), 2**31, (depth // 8, num_outputs), generator=g).int()
    scales = torch.rand(-(-depth // group), num_outputs, generator=g) + 0.5
    return {
        "weight": words,
        "scales": (scales * 0.2 / depth**0.5).half(),
        "source": "gptq",
        "group_size": group,
    }


def with_mins(call: dict) -> QuantisedWeight:
    """The same weight in the format with zeros, whose stream is as long as that of Q4_1."""
    zeros = torch.full((len(call["scales"]), -(-call["weight"].shape[1] // 8)), 0x77777777).int()
    return pack_w4(**call, zeros=zeros)


def close(ours: Tensor, peer: Tensor) -> None:
    """The peers' weights are rounded to bf16; sums of size 1 may cancel."""
    torch.testing.assert_close(ours.float(), peer.float(), rtol=2**-5, atol=2**-4)


def w4_cases(num_outputs: int, depth: int, group: int) -> Iterator[Case]:
    call = gptq(num_outputs, depth, group)
    packed, name = with_mins(call)
    values = unpack(packed, (num_outputs, depth), format=name).bfloat16()
    ours = Turns(copies_of(packed))
    plain = Turns(copies_of(values))
    torch_int4 = Turns([int4pack(call, copy) for copy in copies_of(call["weight"])])
    g = torch.Generator().manual_seed(1)
    for num_rows in ROWS:
        x = torch.randn(num_rows, depth, generator=g).bfloat16()
        out = torch.empty(num_rows, num_outputs, dtype=x.dtype)
        peers = {"torch linear": lambda x=x: torch.nn.functional.linear(x, plain.next())}
        if depth % group == 0:
            peers["torch int4"] = lambda x=x: torch.ops.aten._weight_int4pack_mm_for_cpu(
                x, torch_int4.next()[0], group, torch_int4.items[0][1]
            )
        yield Case(
            op="verify_gemm_w4",
            name=f"{name} {num_outputs}x{depth}, M={num_rows}",
            ours=lambda x=x, out=out: verify_gemm_w4(
                x, ours.next(), name, num_outputs=num_outputs, out=out
            ),
            peers=peers,
            bytes_moved=packed.nbytes + x.nbytes + out.nbytes,
            macs=num_rows * num_outputs * depth,
            check=close,
        )


def int4pack(call: dict, words: Tensor) -> tuple[Tensor, Tensor]:
    """torch's packed form of codes with zero 8, and its scales and zeros [groups, N, 2]."""
    shifts = torch.arange(0, 32, 4)
    codes = (words[:, None] >> shifts[:, None] & 15).flatten(0, 1).T.contiguous()
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.int(), 1)
    scales = call["scales"].bfloat16()
    return packed, torch.stack([scales, torch.zeros_like(scales)], -1).contiguous()


def w8_cases(num_outputs: int, depth: int) -> Iterator[Case]:
    g = torch.Generator().manual_seed(0)
    codes = torch.randint(-128, 128, (num_outputs, depth), generator=g).char()
    scales = (torch.rand(num_outputs, depth // 32, generator=g) + 0.5) / 64 / depth**0.5
    packed, name = pack_w8(codes, scales.half(), block=(1, 32))
    values = unpack(packed, (num_outputs, depth), format=name).bfloat16()
    ours, plain = Turns(copies_of(packed)), Turns(copies_of(values))
    for num_rows in ROWS:
        x = torch.randn(num_rows, depth, generator=g).bfloat16()
        out = torch.empty(num_rows, num_outputs, dtype=x.dtype)
        yield Case(
            op="verify_gemm_w8",
            name=f"{name} {num_outputs}x{depth}, M={num_rows}",
            ours=lambda x=x, out=out: verify_gemm_w8(
                x, ours.next(), name, num_outputs=num_outputs, out=out
            ),
            peers={"torch linear": lambda x=x: torch.nn.functional.linear(x, plain.next())},
            bytes_moved=packed.nbytes + x.nbytes + out.nbytes,
            macs=num_rows * num_outputs * depth,
            check=close,
        )


def packing(op: str) -> Case:
    num_outputs, depth = 8960, 1536
    call = gptq(num_outputs, depth, 128)
    if op == "pack_w8":
        codes = torch.zeros(num_outputs, depth, dtype=torch.int8)
        call = {"weight": codes, "scales": torch.ones(num_outputs, 1)}
    run = {"pack_w4": pack_w4, "pack_w8": pack_w8}[op]
    packed = run(**call).packed
    return Case(
        op=op,
        name=f"{num_outputs}x{depth}",
        ours=lambda: run(**call).packed,
        peers={"copy": packed.clone},
        bytes_moved=2 * packed.nbytes,
    )
