"""Planted faults in PTX. Wherever a pattern finds an instruction: one fewer, a wait that asks nobody,
an address or a coordinate that is off."""

import re
from collections.abc import Callable
from itertools import pairwise

import ptxrun
from ptxrun import KernelError, Landing, Order

# Where a kernel begins, and where the last one has ended.
PARTS = re.compile(r"^(?=(?:\.\w+ )?\.entry |\.file|\.section)", re.MULTILINE)
# The first shows nearly all; what it does not show has to survive the others too.
SCHEDULES = [
    {"order": Order.RANDOM},
    {"order": Order.REVERSE, "landing": Landing.EARLIEST},
    *({"order": Order.RANDOM, "landing": Landing.RANDOM, "seed": seed} for seed in (1, 2)),
]
NAME = re.compile(r"(?:\.\w+ )?\.entry (\w+)")


def drop(instruction):
    return ""


def granted(instruction):
    """A wait that does not, an election that every lane wins: `op what|is_done, ..` of either."""
    lane, is_done = re.search(r"\s(?:([%\w]+)\|)?([%\w]+),", instruction).groups()
    true = f"setp.eq.u32 {is_done}, 0, 0;"
    return f"mov.u32 {lane}, %laneid; {true}" if lane else true


def shift(address, by=16):
    """Moves the address of that number in an instruction."""

    def change(instruction):
        found = list(re.finditer(r"\[([%\w]+)(?:\+(-?\d+))?", instruction))[address]
        offset = int(found[2] or 0) + by
        return f"{instruction[: found.start()]}[{found[1]}+{offset}{instruction[found.end() :]}"

    return change


def move_box(coordinate, by):
    """Moves the box of a tensor copy."""

    def change(instruction):
        begin, end = re.search(r"\{[^}]*}", instruction).span()
        place = instruction[begin + 1 : end - 1].split(",")
        add = f"add.s32 moved, {place[coordinate]}, {by};"
        place[coordinate] = "moved"
        moved = f"{instruction[:begin]}{{{','.join(place)}}}{instruction[end:]}"
        return f"{{ .reg .b32 moved; {add} {moved} }}"

    return change


def is_noticed(call, edit, max_instructions):
    """By a check or by wrong numbers. A mutant that cannot be launched shows nothing: it is wrong."""
    for schedule in SCHEDULES:
        with (
            ptxrun.edited(edit),
            ptxrun.using(max_instructions=max_instructions, **schedule),
        ):
            try:
                call()
            except AssertionError as error:
                if isinstance(error, KernelError) and str(error).startswith("launch "):
                    raise
                return True
    return False


def only(kernels, text):
    """Without other kernels, which would have to be read; every line where it was."""
    parts = []
    for part in PARTS.split(text):
        name = NAME.match(part)
        is_needed = name is None or name[1] in kernels
        parts.append(part if is_needed else "\n" * part.count("\n"))
    return "".join(parts)


class Original:
    """What a call runs: its modules, and the lines of the kernel to change."""

    def __init__(self, call: Callable[[], None], kernel: str) -> None:
        texts: list[str] = []

        def listed(text):
            texts.append(text)
            return text

        with ptxrun.edited(listed):
            call()
            totals = ptxrun.totals()
            rows = [row for row in ptxrun.counters() if kernel in row.kernel]
        self.instructions = sum(total.instructions for total in totals.values())
        self.modules = {text: only(set(totals), text) for text in texts}
        self.kernel = kernel
        self.lines = {row.ptx_line for row in rows}
        assert rows, f"no launch of {kernel}"

    def places(self, pattern: str) -> list[tuple[str, int, int]]:
        """The instructions of a pattern that run: module, begin and end."""
        code = re.compile(rf"(?<=[\s;{{])(?:@!?[%\w]+\s+)?(?:{pattern})[^;]*;")
        found = []
        for module, text in self.modules.items():
            starts = [part.start() for part in PARTS.finditer(text)] + [len(text)]
            for begin, end in pairwise(starts):
                name = NAME.match(text, begin)
                if name is not None and self.kernel in name[1]:
                    spans = (m.span() for m in code.finditer(text, begin, end))
                    found += [(module, *span) for span in spans if self.is_run(text, span[0])]
        return found

    def is_run(self, text: str, place: int) -> bool:
        return text.count("\n", 0, place) + 1 in self.lines


def survivors(call, kernel, pattern, change=drop):
    """Runs with each instruction of the pattern changed; those whose change nobody noticed: their
    numbers, of those that run, and the instructions."""
    original = Original(call, kernel)
    places = original.places(pattern)
    assert places, f"{kernel} runs no {pattern}"
    unnoticed = {}
    for i, (module, begin, end) in enumerate(places):
        text = original.modules[module]
        changed = change(text[begin:end])
        mutants = original.modules | {module: text[:begin] + changed + text[end:]}
        if not is_noticed(call, mutants.__getitem__, 4 * original.instructions + 10**5):
            unnoticed[i] = text[begin:end]
    return unnoticed


def assert_each_matters(call, kernel, pattern, change, reasons):
    """But those that may go. `reasons`: why, by their numbers."""
    found = survivors(call, kernel, pattern, change)
    assert sorted(found) == sorted(i for numbers in reasons for i in numbers), found
