"""Logits against transformers on the same file: requirements-parity.txt."""

import copy

import pytest
import torch
from bounds import ulp

from dflash_ops.adapters import load
from dflash_ops.decoder import Model
from dflash_ops.decoder.batch import Share, pack
from dflash_ops.decoder.cache import KVCache
from dflash_ops.decoder.state import State

pytestmark = pytest.mark.model
pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")

TEXT = "Write a Python function that reverses a linked list."


@pytest.fixture(scope="module")
def theirs(smollm2_path):
    from transformers import AutoModelForCausalLM

    folder, name = str(smollm2_path.parent), smollm2_path.name
    return AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()


def logits(model, dtype, ids):
    # Module.to, for transformers' own refuses to convert what came from a GGUF file.
    converted = torch.nn.Module.to(copy.deepcopy(model), dtype)
    with torch.no_grad():
        return converted(torch.tensor([ids])).logits[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits(smollm2_path, theirs, dtype):
    """Per tensor, our error is at most twice theirs in the same dtype, both against float64."""
    checkpoint = load(str(smollm2_path))
    ids = checkpoint.tokenizer().encode_prompt(TEXT)
    model = Model(checkpoint.config, checkpoint.weights(dtype), max_rows=64, max_position=64)
    cache = KVCache(model.config, num_pages=4, page_size=16, dtype=dtype)
    state = State(1, 64, 4, 1, model.device)
    state.block_table[0] = torch.tensor([3, 1, 0, 2])
    batch = pack([Share(0, 0, ids, len(ids), pages=[3, 1, 0, 2])], 16, model.device)
    got = model.logits(model.forward(batch, cache, state)).double()

    peer, want = (logits(theirs, kind, ids).double() for kind in (dtype, torch.float64))
    error, their_error = (got - want).abs().max(), (peer - want).abs().max()
    print(f"{dtype}: error {error:.2e}, theirs {their_error:.2e}")
    assert error <= 2 * their_error + ulp(want.abs().amax(), dtype)
    assert torch.equal(got.argmax(1), want.argmax(1)) or dtype == torch.bfloat16
