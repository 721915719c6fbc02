"""From one step to the next, without the host."""

import torch
from torch import Tensor

from ._check import Checks


def commit(
    tokens: Tensor,
    lengths: Tensor,
    ctx_lens: Tensor,
    finished: Tensor,
    emitted: Tensor,
    num_emitted: Tensor,
    cu_rows: Tensor,
    cu_verify: Tensor | None = None,
    *,
    req_rows: Tensor | None = None,
    stop_ids: Tensor | None = None,
    min_lens: Tensor | None = None,
    max_lens: Tensor | None = None,
    status: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Append what a step emitted to each request's tokens, and move its lengths on.

    Of request b, in state row r, the first ``m`` emitted tokens are appended: all of them, or up to
    the first stop token that is at least the ``min_lens[r]``-th token of the request, or up to
    ``max_lens[r]`` tokens. The last of them is the next anchor, so the keys of the ``m`` rows
    before it stay: ``num_kept[b] = m``, ``lengths[r] += m`` and
    ``ctx_lens[r] += rows - verify_rows + m``. A stop token or a full buffer sets ``finished[r]``.

    Args:
        tokens: ``[R, capacity]`` int, each request's prompt and output. Written.
        lengths: ``[R]`` int, tokens in the buffer; the last one is the anchor. Written.
        ctx_lens: ``[R]`` int, keys in the cache; ``lengths - 1`` while decoding. Written.
        finished: ``[R]`` bool, sticky: a finished request appends and keeps nothing. Written.
        emitted: ``[B, E]`` int, accepted drafts, then the bonus token, as :func:`accept_match`.
        num_emitted: ``[B]`` int.
        cu_rows: ``[B + 1]`` int, model rows of request b: ``cu_rows[b] .. cu_rows[b + 1]``.
        cu_verify: ``[B + 1]`` int, verify rows. A request with none is a prefill chunk with more to
            come: only ``ctx_lens`` rises, by its rows. Default: every row is verified.
        req_rows: ``[B]`` int, state row of request b; -1: padded. Default: the same numbers.
        stop_ids: ``[R, S]`` int, stop tokens; -1: none.
        min_lens: ``[R]`` int, tokens, prompt included, before which no stop token counts.
        max_lens: ``[R]`` int, most tokens, prompt included. Default: capacity.
        status: ``[B]`` int32, :class:`Status` bits are OR-ed in. OUT_OF_RANGE: a state row, row
            range, length or count that does not exist; nothing was appended. BAD_DRAFT_ID: a
            negative token; those from it on were dropped. BOUND_TOO_SMALL: the request ended
            because ``tokens`` is full.
        out: ``[B]`` int to write into.

    int is int32 or int64. Every tensor may have any strides. No two requests share a state row.

    Returns:
        ``[B]`` int64, ``num_kept``: rows of the path (the anchor, then accepted drafts) whose keys
        stay, and the number of tokens appended; ``out`` if given.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape or device is not as above.

    Reference: :func:`dflash_ops.reference.commit`. Exact: results are equal, not close.
    """
    checks = Checks("commit", tokens)
    checks.index("tokens", tokens, "[R, capacity]", -1, -1)
    state_rows = len(tokens)
    checks.index("lengths", lengths, "[R]", state_rows)
    checks.index("ctx_lens", ctx_lens, "[R]", state_rows)
    checks.tensor("finished", finished, (torch.bool,), "[R]", state_rows)
    checks.index("emitted", emitted, "[B, E]", -1, -1)
    batch = len(emitted)
    checks.index("num_emitted", num_emitted, "[B]", batch)
    checks.index("cu_rows", cu_rows, "[B + 1]", batch + 1)
    checks.index("cu_verify", cu_verify, "[B + 1]", batch + 1)
    checks.index("req_rows", req_rows, "[B]", batch)
    checks.index("stop_ids", stop_ids, "[R, S]", state_rows, -1)
    checks.index("min_lens", min_lens, "[R]", state_rows)
    checks.index("max_lens", max_lens, "[R]", state_rows)
    checks.tensor("status", status, (torch.int32,), "[B]", batch)

    args = (tokens, lengths, ctx_lens, finished, emitted, num_emitted, cu_rows, cu_verify)
    options = {
        "req_rows": req_rows,
        "stop_ids": stop_ids,
        "min_lens": min_lens,
        "max_lens": max_lens,
        "status": status,
    }
    if out is None:
        return torch.ops.dflash.commit(*args, **options)
    checks.index("num_kept", out, "[B]", batch)
    torch.ops.dflash.commit.out(*args, **options, num_kept=out)
    return out


@torch.library.register_fake("dflash::commit")
def _(tokens, lengths, ctx_lens, finished, emitted, *args, **kwargs):
    return tokens.new_empty(emitted.shape[0], dtype=torch.int64)


@torch.library.register_fake("dflash::commit.out")
def _(*args, **kwargs):
    return None
