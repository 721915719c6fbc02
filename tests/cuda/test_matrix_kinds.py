"""Row invariance: one kind of matrix instruction per op, operand type and architecture, whatever the
instantiation that a call's shape chooses. Of wgmma only n may differ."""

import re
from collections import defaultdict
from functools import cache

import pytest
from emulator import ptxrun

from dflash_ops import _C

ARCHS = [80, 90]
# Kernels of one product: an op takes one or another by what it is asked.
HEAD = ("head_scan", "head_given")
WGMMA = ("verify_gemm", "head_scan", "tree_attention")


def without_n(kind):
    return re.sub(r"^(m64)n\d+", r"\1", kind)


@cache
def kinds_of(arch):
    """By kernel and the types of its operands."""
    kinds = defaultdict(set)
    for ptx in ptxrun.images(arch):
        module = ptxrun.Module(ptx)
        for name in module.names:
            if "dflash" not in name:  # other tests load kernels that are not ours
                continue
            kernel = next((k for k in _C.kernel_instances if k in name), name)
            for opcode in module.census(name):
                if kind := ptxrun.matrix_kind(opcode):
                    operands = tuple(kind.split(".")[2:4])
                    kinds[kernel, operands].add(without_n(kind))
    return kinds


@pytest.mark.parametrize("arch", ARCHS)
def test_one_kind_per_op_type_and_architecture(arch):
    kinds = kinds_of(arch)
    assert all(len(found) == 1 for found in kinds.values()), kinds
    found = {kernel for kernel, _ in kinds}
    assert {"verify_gemm_kernel", "tree_attention_kernel"} <= found
    assert arch == 80 or {f"{op}_sm90_kernel" for op in WGMMA} <= found
    assert found <= set(_C.kernel_instances), "a kernel that no list knows"


@pytest.mark.parametrize("arch", ARCHS)
def test_the_head_s_logits_are_those_of_verify_gemm(arch):
    """The same instruction for the same operands, so the same sums, in each body."""
    kinds = kinds_of(arch)
    for (kernel, types), found in kinds.items():
        if kernel.startswith(HEAD):
            gemm = (
                "verify_gemm" + kernel[kernel.index("_sm90" if "_sm90" in kernel else "_kernel") :]
            )
            assert kinds[gemm, types] == found, kernel
