"""Calls of every verifying op on chains of one length, with the same words for all."""

import torch

from dflash_ops import accept_match, sample_logits, verify_chain, verify_tree

REJECTION = ["token", "block", "rrs", "traversal"]
RULES = [*REJECTION, "target_only", "typical", "match"]


def verify(device, rule, logits, drafts, q=None, anchors=0, probe=False, seeds=None, **options):
    """logits [B, n + 1, V], drafts [B, n], q [B, n + 1, V]; default: even. Returns the result of
    verification and the status of each request."""
    batch, rows, vocab = logits.shape
    status = torch.zeros(batch, dtype=torch.int32)
    tokens = torch.cat([torch.full((batch, 1), anchors), drafts], dim=1).flatten()
    cu = torch.arange(0, batch * rows + 1, rows)
    laws = {
        "positions": torch.arange(rows).repeat(batch),
        "cu_verify": cu,
        "seeds": torch.arange(batch) if seeds is None else seeds,
        "temperature": torch.ones(batch),
    }
    for name, value in options.items():
        if name in ("temperature", "top_k", "top_p", "min_p"):
            laws[name] = torch.full((batch,), value, dtype=torch.long if name == "top_k" else None)
        else:
            laws[name] = value
    if q is None:
        q = torch.ones(batch, rows, laws.get("vocab_size", vocab))
    q, logits = q.flatten(0, 1), logits.flatten(0, 1)

    def move(x):
        return x.to(device) if isinstance(x, torch.Tensor) else x

    laws = {k: move(v) for k, v in laws.items()}
    tokens, logits, q, on_device = (move(x) for x in (tokens, logits, q, status))
    more = {"max_path": rows - 1}
    if rule == "match":
        of_rows = torch.zeros(batch * rows, dtype=torch.int32, device=device)
        ids = sample_logits(logits, **laws, status=of_rows).ids
        got = accept_match(tokens, laws["cu_verify"], ids, **more, status=on_device)
        on_device |= of_rows.view(batch, rows).amax(dim=1)
    else:
        more |= {"q": q, "rule": rule, "probe": probe, "status": on_device}
        if rule in ("token", "block"):
            got = verify_chain(tokens, logits, **laws, **more)
        else:
            parents = move((torch.arange(rows) - 1).repeat(batch))
            got = verify_tree(tokens, logits, parents, **laws, **more)
    return type(got)(*(x.cpu() for x in got)), on_device.cpu()


def assert_well_formed(got, vocab):
    """Counts agree, ids are tokens, and what is not there is -1."""
    there = torch.arange(got.emitted.shape[1]) < got.num_emitted[:, None]
    assert (got.num_emitted <= got.emitted.shape[1]).all()
    assert torch.equal(got.num_accepted, (got.num_emitted - 1).clamp(min=0))
    ids = got.emitted[there]
    assert ids.numel() == 0 or (ids.min() >= 0 and ids.max() < vocab)
    assert (got.emitted[~there] == -1).all() and (got.accepted_rows[~there] == -1).all()
