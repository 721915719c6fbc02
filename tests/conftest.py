import contextlib
import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from dflash_ops import cpu_isa, cpu_isas, pin_cpu_isa

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("nightly", max_examples=5000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# ptx: the CUDA kernels' own PTX, run on CPU tensors by tools/ptxrun. Built with DFLASH_PTXRUN=ON.
HAS_PTX = any((Path(__file__).parent.parent / "tools/ptxrun").glob("_ptxrun.*"))
HAS_CUDA = torch.cuda.is_available()
# ptx emulates sm_80; ptx90 sm_90a, for tests marked sm90: their ops have bodies of their own there.
# DFLASH_PTX_ARCHS, "80,90" or one of them, says what all emulated tests run on.
PTX_ARCHS = {"ptx": 80, "ptx90": 90}
PINNED_ARCHS = os.environ.get("DFLASH_PTX_ARCHS")
DEVICES = ["cpu"] + [*PTX_ARCHS] * HAS_PTX + ["cuda"] * HAS_CUDA
PTX_EXAMPLES, MATRIX_EXAMPLES = 15, 3

if "PYTEST_XDIST_WORKER" in os.environ:  # there is a process per core
    torch.set_num_threads(1)
    if HAS_PTX:
        import ptxrun

        ptxrun.options().threads = 1


def pytest_addoption(parser):
    parser.addoption("--ptx-counters", action="store_true", help="traffic of the emulated kernels")
    parser.addoption("--ptx-matrix", action="store_true", help="emulated tests in every schedule")
    parser.addoption("--device", help="only tests that run on a device, and on these: ptx,ptx90")
    parser.addoption("--long", action="store_true", help="also tests marked long")


def pytest_collection_modifyitems(config, items):
    if not PINNED_ARCHS:  # fp32 has no body of its own on sm_90a
        items[:] = [i for i in items if device_of(i) != "ptx90" or not has_float32(i)]
    wanted = items
    if not config.getoption("--long"):
        wanted = [item for item in wanted if item.get_closest_marker("long") is None]
    if only := config.getoption("--device"):
        wanted = [item for item in wanted if device_of(item) in only.split(",")]
    kept = set(wanted)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = wanted


def device_of(item):
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("device_class") if callspec else None


def has_float32(item):
    return any(value is torch.float32 for value in item.callspec.params.values())


def pytest_terminal_summary(terminalreporter, config):
    if config.getoption("--ptx-counters"):
        import ptxrun

        terminalreporter.write_line(ptxrun.table(ptxrun.counters()))


def pytest_report_header():
    missing = [" (ptxrun is not built)"] * (not HAS_PTX) + [" (no GPU found)"] * (not HAS_CUDA)
    return f"devices: {', '.join(DEVICES)}{''.join(missing)}"


def runs_on(device, has_sm90_body):
    if device not in PTX_ARCHS:
        return True
    if PINNED_ARCHS:
        return str(PTX_ARCHS[device]) in PINNED_ARCHS.split(",")
    return device == "ptx" or has_sm90_body


def pytest_generate_tests(metafunc):
    if "device_class" in metafunc.fixturenames:
        has_sm90_body = any(metafunc.definition.iter_markers("sm90"))
        devices = [device for device in DEVICES if runs_on(device, has_sm90_body)]
        metafunc.parametrize("device_class", devices, indirect=True, scope="session")


@pytest.fixture(scope="session")
def device_class(request):
    return request.param


@pytest.fixture(scope="session")
def device(device_class):
    return torch.device("cpu" if device_class in PTX_ARCHS else device_class)


@pytest.fixture(scope="session")
def layout(device_class):
    """The order inside a packed weight; `reference.pack_weight` has both."""
    return "cpu" if device_class == "cpu" else "cuda"


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

    # Frequencies need many draws; what a check could say of them, tests of single draws show.
    is_statistical = item.get_closest_marker("statistical") is not None
    with ptxrun.emulated(missing=pytest.skip, arch=arch), ptxrun.using(checks=not is_statistical):
        with fewer_examples(item.obj):
            result = yield
        if item.config.getoption("--ptx-matrix") and not is_statistical:
            from ptxrun.schedules import MATRIX

            for options in MATRIX:
                with ptxrun.using(**options), fewer_examples(item.obj, MATRIX_EXAMPLES):
                    item.runtest()
        return result


@pytest.fixture(scope="session")
def each_isa():
    """Results of a call under each instruction set of this machine, portable first.

    Without AMX, which is a device class of its own: tests/gemm/test_amx.py.
    """
    in_use = cpu_isa()

    def results(call):
        try:
            for isa in (name for name in cpu_isas() if name != "amx"):
                pin_cpu_isa(isa)
                yield call()
        finally:
            pin_cpu_isa(in_use)

    return results
