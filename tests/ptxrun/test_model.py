"""The model of times, against sums done by hand."""

from collections import Counter

import pytest
from ptxrun.counters import KernelSum, Total
from ptxrun.machine import LAUNCH_US, MACHINES
from ptxrun.model import RESOURCES, model_table, modelled, occupancy
from ptxrun.sass import Resources

A100, H100, H200, B200 = MACHINES
LIGHT = Resources(32, 0, 0, 0, 0, 16, {"FFMA": 100})
MEGA = 1 << 20


def kernel(ctas=1320, threads=256, shared=0, in_flight=0, megabytes=64, **counts):
    """One launch that reads `megabytes` once."""
    sectors = megabytes * MEGA // 32
    footprint = {"x": (sectors, 0)}
    total = Total(1, 0, 0, ctas, threads, 0, shared, in_flight, footprint)
    known = {"bytes": 0, "sectors": sectors, "ideal_sectors": sectors, "waves": 0}
    known |= {"ideal_waves": 0, "simd": 1.0, "barriers": 0}
    known |= {"classes": Counter(), "matrix": Counter()}
    return KernelSum(**(known | {"kernel": "k", "total": total} | counts))


@pytest.mark.parametrize(
    ("registers", "threads", "shared", "want"),
    [
        (32, 1024, 0, 2),  # 64 warps
        (33, 1024, 0, 1),  # 40 registers each
        (255, 256, 0, 1),
        (128, 128, 0, 4),
        (16, 32, 0, 32),  # CTAs
        (32, 128, 99 << 10, 1),  # A100: 164 KB, 1 KB of each CTA is the system's
        (32, 128, 81 << 10, 2),
        (32, 128, 164 << 10, 0),
    ],
)
def test_occupancy(registers, threads, shared, want):
    """NVIDIA's occupancy calculator says the same."""
    assert occupancy(LIGHT._replace(registers=registers), threads, shared, A100) == want


def test_memory_binds_a_stream():
    """64 MB at 3.35 TB/s, with 8 CTAs of 8 KB under way on each SM: enough for the full rate."""
    stream = kernel(ctas=1056, in_flight=8 << 10)
    times = modelled(stream, LIGHT, H100, 100)
    assert times.bound == "HBM" and times.ctas_per_sm == 8
    assert times.in_flight == 64 << 10
    assert times.resources["HBM"] == pytest.approx(64 * MEGA / 3.35e12 * 1e6)
    assert times.floor == times.resources["HBM"] and times.tail == 0
    assert times.launch == LAUNCH_US + H100.latency_ns / 1e3
    faster = modelled(stream, LIGHT, H200, 100)
    assert faster.total < times.total


def test_bytes_in_flight_bind_a_lazy_stream():
    """132 SMs with 1 KB each under way, 437 ns away: 0.31 TB/s."""
    heavy = LIGHT._replace(registers=255)
    times = modelled(kernel(ctas=132, in_flight=1024, threads=64), heavy, H100, 100)
    rate = 132 * 1024 / H100.latency_ns
    assert times.resources["HBM"] == pytest.approx(64 * MEGA / rate / 1e3)
    assert times.total > 5 * times.floor


def test_plain_loads_are_under_way_as_ptxas_left_them():
    one = modelled(kernel(ctas=132), LIGHT, H100, 100)
    two = modelled(kernel(ctas=132), LIGHT._replace(load_bytes=32), H100, 100)
    assert one.resources["HBM"] == pytest.approx(2 * two.resources["HBM"])


def test_every_resource_can_bind():
    clock = H100.clock_ghz * 1e3 * H100.sms
    kind = "m64n128k16.f32.bf16.bf16"
    cases = {
        "L2": {"sectors": 64 * MEGA},
        "shared": {"waves": clock * 500},
        "issue": {"classes": Counter(integer=clock * 4 * 500)},
        "tensor": {"matrix": Counter({kind: int(500e-6 * 989.4e12 / (2 * 16 * 128 * 16))})},
    }
    for name, counts in cases.items():
        times = modelled(kernel(ctas=132 * 8, in_flight=8 << 10, **counts), LIGHT, H100, 100)
        assert times.bound == name
        if name != "L2":
            assert times.resources[name] == pytest.approx(500, rel=1e-6)
    fp32 = kernel(classes=Counter(float=A100.clock_ghz * 1e3 * 108 * 500))
    assert modelled(fp32, LIGHT, A100, 100).resources["issue"] == pytest.approx(250)
    twice = modelled(kernel(classes=Counter(integer=clock * 4)), LIGHT, H100, 50)
    assert twice.resources["issue"] == pytest.approx(2)  # two machine instructions for each of PTX


def test_mma_sync_is_slower_than_wgmma_where_both_are():
    def tensor(kind, machine):
        k = kernel(matrix=Counter({kind: 10**6}))
        return modelled(k, LIGHT, machine, 100).resources["tensor"]

    warp, group = "m16n8k16.f32.bf16.bf16.f32", "m64n8k16.f32.bf16.bf16"
    assert tensor(warp, H100) == pytest.approx(tensor(group, H100) / 0.629)
    assert tensor(warp, A100) == pytest.approx(2 * 16 * 8 * 16 * 1e6 / 312e12 * 1e6)


def test_a_last_wave_has_a_tail():
    """One CTA more than a wave holds: the SM that takes it works twice as long."""
    work = {"waves": 132 * 10**6, "in_flight": 8 << 10}
    full = modelled(kernel(ctas=132 * 8, **work), LIGHT, H100, 100)
    more = modelled(kernel(ctas=132 * 8 + 1, **work), LIGHT, H100, 100)
    assert full.tail == 0
    assert more.tail == pytest.approx(more.resources["shared"] / 8, rel=0.01)
    few = modelled(kernel(ctas=10, **work), LIGHT, H100, 100)  # ten SMs do it all
    assert few.tail == 0
    assert few.resources["shared"] == pytest.approx(13.2 * full.resources["shared"])


def test_small_kernels_are_bound_by_their_launch():
    times = modelled(kernel(megabytes=0, in_flight=1024), LIGHT, B200, 100)
    assert times.bound == "launch, tail" and times.total < 2


def test_a_table_says_what_it_is():
    times = [modelled(kernel(in_flight=8 << 10), LIGHT, m, 100) for m in MACHINES]
    text = model_table(times).splitlines()
    assert text[0].startswith("model, not a measurement")
    assert all(name in text[0] for name in (*RESOURCES, "tail", "launch", "binds"))
    assert [line[:4] for line in text[1:]] == ["A100", "H100", "H200", "B200"]
