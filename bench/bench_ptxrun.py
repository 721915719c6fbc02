"""The emulator of the tests: 8 heads of 16 rows and 512 keys on one thread, checked and not."""

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from case import Case

ROOT = Path(__file__).parent.parent
HEADS, KEYS = 8, 512


def cases(device: torch.device) -> Iterator[Case]:
    if device.type != "cpu" or not any((ROOT / "tools/ptxrun").glob("_ptxrun.*")):
        return
    sys.path += [str(ROOT / "tools"), str(ROOT / "tests/ptxrun")]
    import attention_head
    import ptxrun

    program, operands = attention_head.program(), attention_head.operands(KEYS, HEADS)

    def run(checks: bool) -> torch.Tensor:
        with ptxrun.using(threads=1, checks=checks, counters=checks):
            return attention_head.launch(program, *operands)

    for checks in (False, True):
        yield Case(
            op="ptxrun",
            name=f"{HEADS} heads of 16 rows, {KEYS} keys, {'checked' if checks else 'unchecked'}",
            ours=lambda checks=checks: run(checks),
            peers={},
            bytes_moved=sum(x.nbytes for x in operands),
        )
