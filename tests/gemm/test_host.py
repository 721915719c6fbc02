"""Ops without tensors."""

import os
import subprocess
import sys

import pytest
import torch

from dflash_ops import cpu_isa, workspace_bytes

ISAS = torch.ops.dflash.cpu_isas().split(", ")


def test_the_newest_isa_is_in_use():
    assert ISAS[0] == "portable"
    assert cpu_isa() == os.environ.get("DFLASH_CPU_ISA", ISAS[-1])


def run_pinned(name):
    script = "import dflash_ops; print(dflash_ops.cpu_isa())"
    env = os.environ | {"DFLASH_CPU_ISA": name}
    return subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)


def test_the_environment_pins_the_isa():
    assert run_pinned("portable").stdout == "portable\n"
    text = f"cpu_isa: DFLASH_CPU_ISA must be one of {', '.join(ISAS)}, got z80"
    assert text in run_pinned("z80").stderr


def test_a_pin_that_is_not_there_changes_nothing():
    with pytest.raises(RuntimeError, match="must be one of portable"):
        torch.ops.dflash.cpu_isa("mmx")
    assert cpu_isa() in ISAS


def test_workspace_bytes():
    assert workspace_bytes("verify_gemm", "cpu", max_rows=64) == 0
    assert workspace_bytes("verify_gemm", torch.device("cuda:0")) == 0


# fmt: off
WRONG = [
    ("nothing", "cpu", {}, "op must be one of .*verify_gemm.*, got nothing"),
    ("verify_gemm", "tpu", {}, "device must be one of cpu, cuda, got tpu"),
    ("verify_gemm", "cpu", {"max_rows": -1}, "max_rows must be at least 0, got -1"),
    ("verify_gemm", "cpu", {"vocab_size": -2}, "vocab_size must be at least 0, got -2"),
]
# fmt: on


@pytest.mark.parametrize(("op", "device", "bounds", "text"), WRONG)
def test_workspace_bytes_names_what_is_wrong(op, device, bounds, text):
    with pytest.raises(ValueError, match=f"workspace_bytes: {text}"):
        workspace_bytes(op, device, **bounds)
    with pytest.raises(RuntimeError, match=f"workspace_bytes: {text}"):
        torch.ops.dflash.workspace_bytes(op, device, **bounds)
