"""Cases on ptxrun: the recorder's own launcher, on the emulated driver."""

import ptxrun
from ptxrun import _ptxrun
from ptxrun.device import raise_reports
from ptxrun.module import HERE

from .case import Case, Words
from .gpu import Gpu


class Emulated(Gpu):
    def __init__(self, arch: int = 90) -> None:
        _ptxrun.set_arch(arch)
        super().__init__(str(HERE / "libptxrun_cudart.so"))

    def run(self, case: Case) -> Words:
        try:
            return super().run(case)
        finally:
            raise_reports()

    def traffic(self, case: Case) -> tuple[int, int]:
        """Sectors and wavefronts of the instruction that a pattern is about."""
        ptxrun.counters(reset=True)
        with ptxrun.using(uninitialised=False):  # what is loaded does not matter
            self.run(case)
        opcode = case.name.split("/")[1]
        first, rest = opcode.split(".", 1)
        names = (opcode, f"{first}.volatile.{rest}")
        rows = [row for row in ptxrun.counters(reset=True) if row.opcode in names]
        place = min if first == "st" else max  # between loading its address and storing its result
        row = place(rows, key=lambda row: row.ptx_line)
        return row.sectors, row.waves
