"""What host code sees of the device: addresses that it must not read, and encoded tensor maps."""

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ptxrun.corpus.case import TensorMap
from ptxrun.corpus.tensor_map import encoded_map
from ptxrun.module import HERE

READS = {
    "from Python": """
memory = ptxrun.memory.DeviceMemory([("x", x)])
view = memory.to_device(x)
print("reads", flush=True)
view[1].item()
""",
    "from C": f"""
program = ptxrun.Program(Path({str(Path(__file__).parent / "kernels/tools.cu")!r}), "sm_80")
print("reads", flush=True)
program("peek", x)
""",
}


@pytest.mark.parametrize("reader", READS)
def test_a_host_read_of_device_data_ends_the_process(reader):
    code = "from pathlib import Path\nimport ptxrun, torch\nx = torch.ones(4, dtype=torch.int32)\n"
    done = subprocess.run(
        [sys.executable, "-c", code + READS[reader]],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(HERE.parent)},
    )
    assert (done.stdout, done.returncode) == ("reads\n", -signal.SIGSEGV), done.stderr


GOOD = TensorMap(2, (136, 40), (64, 16), 3)
BAD = {
    "the tensor starts at 16 bytes": (GOOD, 8),
    "strides are multiples of 16 bytes": (GOOD._replace(extents=(132, 40)), 0),
    "a box has at most 256 elements a side": (GOOD._replace(box=(8, 257)), 0),
    "a box is not empty": (GOOD._replace(box=(0, 16)), 0),
    "a row is as wide as the swizzle at most": (GOOD._replace(box=(128, 16)), 0),
    "a row is a multiple of 16 bytes": (GOOD._replace(box=(60, 16), swizzle=0), 0),
    "a tensor is not empty": (GOOD._replace(extents=(0, 40)), 0),
    "five dimensions at most": (TensorMap(2, (8,) * 6, (8,) * 6, 0), 0),
}


@pytest.fixture(scope="module")
def library():
    return ctypes.CDLL(str(HERE / "libptxrun_cudart.so"))


@pytest.mark.parametrize("rule", BAD)
def test_tensor_map_rules(library, rule):
    assert len(encoded_map(library, GOOD, 1 << 20)) == 128
    tensor_map, off = BAD[rule]
    with pytest.raises(ValueError, match="cuTensorMapEncodeTiled: error 1"):
        encoded_map(library, tensor_map, (1 << 20) + off)


def test_launchers_find_the_encode_function(library):
    """By name, as from a driver: so it may be another's. A name that is not there is not found."""
    function, result = ctypes.c_void_p(), ctypes.c_int()
    find = library.cudaGetDriverEntryPointByVersion
    places = (ctypes.byref(function), 12000, ctypes.c_ulonglong(0), ctypes.byref(result))
    find(b"cuTensorMapEncodeTiled", *places)
    own = ctypes.cast(library.cuTensorMapEncodeTiled, ctypes.c_void_p)
    assert (function.value, result.value) == (own.value, 0)
    find(b"cuNothing", *places)
    assert function.value is None and result.value == 1


def test_the_recorder_needs_neither_torch_nor_ptxrun():
    code = "import sys\nsys.modules['torch'] = sys.modules['ptxrun'] = None\n"
    code += "from corpus import __main__, gpu, record\nprint(len(record.unproven()))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(HERE)},
    )
    assert int(done.stdout) > 60, done.stderr
