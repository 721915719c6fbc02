import pytest
import torch

from dflash_ops.adapters import ModelError, fetch


@pytest.fixture(scope="session")
def smollm2_path():
    try:
        return fetch.smollm2()
    except ModelError as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Kernels of a few microseconds gain nothing from more, and lose much on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
