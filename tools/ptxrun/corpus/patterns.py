"""Accesses of one warp to global or shared memory: how many sectors or wavefronts are they?"""

from collections.abc import Callable, Iterator

import numpy as np

from .case import SHARED_REGISTERS, Case, Compare, kernel, words

SPAN = 16 << 10

# name, opcode, address of a lane in bytes
PATTERNS: list[tuple[str, str, Callable[[int], int]]] = [
    ("in order", "ld.global.b32", lambda i: 4 * i),
    ("in order, 4 off", "ld.global.b32", lambda i: 4 * i + 4),
    ("in order, 16 off", "ld.global.v4.b32", lambda i: 16 * i + 16),
    ("backwards", "ld.global.b32", lambda i: 124 - 4 * i),
    ("every second", "ld.global.b32", lambda i: 8 * i),
    ("every 32 bytes", "ld.global.b32", lambda i: 32 * i),
    ("all one address", "ld.global.b32", lambda i: 64),
    ("vectors of 8", "ld.global.v2.b32", lambda i: 8 * i),
    ("vectors of 16", "ld.global.v4.b32", lambda i: 16 * i),
    ("vectors 64 apart", "ld.global.v4.b32", lambda i: 64 * i),
    ("rows of 128", "ld.global.v4.b32", lambda i: i % 8 * 16 + i // 8 * 1024),
    ("in order", "st.global.b32", lambda i: 4 * i),
    ("every 32 bytes", "st.global.b32", lambda i: 32 * i),
    ("in order", "ld.shared.b32", lambda i: 4 * i),
    ("every second", "ld.shared.b32", lambda i: 8 * i),
    ("every 128 bytes", "ld.shared.b32", lambda i: 128 * i),
    ("every 132 bytes", "ld.shared.b32", lambda i: 132 * i),
    ("all one address", "ld.shared.b32", lambda i: 64),
    ("pairs of one address", "ld.shared.b32", lambda i: 128 * (i // 2)),
    ("vectors of 8", "ld.shared.v2.b32", lambda i: 8 * i),
    ("vectors 16 apart", "ld.shared.v2.b32", lambda i: 16 * i),
    ("vectors of 16", "ld.shared.v4.b32", lambda i: 16 * i),
    ("vectors 32 apart", "ld.shared.v4.b32", lambda i: 32 * i),
    ("vectors 144 apart", "ld.shared.v4.b32", lambda i: 144 * i),
    ("every 128 bytes", "st.shared.b32", lambda i: 128 * i),
    ("rows 128 apart", "ldmatrix.sync.aligned.m8n8.x4.shared.b16", lambda i: 128 * i),
    ("rows 144 apart", "ldmatrix.sync.aligned.m8n8.x4.shared.b16", lambda i: 144 * i),
    ("rows 16 apart", "ldmatrix.sync.aligned.m8n8.x4.shared.b16", lambda i: 16 * i),
]


def _statement(opcode: str) -> str:
    vector = "{v0, v1, v2, v3}" if ("v4" in opcode or "x4" in opcode) else "{v0, v1}"
    value = vector if any(x in opcode for x in ("v2", "v4", "x4")) else "v0"
    where = "[near]" if "shared" in opcode else "[far]"
    first, rest = opcode.split(".", 1)
    if first == "st":
        return f"{opcode} {where}, {value};"
    return f"{'ld.volatile' if first == 'ld' else first}.{rest} {value}, {where};"


def pattern_cases() -> Iterator[Case]:
    """Parameters: a byte offset per lane, a buffer, results."""
    for name, opcode, place in PATTERNS:
        body = words("ld", ["place"], 0)
        body += f"""
  add.u32 near, place, base;
  cvt.u64.u32 far, place;
  add.u64 far, far, p1;
  mov.u32 v0, 0;
  mov.u32 v1, 0;
  mov.u32 v2, 0;
  mov.u32 v3, 0;
  {_statement(opcode)}
  add.u32 v0, v0, v1;
  add.u32 v2, v2, v3;
  add.u32 v0, v0, v2;
"""
        declared = f"{SHARED_REGISTERS} .reg .b32 near, v<4>; .reg .b64 far;"
        text = kernel(body + words("st", ["v0"], 2), 3, declared)
        offsets = np.array([place(i) for i in range(32)], dtype=np.uint32).reshape(1, 1, 32)
        inputs = [offsets, np.zeros(SPAN // 4, dtype=np.uint32)]
        full_name = f"pattern/{opcode}/{name}"
        yield Case(full_name, text, inputs, (1, 1, 32), Compare.TRAFFIC, smem=SPAN)
