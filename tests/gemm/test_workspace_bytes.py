import pytest
import torch

from dflash_ops import reference, workspace_bytes


def test_workspace_bytes():
    for device in ("cpu", "cuda", torch.device("cuda:0")):
        want = reference.workspace_bytes("verify_gemm", device, max_rows=64)
        assert workspace_bytes("verify_gemm", device, max_rows=64) == want == 0


def test_opcheck():
    torch.library.opcheck(torch.ops.dflash.workspace_bytes.default, ("verify_gemm", "cpu"))


def test_compiles_whole():
    compiled = torch.compile(lambda x: x + workspace_bytes("verify_gemm", "cpu"), fullgraph=True)
    assert torch.equal(compiled(torch.ones(3)), torch.ones(3))


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
