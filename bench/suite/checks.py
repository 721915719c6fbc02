"""What runs in processes of its own: tests, sanitizer, recorder. None can take longer than it may,
and none that ends the device's context ends the suite."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import dflash_ops

ROOT = Path(__file__).resolve().parents[2]
# Row invariance first: the rest is cut off if time runs out.
INVARIANCE = (
    "tests/attention/test_row_invariance.py",
    "tests/lm_head/test_rows.py",
    "tests/laws/test_invariance.py",
    "tests/gemm",
)
FAMILIES = ("attention", "lm_head", "kv", "tree", "verify", "sample", "drafter", "loop", "faults")
QUICK = ("tests/verify/test_accept_match.py",)
# Small tests of kernels that synchronise: a tool slows them down fiftyfold.
SANITIZED = ("tests/verify/test_accept_match.py", "tests/kv/test_compact_kv.py")
TOOLS = ("memcheck", "racecheck", "synccheck")
GRACE = 20.0  # seconds for pytest to write what it has


class Finished:
    """Of a process: its output, and whether it came to its end in time."""

    def __init__(self, command: Sequence[str], seconds: float, **environment: str) -> None:
        begin = time.monotonic()
        paths = [str(ROOT / name) for name in ("tools", "bench", "tools/ptxrun")]
        paths.append(str(Path(dflash_ops.__file__).parents[1]))  # built in place, or installed
        environment = {"PYTHONPATH": os.pathsep.join(paths), **environment}
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | environment,
        )
        self.in_time = True
        try:
            self.output, _ = process.communicate(timeout=max(seconds, 0.1))
        except subprocess.TimeoutExpired:
            self.in_time = False
            process.send_signal(signal.SIGINT)
            try:
                self.output, _ = process.communicate(timeout=GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                self.output, _ = process.communicate()
        self.code = process.returncode
        self.seconds = round(time.monotonic() - begin, 1)

    def result(self, **more: Any) -> dict:
        tail = [] if self.code == 0 else self.output.splitlines()[-20:]
        own = {"in_time": self.in_time, "code": self.code, "seconds": self.seconds, "output": tail}
        return more | own


def tests(paths: Sequence[str], device: str, seconds: float) -> dict:
    """The tests of one device, by their counts and the names of those that failed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "tests.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line"]
        command += ["--device", device, f"--junitxml={report}", *paths]
        done = Finished(command, seconds)
        counts = summary(report) if report.exists() else {"tests": 0, "failed": []}
    return done.result(paths=list(paths), **counts)


def summary(report: Path) -> dict:
    cases = list(ElementTree.parse(report).iter("testcase"))

    def named(*kinds: str) -> list[str]:
        found = [case for case in cases if any(case.find(kind) is not None for kind in kinds)]
        return [f"{case.get('classname')}::{case.get('name')}" for case in found]

    failed, skipped = named("failure", "error"), named("skipped")
    passed = len(cases) - len(failed) - len(skipped)
    return {"tests": len(cases), "passed": passed, "skipped": len(skipped), "failed": failed}


def columns(seconds: float, is_emulated: bool) -> dict:
    command = [sys.executable, "-m", "suite.columns", *["--emulated"] * is_emulated]
    done = Finished(command, seconds)
    lines = done.output.splitlines()
    found = json.loads(lines[-1]) if done.code == 0 and lines else []
    return done.result(rows=found)


def recorded(file: Path, seconds: float, is_emulated: bool) -> dict:
    """ptxrun's recorder: the file goes to tools/ptxrun/corpus/records."""
    file.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "corpus", "record", str(file.resolve())]
    return Finished([*command, *["--emulated"] * is_emulated], seconds).result(file=str(file))


def sanitized(device: str, seconds: float) -> list[dict]:
    """compute-sanitizer over a few tests; nothing where it is not installed."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        return []
    found = []
    for tool in TOOLS:
        command = [program, "--tool", tool, "--error-exitcode", "9", "--target-processes", "all"]
        command += [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["--device", device, *SANITIZED]
        examples = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # so that bounds are those of tensors
        found.append(Finished(command, seconds / len(TOOLS), **examples).result(tool=tool))
    return found
