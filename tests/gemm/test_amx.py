"""AMX is a device class of its own: its loop on a model of its tiles everywhere, itself where it is."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import bounds
import pytest
import torch

from dflash_ops import cpu_isa, cpu_isas, pack_weight, pin_cpu_isa, verify_gemm

ROOT = Path(__file__).parents[2]
DEPTHS = [1, 2, 31, 32, 33, 512, 513, 1100]
ROWS = [1, 2, 15, 16, 17, 32, 33, 48, 64]


@pytest.fixture(scope="module")
def model_sums(tmp_path_factory):
    compiler = shutil.which("c++")
    assert compiler, "the build needs one too"
    library = tmp_path_factory.mktemp("amx") / "model.so"
    source = Path(__file__).with_name("amx_model.cpp")
    options = ["-std=c++20", "-O2", "-ffp-contract=off", "-shared", "-fPIC", f"-I{ROOT / 'csrc'}"]
    subprocess.run([compiler, *options, source, "-o", library], check=True)
    function = ctypes.CDLL(str(library)).model_sums
    function.restype = None
    function.argtypes = [ctypes.c_void_p, ctypes.c_int64] * 2 + [ctypes.c_int64, ctypes.c_void_p]
    return function


def pairs_of(x):
    """Rows as words of two k, the even one in the high half, NaN behind them."""
    padded = torch.nn.functional.pad(x, (0, x.shape[1] % 2))
    swapped = padded.unflatten(1, (-1, 2)).flip(2).flatten(1).contiguous()
    return torch.nn.functional.pad(swapped, (0, 64), value=torch.nan)


def modelled(model_sums, x, weight):
    """[M, 32] of a weight [32, K]."""
    rows, packed = pairs_of(x), pack_weight(weight)
    sums = torch.full((len(x), 32), torch.nan)
    row_bytes = rows.stride(0) * rows.itemsize
    model_sums(packed.data_ptr(), x.shape[1], rows.data_ptr(), row_bytes, len(x), sums.data_ptr())
    return sums


def operands(rows, depth):
    g = torch.Generator().manual_seed(1000 * rows + depth)
    return (torch.randn(n, depth, generator=g).bfloat16() for n in (rows, 32))


@pytest.mark.parametrize("depth", DEPTHS)
def test_the_loop_over_tiles(model_sums, depth):
    x, weight = operands(max(ROWS), depth)
    whole = modelled(model_sums, x, weight)
    exact = x.double() @ weight.double().T
    terms = x.double().abs() @ weight.double().abs().T
    bounds.assert_within(whole, exact, terms)
    for rows in ROWS:
        assert torch.equal(modelled(model_sums, x[-rows:], weight), whole[-rows:])


@pytest.fixture
def amx():
    in_use = cpu_isa()
    if "amx" not in cpu_isas():
        pytest.skip("this CPU has no AMX")
    pin_cpu_isa("amx")
    yield
    pin_cpu_isa(in_use)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("depth", DEPTHS)
def test_on_the_cpu_itself(amx, model_sums, depth, packed):
    """The model is what the manual says, so the bits are its bits."""
    x, weight = operands(max(ROWS), depth)
    for rows in ROWS:
        w = pack_weight(weight) if packed else weight
        got = verify_gemm(x[:rows], w, num_outputs=32, out_dtype=torch.float32)
        assert torch.equal(got, modelled(model_sums, x[:rows], weight))
