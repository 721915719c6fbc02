"""Rejection verification of chains and trees: lossless with the drafter's probabilities."""

from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from ._check import FLOATS, Checks, _shape_name
from ._options import LogitOptions, SamplingOptions, check_logits, check_sampling
from .lm_head import MAX_TOPK, HeadRecord

MAX_SPARSE_Q = 64


class Verified(NamedTuple):
    """What each of B requests keeps of its drafts; the last four are empty without ``probe``."""

    emitted: Tensor
    """``[B, max_path + 1]`` int64: accepted drafts, then the last token, then -1."""
    num_accepted: Tensor
    """``[B]`` int64: accepted drafts; the last token is not counted."""
    num_emitted: Tensor
    """``[B]`` int64: ``num_accepted + 1``, or 0 without a verify row."""
    accepted_rows: Tensor
    """``[B, max_path + 1]`` int64: packed rows of the anchor and the accepted drafts, then -1."""
    logprobs: Tensor
    """``[B, max_path + 1]`` float32: of the emitted tokens, under the raw law; then 0."""
    accept_probs: Tensor
    """``[Tv]`` float32: of the draft in each row, once its earlier siblings are rejected; rules
    block and traversal: of the path that ends there; rule typical: 1 or 0."""
    coins: Tensor
    """``[Tv]`` float32: what that was compared with."""
    counters: Tensor
    """``[Tv, 2, 4]`` int64: Philox counters of the row's coin, and of the noise that draws the last
    token after it (c0 -1: one per four ids); -1: none."""
    weights: Tensor
    """``[Tv, vocab_size]`` float32: the law of the last token if the path ends at this row, not
    normalised."""


class _LawOptions(LogitOptions, SamplingOptions, total=False):
    pass


