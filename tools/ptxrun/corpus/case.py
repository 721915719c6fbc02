"""A case: one small kernel, its inputs, and what to compare of a GPU's results with ptxrun's."""

from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]


class Compare(Enum):
    EQUAL = "the same bits"
    SUMS = "floats within the error that the tests assume of matrix sums"
    APPROX = "floats within the error that PTX documents"
    TRAFFIC = "sectors and wavefronts"


class TensorMap(NamedTuple):
    """Of one of the arrays. The kernel's first parameter is then the map."""

    element_bytes: int
    extents: tuple[int, ...]  # innermost first
    box: tuple[int, ...]
    swizzle: int


class Case(NamedTuple):
    """Its kernel is `run`: parameters are the addresses of the inputs, then of the output."""

    name: str  # family/kind
    ptx: str
    inputs: list[NDArray]
    output: tuple[int, ...]  # of 32-bit words
    compare: Compare
    grid: int = 1
    block: int = 32
    smem: int = 0
    tensor_map: TensorMap | None = None

    @property
    def target(self) -> str:
        return self.ptx.split(".target ", 1)[1].split()[0]


def kernel(
    body: str, num_params: int, registers: str, target: str = "sm_80", head: str = ""
) -> str:
    """A kernel `run` of `num_params` addresses p0, p1, ..; `lane` is the thread of its CTA, `cta`
    the CTA. `head` is a parameter of another kind, which comes first."""
    params = [head] * bool(head) + [f".param .u64 q{i}" for i in range(num_params)]
    loads = "\n".join(
        f"  ld.param.u64 p{i}, [q{i}];\n  cvta.to.global.u64 p{i}, p{i};" for i in range(num_params)
    )
    return f"""
.version 8.4
.target {target}
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry run({", ".join(params)}) {{
  .reg .b64 p<{max(num_params, 1)}>, at;
  .reg .b32 lane, cta, word, base;
  {registers}
  mov.u32 lane, %tid.x;
  mov.u32 cta, %ctaid.x;
  mov.u32 base, smem;
{loads}
{body}
  ret;
}}
"""


def address(param: int, index: str) -> str:
    """`at` becomes the address of 32-bit word `index`, a register."""
    return f"  mad.wide.u32 at, {index}, 4, p{param};"


def words(kind: str, names: list[str], param: int, threads: int = 32) -> str:
    """Loads ("ld") or stores ("st") a word per name and thread: [cta][name][thread]."""
    lines = [f"  mad.lo.u32 word, cta, {len(names) * threads}, lane;", address(param, "word")]
    for i, name in enumerate(names):
        place = f"[at+{4 * threads * i}]"
        operands = f"{name}, {place}" if kind == "ld" else f"{place}, {name}"
        lines.append(f"  {kind}.global.b32 {operands};")
    return "\n".join(lines)


def registers(base: str, count: int) -> list[str]:
    return [f"{base}{i}" for i in range(count)]


def fill_shared(param: int, num_words: int, threads: int, offset: int = 0) -> str:
    """Copies words of an input to shared memory by ordinary stores."""
    label = f"FILL_{param}_{offset}"
    return f"""
  mov.u32 word, lane;
{label}:
{address(param, "word")}
  ld.global.b32 value, [at];
  mad.lo.u32 place, word, 4, base;
  st.shared.b32 [place+{offset}], value;
  add.u32 word, word, {threads};
  setp.lt.u32 more, word, {num_words};
  @more bra {label};
  bar.sync 0;"""


def dump_shared(param: int, num_words: int, threads: int) -> str:
    """Copies shared memory to an output by ordinary loads."""
    return f"""
  bar.sync 0;
  mov.u32 word, lane;
DUMP:
  mad.lo.u32 place, word, 4, base;
  ld.shared.b32 value, [place];
{address(param, "word")}
  st.global.b32 [at], value;
  add.u32 word, word, {threads};
  setp.lt.u32 more, word, {num_words};
  @more bra DUMP;"""


SHARED_REGISTERS = ".reg .b32 value, place; .reg .pred more;"
