"""The kernels' arithmetic as nvcc wrote it: every operation names its rounding, so that ptxas fuses
none of them, and none flushes denormals or approximates."""

import re

import pytest

device = pytest.importorskip("ptxrun.device")
OPERATION = re.compile(
    rb"(?<![\w.])(?:add|sub|mul|mad|fma|div|sqrt|rcp|rsqrt)(?:\.\w+)*\.f(?:32|64)\b"
)


def test_every_float_operation_rounds_to_nearest():
    text = device.LIBRARY.read_bytes()  # its PTX is not compressed
    found = {match.decode() for match in OPERATION.findall(text)}
    assert {"add.rn.f32", "mul.rn.f32", "fma.rn.f32"} <= found
    bad = {name for name in found if ".rn." not in name or ".ftz" in name}
    assert not bad, bad
