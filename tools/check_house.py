"""The house rules that a machine can check; prints each breach and fails if there is one."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 500
CODE = {".h", ".cuh", ".cpp", ".cu", ".py"}


def tracked() -> list[Path]:
    listing = subprocess.run(
        ("git", "ls-files", "-co", "--exclude-standard"),
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [path for line in listing.splitlines() if (path := ROOT / line).is_file()]


def torch_free(path: Path) -> bool:
    """Kernels, Params and planners: everything in csrc that a kernel is made of."""
    name = path.relative_to(ROOT / "csrc").as_posix()
    if path.suffix in {".cu", ".cuh"} or path.name in {"params.h", "plan.h", "kernels.h"}:
        return True
    return "/cpu/" in name and not path.stem.endswith("_op")


def breaches_of_file(path: Path, text: str) -> list[str]:
    found = []
    if path.suffix in CODE and (count := text.count("\n")) > MAX_LINES:
        found.append(f"{count} lines, at most {MAX_LINES}")
    if path.suffix in CODE and not text.isascii():
        found.append("not ASCII")
    if ROOT / "csrc" not in path.parents:
        return found
    if torch_free(path) and re.search(r"#include <(torch|ATen|c10)/", text):
        found.append("a kernel file includes torch")
    if re.search(r"^\s*#\s*(define|if|ifdef|ifndef)\b", text, re.MULTILINE):
        found.append("a macro or a conditional: the build picks files instead")
    if re.search(r"\b(printf|exit|abort)\s*\(", text):
        found.append("prints or ends the process")
    return found


def parts_of_op(op: str, files: dict[str, str]) -> dict[str, bool]:
    """What makes an op whole, and whether it is there."""

    def in_any(pattern: str, folder: str) -> bool:
        return any(name.startswith(folder) and re.search(pattern, t) for name, t in files.items())

    if not re.search(rf'"{op}\((?:[^"]|"\s*")*?Tensor', files["csrc/ops.cpp"]):  # a fact, no kernel
        return {"test": in_any(rf"\b{op}\b", "tests/")}
    return {
        "out overload": bool(re.search(rf'"{op}\.out\(', files["csrc/ops.cpp"]))
        or not re.search(rf'"{op}\((?:[^"]|"\s*")*-> \(?Tensor', files["csrc/ops.cpp"]),
        "reference": in_any(rf"def {op}\(", "python/dflash_ops/reference/"),
        "public function": in_any(rf"def {op}\(", "python/dflash_ops/"),
        "fake kernel": in_any(rf"dflash::{op}\b", "python/dflash_ops/"),
        "test": any(name.endswith(f"test_{op}.py") for name in files),
        "planted faults": f"tests/mutants/{op}.toml" in files,
        "benchmark": in_any(rf"\b{op}\b", "bench/"),
        "page": f"docs/ops/{op}.md" in files,
    }


def stale_faults(files: dict[str, str]) -> list[str]:
    """Planted faults whose place is not there, or there twice: the code under them has moved."""
    stale = []
    for name, text in files.items():
        if not (name.startswith("tests/mutants/") and name.endswith(".toml")):
            continue
        for mutant in tomllib.loads(text)["mutant"]:
            if (count := files.get(mutant["file"], "").count(mutant["from"])) != 1:
                stale.append(f"{name}: {mutant['why']}: its place is there {count} times")
    return stale


def main() -> int:
    texts = {}
    breaches = []
    for path in tracked():
        name = path.relative_to(ROOT).as_posix()
        try:
            texts[name] = path.read_text()
        except UnicodeDecodeError:
            continue
        breaches += [f"{name}: {breach}" for breach in breaches_of_file(path, texts[name])]
    ops = re.findall(r'm\.def\(+\s*"([a-z0-9_]+)\(', texts["csrc/ops.cpp"])
    for op in ops:
        missing = [part for part, there in parts_of_op(op, texts).items() if not there]
        breaches += [f"{op}: no {', no '.join(missing)}"] if missing else []
    breaches += stale_faults(texts)
    print(*breaches, f"{len(ops)} ops, {len(texts)} files, {len(breaches)} breaches", sep="\n")
    return min(len(breaches), 1)


if __name__ == "__main__":
    sys.exit(main())
