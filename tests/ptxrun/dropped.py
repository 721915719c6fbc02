"""Planted faults in PTX: one instruction fewer, or an address that is off, wherever a pattern finds
one."""

import re
from itertools import pairwise

import ptxrun
from ptxrun import KernelError, Order


def is_noticed(call, edit):
    with ptxrun.edited(edit), ptxrun.using(max_instructions=10**7, order=Order.RANDOM):
        try:
            call()
        except (KernelError, AssertionError, RuntimeError):
            return True
    return False


def lines_run(call, kernel):
    """PTX lines of a kernel that a call gets to: dropping another can change nothing."""
    with ptxrun.edited(lambda text: text):
        call()
        return {row.ptx_line for row in ptxrun.counters() if kernel in row.kernel}


def instructions(text, kernel, pattern, lines):
    """Where the instructions of a pattern stand, of those lines of a kernel."""
    starts = [m.start() for m in re.finditer(r"\.entry", text)] + [len(text)]
    places = []
    for begin, end in pairwise(starts):
        if kernel in text[begin : text.index("(", begin)]:
            code = rf"(?:@!?%p\d+\s+)?{pattern}[^;]*;"
            found = re.finditer(rf"(?<=[\s;]){code}", text[begin:end])
            places += [(begin + m.start(), begin + m.end()) for m in found]
    return [(a, b) for a, b in places if text.count("\n", 0, a) + 1 in lines]


def drop(instruction):
    return ""


def shift(address, by=16):
    """Moves the address of that number in an instruction."""

    def change(instruction):
        found = list(re.finditer(r"\[([%\w]+)(?:\+(-?\d+))?", instruction))[address]
        offset = int(found[2] or 0) + by
        return f"{instruction[: found.start()]}[{found[1]}+{offset}{instruction[found.end() :]}"

    return change


def survivors(call, kernel, pattern, change=drop):
    """Runs once with each instruction of the pattern changed; those changes that nobody noticed."""
    lines = lines_run(call, kernel)
    unnoticed, count, i = [], 1, 0
    while i < count:
        dropped = None

        def edit(text, i=i):
            nonlocal count, dropped
            places = instructions(text, kernel, pattern, lines)
            if not places:  # another module
                return text
            count = len(places)
            begin, end = places[i]
            dropped = text[begin:end]
            return text[:begin] + change(dropped) + text[end:]

        is_seen = is_noticed(call, edit)
        if dropped is not None and not is_seen:
            unnoticed.append((i, dropped))
        i += 1
    return unnoticed