def verify_chain(
    tokens: Tensor,
    logits: Tensor | None = None,
    *,
    record_ids: Tensor | None = None,
    record: HeadRecord | None = None,
    positions: Tensor,
    cu_verify: Tensor,
    q: Tensor | None = None,
    q_ids: Tensor | None = None,
    draft_to_target: Tensor | None = None,
    draft_kind: Tensor | None = None,
    rule: str = "token",
    max_path: int,
    probe: bool = False,
    status: Tensor | None = None,
    out: Verified | None = None,
    **options: Unpack[_LawOptions],
) -> Verified:
    """Accept a prefix of each request's chain of drafts and draw one more token.

    The emitted tokens follow the target's law p (temperature and filter included), whatever the
    drafter's law q is, as long as each draft was drawn from it.

    Rule ``"token"``: a draft d is accepted iff ``u * q(d) < p(d)`` for its coin u; after the first
    rejection the last token follows ``max(p - q, 0)``, after the last draft p.
    Rule ``"block"``: with ``s = min(s * p(d) / q(d), 1)`` after each draft, from 1, the prefix of i
    drafts is kept with probability ``m / (m + 1 - s)``, m the sum of ``max(s * p - q, 0)`` at its
    last row (0 where that is 0; s itself for the whole chain); the longest kept prefix stays, and
    the last token follows ``max(s * p - q, 0)`` there. It never accepts
    fewer drafts in expectation.

    The target's laws come as ``logits``, or as the ``record`` of :func:`lm_head_verify`, so that
    nothing of the vocabulary's size is in memory. Then ``record_ids`` must list every id where q is
    not 0 and the draft after each row, q must be none or sparse, the :class:`SamplingOptions` must
    be those that the record was made with, and of the :class:`LogitOptions` only ``verify_rows``
    and ``vocab_size`` are given. Tokens have the bits that the same logits in memory give. A row
    that is not ``covered`` ends the chain: its token is the record's draw.

    Args:
        tokens: ``[Tv]`` int, token of each verify row: a request's anchor, then its drafts. A draft
            outside the vocabulary ends the chain before it.
        logits: ``[num_rows, V]`` bfloat16, float16 or float32, last dimension contiguous: row i is
            the target's after token i.
        record_ids: ``[Tv, K]`` int, K <= 64: the ids that lm_head_verify was given.
        record: what it returned.
        positions: ``[Tv]`` int, sequence index of each row's own token.
        cu_verify: ``[B + 1]`` int, verify rows of request b: ``cu_verify[b] .. cu_verify[b + 1]``.
        q: ``[Tv, K]`` float32 with ``q_ids``, else ``[Tv, Vd]``: row i is the law
            that the draft after it was drawn from; normalised here. Default: deterministic drafts.
        q_ids: ``[Tv, K]`` int, K <= 64; -1: absent. Entries with one id add up.
        draft_to_target: ``[Vd]`` int, the token that each id of q stands for, for drafters with a
            smaller vocabulary; of an EAGLE-3 checkpoint ``d2t + torch.arange(len(d2t))``. Ids of q
            with one token add up. Default: q has the target's ids, Vd is ``vocab_size``.
        draft_kind: ``[B]`` int; 0: the request's drafts are deterministic, q is not read.
        rule: ``"token"`` or ``"block"``.
        max_path: most drafts that one request may accept.
        probe: also return the probabilities and counters that the decisions came from.
        status: ``[B]`` int32, :class:`Status` bits are OR-ed in. BAD_DRAFT_ID. BAD_Q: NaN,
            negative, nothing, of an id that is no token, or not in the record; the chain ends
            before that draft. BOUND_TOO_SMALL: ``max_path``, or a row that the record does not
            cover, cut a path; the tokens are right, only fewer. NO_FINITE_LOGIT, OUT_OF_RANGE as
            sample_logits.
        out: tensors to write into.
        options: see :class:`LogitOptions` and :class:`SamplingOptions`.

    Returns:
        A :class:`Verified`; ``out`` if given.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape, device, stride or option is not as above.

    Source: Leviathan et al. 2023 (arXiv:2211.17192), Sun et al. 2024 (arXiv:2403.10444).
    Reference: :func:`dflash_ops.reference.verify_chain`.
    """
    checks = Checks("verify_chain", tokens)
    if logits is not None:
        if record is not None:
            raise ValueError("verify_chain: record must be None with logits, got a record")
        rows, size = _check_logits(checks, logits, options)
    else:
        rows, size = _check_record(checks, tokens, record_ids, record, options)
        checks.given("q_ids", q_ids, "q and a record", q)
    checks.index("tokens", tokens, "[Tv]", rows)
    check_sampling(checks, positions, cu_verify, options, rows)
    laws = {"q": q, "q_ids": q_ids, "draft_to_target": draft_to_target, "draft_kind": draft_kind}
    _check_draft_law(checks, rows, size, len(cu_verify) - 1, **laws)
    checks.one_of("rule", rule, "token", "block")
    batch = _check_bounds(checks, cu_verify, max_path, status)

    source = {"record_ids": record_ids, "record": None if record is None else list(record)}
    named = {"positions": positions, "cu_verify": cu_verify, "rule": rule, "max_path": max_path}
    args = {**source, **named, **laws, "probe": probe, "status": status, **options}
    if out is None:
        return Verified(*torch.ops.dflash.verify_chain(tokens, logits, **args))
    _check_out(checks, out, batch, max_path + 1, rows if probe else 0, size)
    torch.ops.dflash.verify_chain.out(tokens, logits, **args, **out._asdict())
    return out


