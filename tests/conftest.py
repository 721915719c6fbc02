import contextlib
import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("nightly", max_examples=5000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# ptx: the CUDA kernels' own PTX, run on CPU tensors by tools/ptxrun. Built with DFLASH_PTXRUN=ON.
HAS_PTX = any((Path(__file__).parent.parent / "tools/ptxrun").glob("_ptxrun.*"))
HAS_CUDA = torch.cuda.is_available()
# ptx emulates sm_80; DFLASH_PTX_ARCHS="80,90" adds ptx90 for kernels with a body of their own there.
PTX = {"80": "ptx", "90": "ptx90"}
PTX_ARCHS = {PTX[arch]: int(arch) for arch in os.environ.get("DFLASH_PTX_ARCHS", "80").split(",")}
DEVICES = ["cpu"] + [*PTX_ARCHS] * HAS_PTX + ["cuda"] * HAS_CUDA
PTX_EXAMPLES, MATRIX_EXAMPLES = 15, 3


def pytest_addoption(parser):
    parser.addoption("--ptx-counters", action="store_true", help="traffic of the emulated kernels")
    parser.addoption("--ptx-matrix", action="store_true", help="emulated tests in every schedule")
    parser.addoption("--device", help="only tests that run on a device, and only on this one")


def pytest_collection_modifyitems(config, items):
    if only := config.getoption("--device"):
        other = [item for item in items if device_of(item) != only]
        config.hook.pytest_deselected(items=other)
        items[:] = [item for item in items if device_of(item) == only]


def device_of(item):
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("device_class") if callspec else None


def pytest_terminal_summary(terminalreporter, config):
    if config.getoption("--ptx-counters"):
        import ptxrun

        terminalreporter.write_line(ptxrun.table(ptxrun.counters()))


def pytest_report_header():
    missing = [" (ptxrun is not built)"] * (not HAS_PTX) + [" (no GPU found)"] * (not HAS_CUDA)
    return f"devices: {', '.join(DEVICES)}{''.join(missing)}"


@pytest.fixture(scope="session", params=DEVICES)
def device_class(request):
    return request.param


@pytest.fixture(scope="session")
def device(device_class):
    return torch.device("cpu" if device_class in PTX_ARCHS else device_class)


@contextlib.contextmanager
def fewer_examples(function, most=PTX_EXAMPLES):
    """An emulated example takes long: the written edges, and a few random ones."""
    name = "_hypothesis_internal_use_settings"
    own = getattr(function, name, None)
    if own is not None:
        setattr(function, name, settings(own, max_examples=min(own.max_examples, most)))
    try:
        yield
    finally:
        if own is not None:
            setattr(function, name, own)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    arch = PTX_ARCHS.get(device_of(item))
    if arch is None:
        return (yield)
    import ptxrun

    with ptxrun.emulated(missing=pytest.skip, arch=arch):
        with fewer_examples(item.obj):
            result = yield
        if item.config.getoption("--ptx-matrix"):
            from ptxrun.schedules import MATRIX

            for options in MATRIX:
                with ptxrun.using(**options), fewer_examples(item.obj, MATRIX_EXAMPLES):
                    item.runtest()
        return result
