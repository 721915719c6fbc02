"""The machine's own limits, measured: read bandwidth and multiply-accumulate peaks."""

import ctypes
import functools
import mmap
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

READ_BYTES = 2**28  # well past any cache
HUGE_PAGE = 2**21
PEAK_STEPS = 2_000_000
CHAINS = 12  # as in probe.cpp


@functools.cache
def _library() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "probe.so"
        source = Path(__file__).with_suffix(".cpp")
        command = ("g++", "-std=c++20", "-O3", "-march=native", "-shared", "-fPIC")
        subprocess.run((*command, str(source), "-o", str(built)), check=True)
        library = ctypes.CDLL(str(built))
    library.read_bytes.argtypes = (ctypes.c_void_p, ctypes.c_uint64)
    for name in ("peak_f32", "peak_bf16", "peak_int8"):
        getattr(library, name).argtypes = (ctypes.c_uint64,)
    return library


@functools.cache
def _buffer() -> mmap.mmap:
    """In huge pages where the system has them, as weights are."""
    buffer = mmap.mmap(-1, READ_BYTES + HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    buffer.madvise(mmap.MADV_HUGEPAGE)
    buffer.write(b"\1" * len(buffer))
    return buffer


def _on_every_thread(call) -> float:
    """Seconds that torch.get_num_threads() concurrent calls take; ctypes lets them run at once."""
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: None, range(threads)))
        begin = time.perf_counter()
        list(pool.map(call, range(threads)))
        return time.perf_counter() - begin


def read_bandwidth() -> float:
    """Bytes per second of a plain read loop over 256 MB, one share a thread."""
    share = READ_BYTES // torch.get_num_threads()
    address = ctypes.addressof(ctypes.c_char.from_buffer(_buffer()))
    address = -(-address // HUGE_PAGE) * HUGE_PAGE
    read = _library().read_bytes
    return READ_BYTES / _on_every_thread(lambda i: read(address + i * share, share))


def peak(arithmetic: str) -> float:
    """Multiply-accumulates per second of `bf16`, `fp32` or `int8` dot instructions; 0: none."""
    step = getattr(_library(), {"fp32": "peak_f32"}.get(arithmetic, f"peak_{arithmetic}"))
    if step(1) == 0:
        return 0.0
    macs = step(1) * CHAINS * PEAK_STEPS * torch.get_num_threads()
    return macs / _on_every_thread(lambda _: step(PEAK_STEPS))
