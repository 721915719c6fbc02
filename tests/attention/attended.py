"""tree_attention's result, held against the reference."""

import torch
from bounds import assert_within
from sequences import moved

from dflash_ops import Attended, reference, tree_attention


def eps(dtype):
    return torch.finfo(dtype).eps


def attend(device, **call):
    """The op's result on the CPU, within the bound of the reference's; the status likewise."""
    batch = len(call["cu_rows"]) - 1
    want_status = torch.zeros(batch, dtype=torch.int32)
    want = reference.tree_attention(**call, status=want_status)
    status = torch.zeros(batch, dtype=torch.int32, device=device)
    got = Attended(*(x.cpu() for x in tree_attention(**moved(call, device), status=status)))
    assert torch.equal(status.cpu(), want_status), (status, want_status)

    # An error of a score, at most that of its own terms, scales the weight of its key.
    k, v = call["k_cache"].double(), call["v_cache"].double()
    weighted = reference.tree_attention(**call | {"v_cache": v.abs()}).out
    exact = {"q": call["q"].double().abs(), "k_cache": k.abs(), "softcap": 0.0}
    scores = reference.tree_attention(**call | exact).lse
    scores = 1 + scores.where(scores.isfinite(), 0)
    assert_within(got.lse, want.lse, scores)
    # A device may round the weights to q's dtype before it multiplies the values.
    rounding = weighted * (0 if got.out.dtype == torch.float32 else eps(got.out.dtype) / 2)
    assert_within(got.out, want.out, weighted * scores[..., None], rounding)
    return got
