from collections.abc import Iterator

import torch
from case import Case
from torch import Tensor

from dflash_ops import block_conv, select_path


def cases(device: torch.device) -> Iterator[Case]:
    for batch in (1, 16):
        yield block_conv_of_8(device, batch)
        yield select_path_of_7(device, batch)


def block_conv_of_8(device: torch.device, batch: int) -> Case:
    """Qwen3.8-27B-DFlash2: H 5120, groups of 16, 2 taps, blocks of 8; bf16."""
    g = torch.Generator().manual_seed(0)
    rows, channels, groups, size = 8 * batch, 5120, 320, 8

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g).bfloat16().to(device)

    x, base = normal(rows, channels), normal(2, channels)
    delta = normal(rows, 2, 2, groups)[:, 0]

    def eager() -> Tensor:
        weight = base + delta.repeat_interleave(channels // groups, dim=2)
        before = torch.nn.functional.pad(x.unflatten(0, (batch, size)), (0, 0, 1, 0))[:, :-1]
        return weight[:, 0] * x + weight[:, 1] * before.flatten(0, 1)

    return Case(
        op="block_conv",
        name=f"B={batch}, block 8, H=5120, bf16",
        ours=lambda: block_conv(x, delta, base, block_size=size),
        peers={"eager": eager},
        bytes_moved=2 * (2 * rows * channels + 2 * rows * groups + 2 * channels),
        check=lambda ours, peer: torch.testing.assert_close(ours, peer, rtol=2**-5, atol=2**-4),
    )


def select_path_of_7(device: torch.device, batch: int) -> Case:
    """7 slots of 16 candidates, rank 256, greedy; entries that make every order of sums exact."""
    g = torch.Generator().manual_seed(0)
    slots, candidates, rank, vocab = 7, 16, 256, 100_000

    def small(*shape: int) -> Tensor:
        return torch.randint(-1, 2, shape, generator=g).float().to(device)

    ids = torch.randint(vocab, (batch, slots, candidates), generator=g).sort(-1)[0].to(device)
    args = small(batch, slots, candidates), ids, small(batch, slots, rank).bfloat16()
    anchors = torch.randint(vocab, (batch,), generator=g).to(device)
    books = small(vocab, rank).bfloat16(), small(vocab, rank).bfloat16()
    return Case(
        op="select_path",
        name=f"B={batch}, 7 slots, K=16, r=256, bf16",
        ours=lambda: select_path(*args, anchors, *books).tokens,
        peers={"eager walk": lambda: eager_walk(*args, anchors, *books)},
        bytes_moved=batch * slots * (2 * rank * (candidates + 2) + 12 * candidates),
        macs=batch * slots * rank * (candidates + 1),
        arithmetic="fp32",
    )


def eager_walk(
    values: Tensor,
    ids: Tensor,
    hidden: Tensor,
    anchors: Tensor,
    predecessor: Tensor,
    successor: Tensor,
) -> Tensor:
    token, path = anchors, []
    for slot in range(values.shape[1]):
        factor = predecessor[token].float() * hidden[:, slot].float()
        edge = torch.einsum("br,bkr->bk", factor, successor[ids[:, slot]].float())
        choice = (values[:, slot] + edge).argmax(1)
        token = ids[:, slot].gather(1, choice[:, None])[:, 0]
        path.append(token)
    return torch.stack(path, dim=1)
