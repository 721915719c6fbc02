import os
import subprocess
import sys

import pytest
import torch

from dflash_ops import cpu_isa, cpu_isas, pin_cpu_isa

SCRIPT = """
import torch, dflash_ops
try:
    torch.ops.dflash.rmsnorm(torch.ones(1, 1), torch.ones(1))
except RuntimeError as error:
    print(error)
print(dflash_ops.cpu_isa())
"""


def run_pinned(name):
    env = os.environ | {"DFLASH_CPU_ISA": name}
    return subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True)


def test_the_newest_is_in_use():
    assert cpu_isas()[0] == "portable"
    assert cpu_isa() == os.environ.get("DFLASH_CPU_ISA", cpu_isas()[-1])


def test_the_environment_pins():
    assert run_pinned("portable").stdout == "portable\n"


def test_the_environment_names_none():
    process = run_pinned("z80")
    text = f"DFLASH_CPU_ISA must be one of {', '.join(cpu_isas())}"
    assert process.stdout == f"{text}, got z80\n"
    assert process.stderr.endswith(f"ValueError: cpu_isa: {text}\n")


def test_pins_each():
    in_use = cpu_isa()
    for name in cpu_isas():
        pin_cpu_isa(name)
        assert cpu_isa() == name
        torch.ops.dflash.rmsnorm(torch.ones(1, 1), torch.ones(1))
    pin_cpu_isa(in_use)


def test_a_pin_that_is_not_there_changes_nothing():
    in_use = cpu_isa()
    with pytest.raises(ValueError, match=r"name must be one of portable.*, got mmx"):
        pin_cpu_isa("mmx")
    assert cpu_isa() == in_use
