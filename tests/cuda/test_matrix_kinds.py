"""Row invariance: one kind of matrix instruction per op, operand type and architecture, whatever the
instantiation that a call's shape chooses. Of wgmma only n may differ."""

import re
from collections import defaultdict

import pytest
from emulator import ptxrun

from dflash_ops import _C


def without_n(kind):
    return re.sub(r"^(m64)n\d+", r"\1", kind)


@pytest.mark.parametrize("arch", [80, 90])
def test_one_kind_per_op_type_and_architecture(arch):
    kinds = defaultdict(set)
    for ptx in ptxrun.images(arch):
        module = ptxrun.Module(ptx)
        for name in module.names:
            kernel = next((k for k in _C.kernel_instances if k in name), name)
            for opcode in module.census(name):
                if kind := ptxrun.matrix_kind(opcode):
                    operands = tuple(kind.split(".")[2:4])
                    kinds[kernel, operands].add(without_n(kind))
    assert {"verify_gemm_kernel", "tree_attention_kernel"} <= {kernel for kernel, _ in kinds}
    assert all(len(found) == 1 for found in kinds.values()), kinds