def verify_tree(
    tokens: Tensor,
    logits: Tensor,
    parents: Tensor,
    *,
    positions: Tensor,
    cu_verify: Tensor,
    q: Tensor | None = None,
    q_ids: Tensor | None = None,
    draft_to_target: Tensor | None = None,
    draft_kind: Tensor | None = None,
    rule: str = "rrs",
    replacement: bool = False,
    typical_eps: float = 0.3,
    typical_delta: float = 0.09,
    max_path: int,
    probe: bool = False,
    status: Tensor | None = None,
    out: Verified | None = None,
    **options: Unpack[_LawOptions],
) -> Verified:
    """Accept a path of each request's tree of drafts and draw one more token.

    Under every rule but ``"typical"`` the emitted tokens follow the target's law p (temperature and
    filter included).

    Rules ``"rrs"`` and ``"traversal"`` take sampled drafts: the children of a row, in row order,
    were drawn from its q one after another. Whether a draft is submitted may depend on earlier
    draws, never on its own value: pruning or sorting by q breaks the law.

    ``"rrs"``: a child d is accepted iff ``u * q(d) < p(d)`` for its coin u; a rejected one leaves
    ``max(p - q, 0)``, normalised, as p for the next child, and for the last token if none is left.
    ``"traversal"``: as rule block of :func:`verify_chain` from the leaves up: every node has a coin
    for the whole path to it, once all its children are rejected. Accepts at least as many.
    ``"target_only"``: the target draws; the first child that carries its token is followed. Any
    drafts, q is not read.
    ``"typical"``: **lossy**. A draft passes if ``p(d) > min(eps, delta * exp(-entropy(p)))``; the
    longest path that passes stays, and the last token is drawn from p. q is not read.

    Args:
        tokens: ``[Tv]`` int, token of each verify row: a request's anchor, then its drafts. A draft
            outside the vocabulary is rejected.
        logits: ``[num_rows, V]`` bfloat16, float16 or float32, last dimension contiguous: row i is
            the target's after token i.
        parents: ``[Tv]`` int, local row of each row's parent, before it; -1 for the anchor.
        positions: ``[Tv]`` int, sequence index of each row's own token: anchor's plus depth.
        cu_verify: ``[B + 1]`` int, verify rows of request b: ``cu_verify[b] .. cu_verify[b + 1]``.
        q: ``[Tv, K]`` float32 with ``q_ids``, else ``[Tv, Vd]``: row i is the law
            that its children were drawn from; normalised here.
        q_ids: ``[Tv, K]`` int, K <= 64; -1: absent. Entries with one id add up.
        draft_to_target: ``[Vd]`` int, the token that each id of q stands for, for drafters with a
            smaller vocabulary; of an EAGLE-3 checkpoint ``d2t + torch.arange(len(d2t))``. Ids of q
            with one token add up. Default: q has the target's ids, Vd is ``vocab_size``.
        draft_kind: ``[B]`` int; 0: the request's drafts are deterministic, which rrs and traversal
            refuse: BAD_Q, all are rejected.
        rule: ``"rrs"``, ``"traversal"``, ``"target_only"`` or ``"typical"``.
        replacement: siblings are independent draws. Default: each is drawn from q without the
            tokens of its earlier siblings, normalised.
        typical_eps: see rule typical.
        typical_delta: see rule typical.
        max_path: most drafts that one request may accept.
        probe: also return the probabilities and counters that the decisions came from.
        status: ``[B]`` int32, :class:`Status` bits are OR-ed in. BAD_TREE: rows from the first bad
            parent on are dropped. BAD_DRAFT_ID. BAD_Q: NaN, negative or nothing, or fewer tokens
            than siblings; the children are rejected, what is left of p stays. BOUND_TOO_SMALL:
            ``max_path`` cut a path; the tokens are right, only fewer. NO_FINITE_LOGIT, OUT_OF_RANGE
            as sample_logits.
        out: tensors to write into.
        options: see :class:`LogitOptions` and :class:`SamplingOptions`.

    Returns:
        A :class:`Verified`; ``out`` if given.

    Raises:
        TypeError: a dtype is not as above.
        ValueError: a shape, device, stride or option is not as above.

    Source: Chen et al. 2024 (arXiv:2402.12374, rrs), Weng et al. 2025 (arXiv:2505.12398,
    traversal), Cai et al. 2024 (arXiv:2401.10774, typical).
    Reference: :func:`dflash_ops.reference.verify_tree`.
    """
    checks = Checks("verify_tree", tokens)
    rows, size = _check_logits(checks, logits, options)
    checks.index("tokens", tokens, "[Tv]", rows)
    check_sampling(checks, positions, cu_verify, options, rows)
    laws = {"q": q, "q_ids": q_ids, "draft_to_target": draft_to_target, "draft_kind": draft_kind}
    _check_draft_law(checks, rows, size, len(cu_verify) - 1, **laws)
    checks.index("parents", parents, "[Tv]", rows)
    checks.one_of("rule", rule, "rrs", "traversal", "target_only", "typical")
    if rule in ("rrs", "traversal"):
        checks.given("q", q, "rule rrs or traversal", rule)
    checks.at_least("typical_eps", typical_eps, 0)
    checks.at_least("typical_delta", typical_delta, 0)
    batch = _check_bounds(checks, cu_verify, max_path, status)

    named = {"positions": positions, "cu_verify": cu_verify, "rule": rule, "max_path": max_path}
    only = {"replacement": replacement, "typical_eps": typical_eps, "typical_delta": typical_delta}
    args = {**named, **laws, **only, "probe": probe, "status": status, **options}
    if out is None:
        return Verified(*torch.ops.dflash.verify_tree(tokens, logits, parents, **args))
    _check_out(checks, out, batch, max_path + 1, rows if probe else 0, size)
    torch.ops.dflash.verify_tree.out(tokens, logits, parents, **args, **out._asdict())
    return out


