import os

import pytest
import torch
from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("nightly", max_examples=5000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()


def pytest_report_header():
    return f"devices: {', '.join(DEVICES)}" + ("" if "cuda" in DEVICES else " (no GPU found)")


@pytest.fixture(scope="session", params=DEVICES)
def device(request):
    return torch.device(request.param)
