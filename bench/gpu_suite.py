"""Everything that a machine with a GPU is asked, in one command of at most eight minutes.

python bench/gpu_suite.py [--json FILE] [--only TEXT] [--minutes 8] [--quick] [--device cuda|cpu]

Tests against the reference and of row invariance on the hardware; whether matrix instructions treat
all columns alike, and whether rows have their bits at the models' shapes; ptxrun's recorder;
compute-sanitizer, where there is one; copy bandwidth and matrix rate; every op at the shapes of
three models against torch and the libraries that are installed, with cold caches. Needs no network.
Ends with a table, what misses its aim, and 1 if a test failed or a row had other bits. --device cpu
--quick runs every part at small shapes, to see that all of it works.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import bench_gemm
import run
import torch
from output import write_json
from suite import checks, invariance, report, shapes, timing

PARTS = ("tests", "columns", "rows", "record", "sanitizer", "times")
# Seconds that a part may take of eight minutes; what is left goes to the times.
SHARES = {"invariance": 80, "ops": 100, "columns": 20, "record": 60, "sanitizer": 60}
RESULTS = Path(__file__).parent / "results"
RECORDS = Path(__file__).parents[1] / "tools/ptxrun/corpus/records"


class Clock:
    def __init__(self, minutes: float) -> None:
        self._share = minutes / 8
        self._end = time.monotonic() + 60 * minutes

    def left(self) -> float:
        return self._end - time.monotonic()

    def share(self, name: str) -> float:
        return min(self._share * SHARES[name], self.left())


def tests(device: str, is_quick: bool, clock: Clock) -> dict:
    if is_quick:
        return {"quick": checks.tests(checks.QUICK, device, clock.share("ops"))}
    families = [f"tests/{name}" for name in checks.FAMILIES]
    return {
        "invariance": checks.tests(checks.INVARIANCE, device, clock.share("invariance")),
        "ops": checks.tests(families, device, clock.share("ops")),
    }


def times(
    device: torch.device, is_quick: bool, only: str, copy: float, clock: Clock
) -> Iterator[dict]:
    """Rows, and one with an error for each group that could not go on."""
    timer = timing.Timer(device, 2**20 if is_quick else None)
    rounds = 2 if is_quick else timing.ROUNDS
    bench_gemm.COLD_BYTES = 0  # caches are overwritten here: one copy of a weight is enough
    for model, what, cases in shapes.groups(device, is_quick):
        if clock.left() < 5:
            yield {"model": model, **left_out(what, device, "no time was left")}
            continue
        try:
            for case in cases:
                if only not in f"{case.op} {case.name}":
                    continue
                for row in timing.measure(case, timer, copy, rounds):
                    yield {"model": model, **row}
                if clock.left() < 5:
                    yield {"model": model, **left_out(what, device, "time ran out here")}
                    break
        except Exception as error:  # an op without a kernel, or a result that is wrong
            text = f"{type(error).__name__}: {error}"[:300]
            yield {"model": model, **left_out(what, device, text)}


def left_out(what: str, device: torch.device, text: str) -> dict:
    return {"suite": "gpu", "op": what, "case": "", "device": device.type, "peer": None} | {
        "error": text
    }


def rates(device: torch.device, is_quick: bool) -> dict[str, float]:
    timer = timing.Timer(device, 2**20)
    copied, size = (2**22, 128) if is_quick else (2**30, 8192)
    return {
        "copy_gbps": round(timing.copy_gbps(timer, copied), 2),
        "bf16_tflops": round(timing.matrix_tflops(timer, size, torch.bfloat16), 3),
    }


def made(options: argparse.Namespace, device: torch.device, clock: Clock) -> dict:
    is_emulated = device.type != "cuda"
    found = {"machine": run.machine([device]), "parts": options.part, "quick": options.quick}
    found |= {"tests": {}, "columns": {}, "record": {}, "sanitizer": []}
    found |= {"invariance": [], "times": []}
    if "tests" in options.part:
        found["tests"] = tests(device.type, options.quick, clock)
    if "columns" in options.part:
        found["columns"] = checks.columns(clock.share("columns"), is_emulated)
    if "rows" in options.part:
        found["invariance"] = list(invariance.rows(shapes.models(options.quick), device))
    if "record" in options.part:
        file = options.record or RECORDS / f"{slug(found['machine']['gpu'])}.npz"
        found["record"] = checks.recorded(file, clock.share("record"), is_emulated)
    if "sanitizer" in options.part:
        found["sanitizer"] = checks.sanitized(device.type, clock.share("sanitizer"))
    found["rates"] = rates(device, options.quick)
    if "times" in options.part:
        copy = found["rates"]["copy_gbps"]
        for row in times(device, options.quick, options.only, copy, clock):
            print(row["model"], row["op"], row["case"], row["peer"], file=sys.stderr)
            found["times"].append(row)
    return found


def slug(name: str | None) -> str:
    return "-".join((name or "cpu").lower().split())


def missing(device: str) -> str:
    """Why the suite cannot run; empty: it can."""
    if device == "cpu":
        return ""
    if not torch.cuda.is_available():
        return "no GPU found; --device cpu --quick shows that every part works"
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    if not has_kernel("dflash::verify_gemm", "CUDA"):
        return "the CUDA kernels are not built: DFLASH_CUDA=ON pip install ."
    return ""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("gpu_suite", description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="default: bench/results/GPU.json, if it is one")
    parser.add_argument("--plots", type=Path, help="a folder; default: beside the JSON file")
    parser.add_argument("--record", type=Path, help="default: where ptxrun's tests look for it")
    parser.add_argument("--part", choices=PARTS, nargs="+", default=list(PARTS))
    parser.add_argument("--only", default="", help="times of cases whose op or name contains this")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--quick", action="store_true", help="small shapes, few rounds, one test")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args(arguments)
    if why := missing(options.device):
        parser.exit(2, f"gpu_suite: {why}\n")
    if options.device == "cpu" and "record" in options.part and options.record is None:
        parser.exit(2, "gpu_suite: --record FILE is needed on a CPU: its record is not a GPU's\n")

    device = torch.device(options.device)
    found = made(options, device, Clock(options.minutes))
    found["wrong"] = report.verdict(found)
    file = options.json
    if file is None and options.device == "cuda":
        file = RESULTS / f"{slug(found['machine']['gpu'])}.json"
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(found, file)
        if not report.plots(found["times"], options.plots or file.parent):
            print("no matplotlib: no plots", file=sys.stderr)
    print(report.table(found["times"]))
    print(*found["wrong"], sep="\n")
    has_failed = any(part["code"] != 0 for part in found["tests"].values())
    return int(has_failed or not all(row["equal"] for row in found["invariance"]))


if __name__ == "__main__":
    sys.exit(main())
