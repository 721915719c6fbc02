"""How long a kernel would take, by resource: a model from counters, SASS and data sheets.

Every resource is taken to be busy all the time, so the largest time binds:

- HBM: distinct sectors, at the data sheet's rate or at bytes under way / latency, if that is less.
  Under way is what ptxrun saw of asynchronous copies, or what ptxas made of plain loads.
- L2: sectors asked. Shared memory: wavefronts, one a clock. Issue: warp instructions, four a clock,
  scaled by how many machine instructions ptxas made of the PTX, and fp32 lanes.
- Tensor cores: multiply-adds by kind. Tail: what a last, partly empty wave of CTAs adds. Launch.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from . import _ptxrun
from .counters import KernelSum, by_kernel, counters, multiply_adds
from .device import emulated
from .machine import (
    LAUNCH_US,
    MACHINES,
    MAX_CTAS,
    MAX_WARPS,
    REGISTERS,
    RESERVED_SHARED,
    SM_PORT_BYTES,
    Machine,
)
from .module import using
from .sass import Resources, assembled, image_of

RESOURCES = ("HBM", "L2", "shared", "issue", "tensor")


class Times(NamedTuple):
    """Microseconds of one launch of a kernel on one machine; a model."""

    kernel: str
    launches: int  # of this kernel with this grid
    machine: str
    resources: dict[str, float]
    tail: float
    launch: float
    floor: float  # its bytes at the full rate of HBM
    ctas_per_sm: int
    in_flight: float  # bytes an SM

    @property
    def total(self) -> float:
        return max(self.resources.values()) + self.tail + self.launch

    @property
    def bound(self) -> str:
        name = max(self.resources, key=self.resources.__getitem__)
        return name if self.resources[name] >= self.launch + self.tail else "launch, tail"


def occupancy(r: Resources, threads: int, shared: int, machine: Machine) -> int:
    """CTAs that an SM holds."""
    warps = -(-threads // 32)
    registers = -(-r.registers * 32 // 256) * 256 * (-(-warps // 4) * 4)
    shared_limit = machine.shared_per_sm // (shared + RESERVED_SHARED)
    return min(MAX_CTAS, MAX_WARPS // warps, REGISTERS // registers, shared_limit)


def _tensor_us(k: KernelSum, m: Machine) -> float:
    seconds = 0.0
    for kind, count in k.matrix.items():
        operand = next(p for p in kind.split(".")[2:] if p in m.tflops)
        rate = m.tflops[operand] * 1e12 * (1 if kind.startswith("m64") else m.mma_sync)
        seconds += 2 * multiply_adds(kind) * count / rate
    return seconds * 1e6


def modelled(k: KernelSum, r: Resources, m: Machine, ptx_instructions: int) -> Times:
    """One launch of a kernel; `k` may hold several of the same grid, then their mean."""
    t = k.total
    n, ctas = t.launches, t.ctas / t.launches
    per_sm = occupancy(r, t.threads, t.static_shared + t.dynamic_shared, m)
    if per_sm == 0:
        raise ValueError(f"{k.kernel} does not fit an SM of {m.name}")
    under_way = max(t.in_flight, r.load_bytes * t.threads, 32)  # of a CTA
    slots = m.sms * per_sm
    waves, rest = divmod(ctas, slots)
    used = min(m.sms, ctas)
    busiest = waves * per_sm + -(-rest // m.sms)  # CTAs of one SM
    bytes_of = 32 * sum(read + written for read, written in t.footprint.values()) / n

    def hbm_us(share: float, at_a_time: float) -> float:
        """Of a part of the bytes, while so many CTAs run."""
        rate = min(m.hbm_gb_s, at_a_time * under_way / m.latency_ns)  # bytes a nanosecond
        return share * bytes_of / rate / 1e3 if share else 0.0

    clock = m.clock_ghz * 1e3  # clocks a microsecond
    machine_code = r.instructions / max(ptx_instructions, 1)
    issue = sum(k.classes.values()) * machine_code / 4
    fp32 = k.classes["float"] * 32 / m.fp32_lanes
    one_sm = {  # if one did it all
        "shared": k.waves / n / clock,
        "issue": max(issue, fp32) / n / clock,
        "tensor": _tensor_us(k, m) / n * m.sms,
    }
    l2_rate = min(m.l2_gb_s, used * SM_PORT_BYTES * m.clock_ghz)
    full = {
        "HBM": hbm_us(1, min(ctas, slots)),
        "L2": 32 * k.sectors / n / l2_rate / 1e3,
        **{name: time / used for name, time in one_sm.items()},
    }
    late = {
        "HBM": hbm_us(waves * slots / ctas, slots) + hbm_us(rest / ctas, rest),
        **{name: time / ctas * busiest for name, time in one_sm.items()},
    }
    return Times(
        kernel=k.kernel,
        launches=n,
        machine=m.name,
        resources=full,
        tail=max(0.0, max(late.values()) - max(full.values())),
        launch=LAUNCH_US + m.latency_ns / 1e3,
        floor=bytes_of / m.hbm_gb_s / 1e3,
        ctas_per_sm=per_sm,
        in_flight=under_way * min(per_sm, ctas / used),
    )


def model_of(
    call: Callable[[], Any], sample: int = 0, machines: Iterable[Machine] = MACHINES
) -> list[Times]:
    """Of every kernel, and every grid of it, that a call of dflash ops launches.

    With `sample`, that many CTAs of each grid run, spread over it, and counters are multiplied by
    what they stand for; sectors of a tensor grow alike, up to the tensor. So the shapes may be the
    real ones; results are then not computed, and kernels whose CTAs wait for others do not fit.
    """
    times = []
    for arch in sorted({m.ptx_arch for m in machines}):
        options = {"footprint": True, "by_grid": True, "sample": sample}
        options |= {"checks": False, "uninitialised": False}
        counters(reset=True)
        with using(**options), emulated(_refuse, arch):
            call()
        for k in by_kernel():
            name = k.kernel.partition("@")[0]  # without its grid
            ptx = image_of(name, arch)
            census = _ptxrun.Module(ptx).census(name)
            for machine in machines:
                if machine.ptx_arch == arch:
                    resources = assembled(ptx, machine.sass_arch)[name]
                    one = k._replace(kernel=name)
                    times.append(modelled(one, resources, machine, sum(census.values())))
        counters(reset=True)
    return times


def _refuse(message: str) -> None:
    raise NotImplementedError(message)


def model_table(times: Iterable[Times]) -> str:
    head = ("launches", *RESOURCES, "tail", "launch", "sum", "CTAs/SM", "KB/SM", "binds")
    lines = [f"{'model, not a measurement; us:':30}" + "".join(f"{name:>9}" for name in head)]
    for t in times:
        numbers = [*t.resources.values(), t.tail, t.launch, t.total]
        cells = f"{t.launches:9}" + "".join(f"{x:9.2f}" for x in numbers)
        cells += f"{t.ctas_per_sm:9}{t.in_flight / 1024:9.1f}  {t.bound}"
        short = re.search(r"(?<=\d)[a-z_]+_kernel", t.kernel)
        name = short.group() if short else t.kernel[-25:]
        lines.append(f"{t.machine:5}{name:25}{cells}")
    return "\n".join(lines)
