from pathlib import Path

import ptxrun
import torch


def test_cub():
    """CUB's block and warp primitives, as they are."""
    program = ptxrun.Program(Path(__file__).parent / "programs/cub.cu", "sm_80")
    g = torch.Generator().manual_seed(0)
    x = torch.randint(-1000, 1000, (4, 1024), generator=g, dtype=torch.int32)
    sums, scans, ordered = (
        torch.zeros(4, dtype=torch.int32),
        torch.zeros_like(x),
        torch.zeros_like(x),
    )
    warps = torch.zeros(4, 32, dtype=torch.int32)
    for order in (ptxrun.Order.FORWARD, ptxrun.Order.REVERSE, ptxrun.Order.RANDOM):
        with ptxrun.using(order=order, seed=3):
            assert program("run", x, sums, scans, ordered, warps, 4) == 0
        assert torch.equal(sums, x.sum(1).int())
        assert torch.equal(scans, x.cumsum(1).int() - x)
        assert torch.equal(ordered, x.sort(1).values)
        assert torch.equal(warps, x.view(4, 32, 32).amax(2))
