"""Cases on a GPU, through the driver alone; sectors and wavefronts through Nsight Compute."""

import csv
import ctypes
import io
import shutil
import subprocess
import sys

import numpy as np

from .case import Case, Words
from .tensor_map import encoded_map, mapped_array

METRICS = {
    "ld.global": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "st.global": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "shared": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
}


class Gpu:
    def __init__(self, driver: str = "libcuda.so.1") -> None:
        self._cuda = ctypes.CDLL(driver)
        self._call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        text = ctypes.create_string_buffer(100)
        self._call("cuDeviceGetName", text, 100, device)
        self.name = text.value.decode()
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(major), 75, device)
        self._call("cuDeviceGetAttribute", ctypes.byref(minor), 76, device)
        self.capability = 10 * major.value + minor.value

    def _call(self, name: str, *arguments: object) -> None:
        error = getattr(self._cuda, name)(*arguments)
        if error != 0:
            raise RuntimeError(f"{name}: error {error}")

    def run(self, case: Case) -> Words:
        arrays = [*case.inputs, np.zeros(case.output, dtype=np.uint32)]
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), case.ptx.encode())
        self._call("cuModuleGetFunction", ctypes.byref(function), module, b"run")
        addresses = [self._copied(array) for array in arrays]
        values: list = [ctypes.c_uint64(a) for a in addresses]
        if case.tensor_map is not None:
            place = mapped_array(case, len(case.inputs))
            data = encoded_map(self._cuda, case.tensor_map, addresses[place])
            values.insert(0, (ctypes.c_uint8 * 128).from_buffer_copy(data))
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        shape = (case.grid, 1, 1, case.block, 1, 1, case.smem)
        if case.smem > 48 << 10:
            self._call("cuFuncSetAttribute", function, 8, case.smem)
        self._call("cuLaunchKernel", function, *shape, None, pointers, None)
        self._call("cuCtxSynchronize")
        result = arrays[-1]
        target = ctypes.c_void_p(result.ctypes.data)
        size = ctypes.c_size_t(result.nbytes)
        self._call("cuMemcpyDtoH_v2", target, ctypes.c_uint64(addresses[-1]), size)
        for address in addresses:
            self._call("cuMemFree_v2", ctypes.c_uint64(address))
        self._call("cuModuleUnload", module)
        return result

    def _copied(self, array: np.ndarray) -> int:
        address, size = ctypes.c_uint64(), ctypes.c_size_t(array.nbytes)
        self._call("cuMemAlloc_v2", ctypes.byref(address), size)
        self._call("cuMemcpyHtoD_v2", address, ctypes.c_void_p(array.ctypes.data), size)
        return address.value


def metric_of(case: Case) -> str:
    opcode = case.name.split("/")[1]
    kind = "shared" if "shared" in opcode else ".".join(opcode.split(".")[:2])
    return METRICS[kind]


def profiled(patterns: list[Case]) -> dict[str, tuple[int, int]]:
    """Sectors and wavefronts by pattern; empty where there is no ncu, or it may not count."""
    ncu = shutil.which("ncu")
    if ncu is None:
        return {}
    command = [ncu, "--csv", "--page", "raw", "--metrics", ",".join(METRICS.values())]
    command += [sys.executable, "-m", __package__, "patterns"]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(io.StringIO("\n".join(lines))))[1:]  # the first holds units
    if len(rows) != len(patterns):
        print(f"ncu: {len(rows)} kernels of {len(patterns)}", done.stderr[-300:], file=sys.stderr)
        return {}
    counts = {}
    for case, row in zip(patterns, rows, strict=True):
        metric = metric_of(case)
        count = int(float(row[metric].replace(",", "")))
        counts[case.name] = (0, count) if metric == METRICS["shared"] else (count, 0)
    return counts
