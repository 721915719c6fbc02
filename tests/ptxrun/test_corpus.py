"""The recorder runs on the emulated driver; its records are compared with ptxrun."""

import time

import numpy as np
import ptxrun
import pytest
from ptxrun import sass
from ptxrun.corpus.case import Compare
from ptxrun.corpus.cases import all_cases, runs_on
from ptxrun.corpus.compare import disagreement, equal_modes
from ptxrun.corpus.emulated import Emulated
from ptxrun.corpus.gpu import METRICS, metric_of
from ptxrun.corpus.record import MAX_BYTES, patterns, read, record, records, unproven

CASES = all_cases()
SUMS = [name for name, case in CASES.items() if case.compare is Compare.SUMS]
RECORDS = records()


@pytest.fixture
def machine():
    yield Emulated()
    ptxrun._ptxrun.set_arch(80)


def test_every_kind_of_instruction_is_there():
    families = {name.split("/")[0] for name in CASES}
    assert families == {
        *("mma", "wgmma", "ldmatrix", "stmatrix", "movmatrix", "tensor load", "tensor store"),
        *("convert", "approx", "pattern"),
    }
    assert len(patterns()) >= 20
    assert {case.target for case in CASES.values()} == {"sm_80", "sm_89", "sm_90a"}
    assert runs_on(CASES["movmatrix"], 100) and not runs_on(CASES["stmatrix/x1"], 100)


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90a"])
def test_ptxas_takes_every_case(target):
    """In one file: a GPU's driver must not be the first to read them."""
    texts = dict.fromkeys(case.ptx for case in CASES.values() if case.target == target)
    head = next(iter(texts)).partition(".visible")[0]
    kernels = [text[text.index(".visible") :] for text in texts]
    whole = head + "".join(k.replace(" run(", f" run{i}(", 1) for i, k in enumerate(kernels))
    assert len(sass.assembled(whole, target)) == len(kernels)


def test_a_whole_record(machine, tmp_path):
    """What ptxrun records agrees with ptxrun, is small, and leaves nothing unproven."""
    traffic = {case.name: machine.traffic(case) for case in patterns()}
    path = tmp_path / "ptxrun.npz"
    start = time.monotonic()
    assert record(machine, path, traffic) == len(CASES)
    assert time.monotonic() - start < 300  # a hang, not a speed
    assert path.stat().st_size <= MAX_BYTES
    device, results = read(path)
    assert device == "ptxrun" and set(results) == set(CASES)
    assert unproven([path]) == []
    for name in results:
        assert disagreement(CASES[name], results[name], machine) == "", name
    assert all("CHAINED" in equal_modes(CASES[n], results[n], machine) for n in SUMS[::9])


@pytest.mark.parametrize(
    "name",
    [
        "mma/m16n8k16.f32.bf16.bf16.f32/normal",
        "mma/m16n8k32.s32.s8.s8.s32/normal",
        "wgmma/layout/swizzle128/mm",
        "ldmatrix/x4.trans",
        "tensor load/swizzle64/16b (32, 16) at (8, 24)",
        "convert/cvt.rn.bf16.f32",
        "approx/ex2.approx.f32",
    ],
)
def test_a_wrong_record_is_seen(machine, name):
    """One word changed in its upper bits."""
    case = CASES[name]
    result = machine.run(case).copy()
    place = np.argmax(result.view(np.float32) == result.view(np.float32))
    result.reshape(-1)[place] ^= 0x00C00000
    assert disagreement(case, result, machine) != ""


def test_a_wrong_count_is_seen(machine):
    for case in patterns():
        sectors, waves = machine.traffic(case)
        kind = metric_of(case)
        counted = (0, waves) if kind == METRICS["shared"] else (sectors, 0)
        assert max(counted) > 0, case.name
        assert disagreement(case, np.array(counted, dtype=np.uint32), machine) == ""
        more = np.array([2 * n for n in counted], dtype=np.uint32)
        assert disagreement(case, more, machine) != ""


def test_modes_can_be_told_apart(machine):
    """Of each float kind, some case has other bits in every mode."""
    for kind in ("mma/m16n8k16.f32.bf16.bf16.f32", "wgmma/f32.bf16"):
        names = [name for name in SUMS if name.startswith(kind)]
        with ptxrun.using(mma=ptxrun.MmaMode.BLOCK_TRUNCATED):
            results = {name: machine.run(CASES[name]) for name in names}
        modes = [set(equal_modes(CASES[n], results[n], machine)) for n in names]
        assert {"BLOCK_TRUNCATED"} in modes
        assert all(disagreement(CASES[n], results[n], machine) == "" for n in names)


def test_unproven_names_what_has_no_record():
    assert len(unproven([])) > 60
    if not RECORDS:
        assert unproven() == unproven([])


@pytest.mark.skipif(not RECORDS, reason="no record of a GPU: tools/ptxrun/corpus/records is empty")
@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_records_of_gpus(machine, path):
    _, results = read(path)
    wrong = {
        name: text
        for name, words in results.items()
        if name in CASES and (text := disagreement(CASES[name], words, machine))
    }
    assert not wrong, wrong
