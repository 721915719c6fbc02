"""Times of a call and its peers, one after another, with cold caches; medians."""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from case import Case

FLUSH_BYTES = {"cuda": 2**28, "cpu": 2**26}  # more than any L2 of a GPU, or L3 of a CPU's share
ROUNDS = 20


class Timer:
    """Seconds of one call on a device; the cache is overwritten before each."""

    def __init__(self, device: torch.device, flush_bytes: int | None = None) -> None:
        self.device = device
        size = FLUSH_BYTES[device.type] if flush_bytes is None else flush_bytes
        self._flushed = torch.zeros(size, dtype=torch.uint8, device=device)

    def prepared(self, call: Callable[[], Any]) -> Callable[[], Any]:
        """On a GPU a graph of the call, so that the host's time is not in it; or the call itself,
        if it waits for the device."""
        if self.device.type != "cuda":
            return call
        call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                call()
        except RuntimeError:
            torch.cuda.synchronize()
            return call
        return graph.replay

    def seconds(self, call: Callable[[], Any]) -> float:
        self._flushed.add_(1)
        if self.device.type != "cuda":
            begin = time.perf_counter()
            call()
            return time.perf_counter() - begin
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    def medians(self, calls: list[Callable[[], Any]], rounds: int) -> list[dict[str, float]]:
        ready = [self.prepared(call) for call in calls]
        samples = [[self.seconds(call) for call in ready] for _ in range(rounds)]
        return [spread(list(column)) for column in zip(*samples, strict=True)]


def spread(samples: list[float]) -> dict[str, float]:
    """Milliseconds: the median, and where 5 and 95 of 100 samples lie."""
    ordered = sorted(samples)
    last = len(ordered) - 1
    low, high = ordered[round(0.05 * last)], ordered[round(0.95 * last)]
    named = {"median": statistics.median(ordered), "p5": low, "p95": high}
    return {name: 1e3 * value for name, value in named.items()}


def row(case: Case, device: torch.device, peer: str | None, **values: Any) -> dict:
    return {
        "suite": "gpu",
        "op": case.op,
        "case": case.name,
        "device": device.type,
        "peer": peer,
        **values,
    }


def measure(case: Case, timer: Timer, copy_gbps: float, rounds: int = ROUNDS) -> Iterator[dict]:
    """A row for each peer, in the form of bench/run.py; a peer that fails has its error there."""
    result = case.ours()
    peers = {}
    for name, peer in case.peers.items():
        if "compiled" in name:  # takes longer to compile than the suite has
            continue
        try:
            theirs = peer()
        except Exception as error:  # others' code, at whatever version is installed
            yield row(case, timer.device, name, error=f"{type(error).__name__}: {error}"[:300])
            continue
        case.check(result, theirs)
        peers[name] = peer
    ours, *theirs = timer.medians([case.ours, *peers.values()], rounds)
    gbps = case.bytes_moved / ours["median"] / 1e6
    own = {
        "ours_ms": round(ours["median"], 5),
        "ours_p5_ms": round(ours["p5"], 5),
        "ours_p95_ms": round(ours["p95"], 5),
        "bytes": case.bytes_moved,
        "gbps": round(gbps, 3),
        "fraction_of_read_bandwidth": round(gbps / copy_gbps, 4),
        "fraction_of_peak": None,
    }
    for name, times in zip(peers, theirs, strict=True):
        ratio = round(times["median"] / ours["median"], 3)
        yield row(case, timer.device, name, peer_ms=round(times["median"], 5), ratio=ratio, **own)
    if not peers:
        yield row(case, timer.device, None, peer_ms=None, ratio=None, **own)


def copy_gbps(timer: Timer, size: int) -> float:
    """Read and written, of a copy."""
    source = torch.zeros(size, dtype=torch.uint8, device=timer.device)
    target = torch.empty_like(source)
    (times,) = timer.medians([lambda: target.copy_(source)], ROUNDS)
    return 2 * size / times["median"] / 1e6


def matrix_tflops(timer: Timer, size: int, dtype: torch.dtype) -> float:
    a, b = (torch.ones(size, size, dtype=dtype, device=timer.device) for _ in "ab")
    (times,) = timer.medians([lambda: a @ b], ROUNDS)
    return 2 * size**3 / times["median"] / 1e9
