"""What is in PTX: python -m ptxrun FILE.ptx|FILE.cu [--arch sm_80] [--census]"""

import argparse
from pathlib import Path

from .module import Module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--arch", default="sm_80")
    parser.add_argument("--census", action="store_true", help="how often each opcode occurs")
    options = parser.parse_args()
    module = Module(options.file, options.arch)
    for name in module.names:
        census = module.census(name)
        print(f"{name}: {sum(census.values())} instructions, {len(census)} opcodes")
        if options.census:
            for opcode, count in sorted(census.items(), key=lambda item: -item[1]):
                print(f"{count:>8} {opcode}")


if __name__ == "__main__":
    main()