def _check_logits(checks: Checks, logits: Tensor, options: _LawOptions) -> tuple[int, int]:
    """Returns Tv and the vocabulary's size."""
    checks.tensor("logits", logits, FLOATS, "[num_rows, V]", -1, -1)
    checks.last_contiguous("logits", logits)
    rows = check_logits(checks, options, *logits.shape)
    size = options.get("vocab_size")
    return rows, options.get("vocab_start", 0) + logits.shape[1] if size is None else size


def _check_record(
    checks: Checks,
    tokens: Tensor,
    ids: Tensor | None,
    record: HeadRecord | None,
    options: _LawOptions,
) -> tuple[int, int]:
    """Returns Tv and the vocabulary's size."""
    size = options.get("vocab_size")
    checks.given("logits or record", record, "tokens", tokens)
    checks.given("record_ids", ids, "record", record)
    checks.given("vocab_size", size, "record", record)
    unread = {"logit_scale": 1.0, "softcap": 0.0, "vocab_start": 0}
    for name, default in unread.items():
        value = options.get(name, default)
        checks.given("logits", None, name, None if value == default else value)
    for name in ("token_mask", "adj_cu"):
        checks.given("logits", None, name, options.get(name))
    assert ids is not None and record is not None and size is not None
    checks.any_tensor("tokens", tokens, "[Tv]", -1)
    rows = check_logits(checks, options, len(tokens), size)
    checks.at_least("len(record)", len(record), len(HeadRecord._fields))
    checks.at_most("len(record)", len(record), len(HeadRecord._fields))
    checks.index("record_ids", ids, "[Tv, K]", rows, -1)
    count = ids.shape[1]
    checks.at_most("K", count, MAX_SPARSE_Q)
    fp32 = (torch.float32,)
    checks.tensor("record.values", record.values, fp32, "[Tv, K]", rows, count)
    checks.tensor("record.lse", record.lse, fp32, "[Tv]", rows)
    checks.tensor("record.tempered_lse", record.tempered_lse, fp32, "[Tv]", rows)
    checks.index("record.rest_ids", record.rest_ids, "[Tv]", rows)
    checks.tensor("record.rest_values", record.rest_values, fp32, "[Tv]", rows)
    checks.tensor("record.rest_keys", record.rest_keys, fp32, "[Tv]", rows)
    checks.tensor("record.top_values", record.top_values, fp32, "[Tv, 64]", rows, MAX_TOPK)
    checks.index("record.top_ids", record.top_ids, "[Tv, 64]", rows, MAX_TOPK)
    checks.tensor("record.covered", record.covered, (torch.bool,), "[Tv]", rows)
    return rows, size


