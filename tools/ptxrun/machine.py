"""Figures of the GPUs that the model knows, each with its public source.

Peaks are NVIDIA's: A100 data sheet and Ampere white paper, H100 and H200 data sheets and Hopper
white paper, HGX B200 data sheet. What no data sheet has:

- l2_gb_s: A100: 5120 bytes a clock (Ampere white paper). H100: 6.65 TB/s, as OpenXLA measured it
  (gpu_dot_fusion_cost_model.cc). B200: no public figure used; H100's, by the number of SMs.
- latency_ns: 800 clocks, the upper end of the 400 to 800 that CUDA's programming guide gives for
  global memory; loaded memory is what is modelled, so the upper end.
- mma_sync: the part of the tensor peak that mma.sync reaches. Hopper: 0.629 (arXiv:2501.12084,
  section 6.2). B200: no public figure used; Hopper's rate of each SM.
- LAUNCH_US: what a kernel costs beside its run inside a CUDA graph: 3.4 us for one of 2.9 us
  (NVIDIA, "Getting Started with CUDA Graphs").
"""

from typing import NamedTuple

LAUNCH_US = 0.5
REGISTERS = 65536  # of an SM: CUDA programming guide, compute capabilities; so the next
MAX_WARPS, MAX_CTAS, RESERVED_SHARED = 64, 32, 1024
SM_PORT_BYTES = 64  # that an SM takes from L2 a clock (Ampere and Hopper white papers)


class Machine(NamedTuple):
    name: str
    ptx_arch: int  # whose PTX of ours it runs
    sass_arch: str
    sms: int
    clock_ghz: float
    hbm_gb_s: float
    l2_gb_s: float
    shared_per_sm: int
    fp32_lanes: int  # of an SM
    tflops: dict[str, float]  # dense, by the type of the operands
    mma_sync: float

    @property
    def latency_ns(self) -> float:
        return 800 / self.clock_ghz


def _tflops(tf32: float, half: float, byte: float) -> dict[str, float]:
    halves = dict.fromkeys(("bf16", "f16"), half)
    return {"tf32": tf32, **halves, **dict.fromkeys(("e4m3", "e5m2", "s8", "u8"), byte)}


_A100 = Machine(
    name="A100",
    ptx_arch=80,
    sass_arch="sm_80",
    sms=108,
    clock_ghz=1.41,
    hbm_gb_s=2039,
    l2_gb_s=7219,
    shared_per_sm=164 << 10,
    fp32_lanes=64,
    tflops=_tflops(156, 312, 624),
    mma_sync=1.0,
)
_H100 = Machine(
    name="H100",
    ptx_arch=90,
    sass_arch="sm_90a",
    sms=132,
    clock_ghz=1.83,
    hbm_gb_s=3350,
    l2_gb_s=6650,
    shared_per_sm=228 << 10,
    fp32_lanes=128,
    tflops=_tflops(494.7, 989.4, 1978.9),
    mma_sync=0.629,
)
_H200 = _H100._replace(name="H200", hbm_gb_s=4800)
_B200 = Machine(
    name="B200",
    ptx_arch=80,  # sm_100a has the portable body
    sass_arch="sm_100a",
    sms=148,
    clock_ghz=1.86,
    hbm_gb_s=8000,
    l2_gb_s=7456,
    shared_per_sm=228 << 10,
    fp32_lanes=128,
    tflops=_tflops(1125, 2250, 4500),
    mma_sync=0.31,
)
MACHINES = (_A100, _H100, _H200, _B200)
