"""A copy of the tree that a tool may build differently, or break."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEST_SECONDS = 600  # a run that takes longer hangs


@contextmanager
def copy_of_tree() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".*", "build", "*.so"))
        yield tree


def run(tree: Path, *command: str, quiet: bool = True, **variables: str) -> int:
    """The exit code of a Python command in the tree; 124 if it hangs."""
    env = os.environ | {
        "PYTHONPATH": str(tree / "python"),
        "DFLASH_CUDA": "OFF",
        "CCACHE_BASEDIR": str(tree),
        "CCACHE_NOHASHDIR": "1",
    }
    try:
        return subprocess.run(
            (sys.executable, *command),
            cwd=tree,
            env=env | variables,
            capture_output=quiet,
            timeout=TEST_SECONDS,
        ).returncode
    except subprocess.TimeoutExpired:
        return 124


def build(tree: Path, **variables: str) -> None:
    command = ("setup.py", "-q", "build_ext", "--inplace")
    if run(tree, *command, **variables) != 0:
        run(tree, *command, quiet=False, **variables)  # again, for its messages
        raise SystemExit(f"{tree} does not build")