def _check_draft_law(
    checks: Checks,
    rows: int,
    size: int,
    batch: int,
    q: Tensor | None,
    q_ids: Tensor | None,
    draft_to_target: Tensor | None,
    draft_kind: Tensor | None,
) -> None:
    checks.given("q", q, "q_ids", q_ids)
    checks.given("q", q, "draft_to_target", draft_to_target)
    checks.given("q", q, "draft_kind", draft_kind)
    checks.index("draft_to_target", draft_to_target, "[Vd]", -1)
    fp32 = (torch.float32,)
    if q is not None and q_ids is not None:
        checks.tensor("q", q, fp32, "[Tv, K]", rows, -1)
        checks.at_most("K", q.shape[1], MAX_SPARSE_Q)
        checks.index("q_ids", q_ids, "[Tv, K]", rows, q.shape[1])
    elif draft_to_target is not None:
        checks.tensor("q", q, fp32, "[Tv, Vd]", rows, len(draft_to_target))
    else:
        checks.tensor("q", q, fp32, "[Tv, vocab_size]", rows, size)
    checks.index("draft_kind", draft_kind, "[B]", batch)


def _check_bounds(checks: Checks, cu_verify: Tensor, max_path: int, status: Tensor | None) -> int:
    batch = len(cu_verify) - 1
    checks.at_least("max_path", max_path, 0)
    checks.tensor("status", status, (torch.int32,), "[B]", batch)
    return batch


def _check_out(
    checks: Checks, out: Verified, batch: int, path: int, probed: int, size: int
) -> None:
    fp32 = (torch.float32,)
    checks.index("emitted", out.emitted, "[B, max_path + 1]", batch, path)
    checks.index("num_accepted", out.num_accepted, "[B]", batch)
    checks.index("num_emitted", out.num_emitted, "[B]", batch)
    checks.index("accepted_rows", out.accepted_rows, "[B, max_path + 1]", batch, path)
    checks.tensor("logprobs", out.logprobs, fp32, "[B, max_path + 1]", batch, path)
    checks.tensor("accept_probs", out.accept_probs, fp32, "[Tv]", probed)
    checks.tensor("coins", out.coins, fp32, "[Tv]", probed)
    checks.tensor("counters", out.counters, (torch.int64,), "[Tv, 2, 4]", probed, 2, 4)
    if not out.counters.is_contiguous():
        strides = _shape_name(out.counters.stride())
        raise ValueError(f"verify_chain: counters must be contiguous, got strides {strides}")
    checks.tensor("weights", out.weights, fp32, "[Tv, vocab_size]", probed, size)


@torch.library.register_fake("dflash::verify_chain")
@torch.library.register_fake("dflash::verify_tree")
def _(
    tokens,
    logits=None,
    *_,
    cu_verify,
    max_path,
    probe=False,
    vocab_start=0,
    vocab_size=None,
    **options,
):
    batch, path = cu_verify.shape[0] - 1, max_path + 1
    rows = tokens.shape[0] if probe else 0
    size = vocab_start + logits.shape[1] if vocab_size is None else vocab_size
    shapes = [(batch, path), (batch,), (batch,), (batch, path), (batch, path), (rows,), (rows,)]
    shapes += [(rows, 2, 4), (rows, size)]
    ints = (0, 1, 2, 3, 7)
    return tuple(
        tokens.new_empty(shape, dtype=torch.int64 if i in ints else torch.float32)
        for i, shape in enumerate(shapes)
    )


@torch.library.register_fake("dflash::verify_chain.out")
@torch.library.register_fake("dflash::verify_tree.out")
def _(*args, **kwargs):
    return None
