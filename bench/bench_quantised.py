import itertools
from collections.abc import Callable, Iterator
from functools import partial

import torch
from bench_gemm import SHAPES, Rotation
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


def with_zeros(call: dict) -> QuantisedWeight:
    """The same weight in the format with zeros, whose stream is as long as that of Q4_1."""
    zeros = torch.full((len(call["scales"]), -(-call["weight"].shape[1] // 8)), 0x77777777).int()
    return pack_w4(**call, zeros=zeros)


def close(ours: Tensor, peer: Tensor) -> None:
    """That like is compared with like. The peers' weights and outputs are rounded to bf16, by 2^-9
    each; allowed are 16 times that, and for sums of size 1, which may cancel, 32 times."""
    torch.testing.assert_close(ours.float(), peer.float(), rtol=2**-5, atol=2**-4)


def w4_cases(num_outputs: int, depth: int, group: int) -> Iterator[Case]:
    call = gptq(num_outputs, depth, group)
    peers = {"torch int4": torch_int4(call)} if depth % group == 0 else {}
    make = partial(with_zeros, call)
    yield from product_cases(verify_gemm_w4, make, (num_outputs, depth), peers)


def product_cases(
    product: Callable[..., Tensor],
    make: Callable[[], QuantisedWeight],
    shape: tuple[int, int],
    peers: dict[str, Callable[[Tensor], Tensor]],
) -> Iterator[Case]:
    """Rows as they are and rounded to int8, against torch with the values in bf16 and `peers`."""
    weight = make()
    values = unpack(weight.packed, shape, format=weight.format).bfloat16()
    # Packed anew, not cloned: only packing lays a weight in huge pages.
    packed, plain = Rotation(weight.packed, lambda _: make().packed), Rotation(values, torch.clone)
    peers = peers | {"torch linear": lambda x: torch.nn.functional.linear(x, plain.next())}
    num_outputs, depth = shape
    g = torch.Generator().manual_seed(1)
    for num_rows, activations in itertools.product(ROWS, ("float", "int8")):
        x = torch.randn(num_rows, depth, generator=g).bfloat16()
        out = torch.empty(num_rows, num_outputs, dtype=x.dtype)
        options = {"num_outputs": num_outputs, "activations": activations, "out": out}
        yield Case(
            op=product.__name__,
            name=f"{weight.format} {num_outputs}x{depth}, {activations} rows, M={num_rows}",
            ours=lambda x=x, o=options: product(x, packed.next(), weight.format, **o),
            peers={name: partial(peer, x) for name, peer in peers.items()},
            bytes_moved=weight.packed.nbytes + x.nbytes + out.nbytes,
            macs=num_rows * num_outputs * depth,
            check=close,
            arithmetic="int8" if activations == "int8" else "bf16",
        )


def torch_int4(call: dict) -> Callable[[Tensor], Tensor]:
    """torch's product with (q - 8) * scale + 0; scales and zeros are [groups, N, 2]."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    codes = (call["weight"][:, None] >> shifts[:, None] & 15).flatten(0, 1).T.contiguous()
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
    weights = Rotation(packed, torch.clone)
    scales = call["scales"].bfloat16()
    scales = torch.stack([scales, torch.zeros_like(scales)], -1).contiguous()
    op, group = torch.ops.aten._weight_int4pack_mm_for_cpu, call["group_size"]
    return lambda x: op(x, weights.next(), group, scales)


def w8_cases(num_outputs: int, depth: int) -> Iterator[Case]:
    g = torch.Generator().manual_seed(0)
    codes = torch.randint(-128, 128, (num_outputs, depth), generator=g).char()
    scales = (torch.rand(num_outputs, depth // 32, generator=g) + 0.5) / 64 / depth**0.5
    make = partial(pack_w8, codes, scales.half(), block=(1, 32))
    yield from product_cases(verify_gemm_w8, make, (num_outputs, depth), {})


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
