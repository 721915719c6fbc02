"""The model of times at the shapes of Qwen3-8B: memory binds up to 32 rows, and little is lost."""

import pytest
import torch
from emulator import ptxrun

from dflash_ops import verify_gemm

HOPPER = [m for m in ptxrun.MACHINES if m.name in ("H100", "H200")]
# Times of the floor, the bytes alone, at most; by rows. At 32 rows a CTA reads x, from L2, as often
# as it reads weights: L2 binds on H200.
FROM_FLOOR = {1: 1.2, 8: 1.2, 32: 1.5}


@pytest.mark.parametrize("num_rows", FROM_FLOOR)
@pytest.mark.parametrize(("outputs", "depth"), [(24576, 4096), (4096, 12288)])
def test_memory_binds_verify_gemm(outputs, depth, num_rows):
    weight = torch.zeros(outputs, depth, dtype=torch.bfloat16)
    x = torch.zeros(num_rows, depth, dtype=torch.bfloat16)
    times = ptxrun.model_of(lambda: verify_gemm(x, weight), sample=1, machines=HOPPER)
    assert {t.machine for t in times} == {"H100", "H200"}
    for t in times:
        assert t.bound == "HBM" or num_rows == 32, t
        assert t.total <= FROM_FLOOR[num_rows] * t.floor, t
