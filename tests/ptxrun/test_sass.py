"""Registers, spills and machine instructions, where they are known by hand."""

from pathlib import Path

import ptxrun
import pytest
from ptxrun import sass

SOURCE = Path(__file__).parent / "kernels/tools.cu"
MATRIX = """
.version 8.8
.target sm_80
.address_size 64
.visible .entry product(.param .u64 p) {
  .reg .b32 d<4>, a<4>, b<2>, at;
  .reg .b64 out;
  .shared .align 16 .b8 tile[1024];
  mov.u32 at, tile;
  ldmatrix.sync.aligned.m8n8.x4.shared.b16 {a0, a1, a2, a3}, [at];
  ldmatrix.sync.aligned.m8n8.x2.shared.b16 {b0, b1}, [at];
  mov.u32 d0, 0;
  mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
    {d0, d1, d2, d3}, {a0, a1, a2, a3}, {b0, b1}, {d0, d0, d0, d0};
  ld.param.u64 out, [p];
  st.global.v4.b32 [out], {d0, d1, d2, d3};
  ret;
}
"""


@pytest.fixture(scope="module")
def resources():
    return sass.assembled(ptxrun.compiled(SOURCE, "sm_80"), "sm_80")


def test_spills_are_seen(resources):
    r = resources["spills"]
    assert r.registers == 255 and r.spill_stores > 400 and r.stack > 400
    assert r.count("STL") > 0 and r.count("LDL") > 0
    for name in ("doubled", "shared_and_own", "two_stages"):
        r = resources[name]
        assert r.registers <= 40 and (r.stack, r.spill_stores, r.spill_loads) == (0, 0, 0)
        assert r.count("STL") == 0


def test_machine_instructions(resources):
    assert resources["two_stages"].count("LDGSTS") == 6
    assert resources["two_stages"].static_shared == 1024
    product = sass.assembled(MATRIX, "sm_80")["product"]
    assert product.count("HMMA.16816.F32.BF16") == product.count("HMMA") == 1
    assert product.count("LDSM") == 2 and product.count("HM") == 0
    assert product.static_shared == 1024


def test_loads_under_way(resources):
    """A loop unrolled by four has its four loads, and the one before it, under way."""
    assert resources["shared_and_own"].load_bytes == 5 * 4
    assert resources["doubled"].load_bytes == 4


def test_every_device_of_the_model_can_be_assembled_for():
    ptx = ptxrun.compiled(SOURCE, "compute_80")
    for arch in ("sm_80", "sm_90a", "sm_100a"):
        assert sass.assembled(ptx, arch)["doubled"].count("STG") == 1
