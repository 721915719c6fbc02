"""Runs tests of the CPU kernels under AddressSanitizer and UndefinedBehaviorSanitizer.

python tools/sanitize.py [pytest arguments]        default: tests of every op family
"""

import subprocess
import sys

from scratch import ROOT, build, copy_of_tree, run

# The decoder and the tools are Python, and torch's compiler is not what is looked at.
FAMILIES = ("gemm", "lm_head", "sample", "attention", "kv", "tree", "verify", "drafter", "loop")


def library(name: str) -> str:
    """The sanitizer's run-time library, which must be loaded before Python itself."""
    command = ("g++", f"-print-file-name={name}")
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main(arguments: list[str]) -> int:
    if not arguments:
        arguments = [f"tests/{name}" for name in FAMILIES if (ROOT / "tests" / name).is_dir()]
    with copy_of_tree() as tree:
        build(tree, DFLASH_SANITIZE="ON")
        return run(
            tree,
            *("-m", "pytest", "-qx", "-k", "not compile and not opcheck", *arguments),
            quiet=False,
            LD_PRELOAD=" ".join(map(library, ("libasan.so", "libubsan.so", "libstdc++.so"))),
            ASAN_OPTIONS="detect_leaks=0",  # Python and torch keep memory on purpose
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
