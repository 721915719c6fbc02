"""rows.toml names tests that exist."""

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TABLE = tomllib.loads((Path(__file__).parent / "rows.toml").read_text())


@pytest.mark.parametrize("row", TABLE)
def test_every_named_test_exists(row):
    assert TABLE[row]["tests"] and TABLE[row]["what"] and TABLE[row]["report"]
    for test in TABLE[row]["tests"]:
        path, _, name = test.partition("::")
        tree = ast.parse((ROOT / path).read_text())
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert any(n.startswith("test_") for n in names) if not name else name in names, test
