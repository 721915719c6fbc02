"""One instruction at a time: PTX text round it, its operands and results as tensors of bits."""

from collections.abc import Sequence

import ptxrun
import torch
from torch import Tensor

BITS = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}


def width(kind: str) -> int:
    if kind == "pred":
        return 32
    if kind.endswith("x2"):
        return {"e": 16}.get(kind[0], 32)
    return int("".join(c for c in kind if c.isdigit())) if kind[0] in "busf" else 16


def register(kind: str) -> str:
    return "pred" if kind == "pred" else f"b{max(width(kind), 16)}"


def kernel(body: str, result: str, operands: Sequence[str], target: str = "sm_80") -> str:
    """A kernel of a row per thread: loads a0, a1, .. runs `body`, stores d."""
    text = [".version 8.8", f".target {target}", ".address_size 64", ".visible .entry one("]
    names = [f"p{i}" for i in range(len(operands) + 1)]
    text += [",\n".join(f"  .param .u64 {name}" for name in names), ")", "{"]
    text += ["  .reg .b32 tid;", "  .reg .b64 at, row;", f"  .reg .{register(result)} d;"]
    text += [f"  .reg .{register(kind)} a{i};" for i, kind in enumerate(operands)]
    text += ["  .reg .b32 bit;", "  mov.u32 tid, %tid.x;", "  cvt.u64.u32 row, tid;"]
    for i, kind in enumerate(operands):
        text += [f"  ld.param.u64 at, [p{i + 1}];"]
        text += [f"  mad.lo.u64 at, row, {width(kind) // 8}, at;"]
        if kind == "pred":
            text += ["  ld.global.b32 bit, [at];", f"  setp.ne.s32 a{i}, bit, 0;"]
        else:
            text += [f"  ld.global.b{width(kind)} a{i}, [at];"]
    text += [f"  {body}", "  ld.param.u64 at, [p0];"]
    text += [f"  mad.lo.u64 at, row, {width(result) // 8}, at;"]
    if result == "pred":
        text += ["  selp.b32 bit, 1, 0, d;", "  st.global.b32 [at], bit;"]
    else:
        text += [f"  st.global.b{width(result)} [at], d;"]
    return "\n".join([*text, "  ret;", "}"])


def run(body: str, result: str, operands: Sequence[str], values: Sequence[Tensor], **kwargs):
    """`d` of each row, as bits; at most 1024 rows."""
    rows = len(values[0])
    d = torch.zeros(rows, dtype=BITS[width(result)])
    module = ptxrun.Module(kernel(body, result, operands, **kwargs))
    module.launch("one", [d, *values], [1], [rows])
    return d
