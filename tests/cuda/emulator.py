"""ptxrun, for test modules that have nothing to test without it."""

import pytest

ptxrun = pytest.importorskip("ptxrun")
if not hasattr(ptxrun, "emulated"):
    pytest.skip("ptxrun is not built", allow_module_level=True)
