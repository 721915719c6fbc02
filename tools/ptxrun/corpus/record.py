"""Results of all cases in one file, and which of them agree with ptxrun."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from .case import Case, Compare, Words
from .cases import all_cases, runs_on

RECORDS = Path(__file__).parent / "records"
MAX_BYTES = 2 << 20


def patterns() -> list[Case]:
    return [case for case in all_cases().values() if case.compare is Compare.TRAFFIC]


def record(machine, path: Path, traffic: dict[str, tuple[int, int]]) -> int:
    """Writes what `machine` makes of each case that it can run; how many."""
    results: dict[str, Words] = {}
    for case in all_cases().values():
        if case.compare is Compare.TRAFFIC:
            if case.name in traffic:
                results[case.name] = np.array(traffic[case.name], dtype=np.uint32)
        elif runs_on(case, machine.capability):
            results[case.name] = machine.run(case)
    np.savez_compressed(path, **{"device": np.array(machine.name)}, **results)
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path.stat().st_size} bytes, at most {MAX_BYTES}")
    return len(results)


def records() -> list[Path]:
    return sorted(RECORDS.glob("*.npz"))


def read(path: Path) -> tuple[str, dict[str, Words]]:
    with np.load(path) as file:
        results = {name: file[name] for name in file.files if name != "device"}
        return str(file["device"]), results


def unproven(paths: Iterable[Path] | None = None) -> list[str]:
    """Kinds of cases (family and kind) of which no record holds one."""
    recorded = {name for path in (records() if paths is None else paths) for name in read(path)[1]}
    kinds = {name: "/".join(name.split("/")[:2]) for name in all_cases()}
    proven = {kinds[name] for name in recorded if name in kinds}
    return sorted(set(kinds.values()) - proven)
