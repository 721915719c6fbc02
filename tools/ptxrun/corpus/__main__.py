"""See the package."""

import argparse
from pathlib import Path

from . import __doc__ as text
from .record import patterns, record, unproven


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("ptxrun.corpus", description=text, formatter_class=formatter)
    parser.add_argument("what", choices=["record", "patterns", "unproven"])
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--emulated", action="store_true", help="ptxrun in place of a GPU")
    options = parser.parse_args()
    if options.what == "unproven":
        print(*unproven(), sep="\n")
        return
    if options.what == "record" and options.file is None:
        parser.error("record needs a file")
    if options.emulated:
        from .emulated import Emulated

        machine = Emulated()
        counts = {case.name: machine.traffic(case) for case in patterns()}
    else:
        from .gpu import Gpu, profiled

        machine = Gpu()
        counts = profiled(patterns()) if options.what == "record" else {}
    if options.what == "patterns":  # for a profiler to look at
        for case in patterns():
            machine.run(case)
    else:
        print(f"{record(machine, options.file, counts)} cases on {machine.name}")


if __name__ == "__main__":
    main()
