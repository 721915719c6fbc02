import pytest
import torch
from bounds import assert_within
from calls import assert_any_strides, assert_compiles_whole, assert_raises_alike
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_ops import Status, Verified, reference, verify_chain
from dflash_ops.reference import noise

OP = torch.ops.dflash.verify_chain
INF = float("inf")


def random_call(seed, sizes, vocab, kind, rule, laws=None, close=True):
    """Ragged chains; the drafter's law is near the target's, drafts are drawn from it."""
    g = torch.Generator().manual_seed(seed)
    rows, batch = sum(sizes), len(sizes)
    logits = torch.randn(rows, vocab, generator=g) * 2
    q = (logits + torch.randn(rows, vocab, generator=g) * (0.5 if close else 3)).softmax(dim=1)
    drafts = torch.multinomial(q, 1, generator=g)[:, 0]
    call = {
        "tokens": drafts.roll(1),
        "logits": logits,
        "positions": torch.tensor(
            [i + 10 * b for b, n in enumerate(sizes) for i in range(n)], dtype=torch.int64
        ),
        "cu_verify": torch.tensor([0, *sizes]).cumsum(0),
        "temperature": torch.ones(batch),
        "seeds": torch.randint(-(2**63), 2**63 - 1, (batch,), generator=g),
        "rule": rule,
        "max_path": max([*sizes, 1]) - 1,
    }
    if kind == "dense":
        call["q"] = q
    elif kind == "sparse":
        top = q.topk(min(vocab, 8), dim=1)
        call |= {"q": top.values.contiguous(), "q_ids": top.indices}
        pick = torch.multinomial(top.values, 1, generator=g)
        call["tokens"] = top.indices.gather(1, pick)[:, 0].roll(1)
    return call | (laws or {})


def verify(device, **call):
    status = torch.zeros(len(call["cu_verify"]) - 1, dtype=torch.int32, device=device)
    call = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in call.items()}
    got = verify_chain(**call, status=status)
    return Verified(*(x.cpu() for x in got)), status.cpu()


def assert_follows_its_probe(got, call):
    """Decisions are the coins against the probabilities, the last token the draw from the weights."""
    for b, (first, last) in enumerate(
        zip(call["cu_verify"][:-1].tolist(), call["cu_verify"][1:].tolist(), strict=True)
    ):
        if first == last:
            continue
        anchor, seed = int(call["positions"][first]), int(call["seeds"][b])
        passed = []
        for i in range(1, last - first):
            u = noise.coin(seed, i, int(call["positions"][first + i - 1]) + 1, anchor, i - 1)
            assert float(got.coins[first + i]) == u
            passed.append(u < float(got.accept_probs[first + i]))
        if call["rule"] == "token":
            accepted = passed.index(False) if False in passed else len(passed)
        else:
            accepted = max((i for i, x in enumerate(passed, start=1) if x), default=0)
        assert int(got.num_accepted[b]) == accepted
        assert (
            got.emitted[b, :accepted].tolist()
            == call["tokens"][first + 1 : first + 1 + accepted].tolist()
        )
        weights = got.weights[first + accepted].double()
        ids = weights.nonzero()[:, 0]
        g = noise.gumbel(
            seed,
            ids,
            int(call["positions"][first + accepted]) + 1,
            noise.purpose(3, 0, accepted),
            anchor,
        )
        scores = weights[ids].log() + g
        token = int(got.emitted[b, accepted])
        assert weights[token] > 0
        assert scores.max() - scores[ids == token] < 1e-4


@settings(max_examples=50)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 2, 3, 5, 9]), min_size=1, max_size=4),
    vocab=st.sampled_from([2, 8, 63, 64, 65, 600]),
    kind=st.sampled_from(["none", "sparse", "dense"]),
    rule=st.sampled_from(["token", "block"]),
    law=st.sampled_from(
        [
            {},
            {"temperature": 0.5},
            {"top_k": 5},
            {"temperature": 2.0, "top_p": 0.9},
            {"min_p": 0.1},
            {"temperature": 0.0},
        ]
    ),
    close=st.booleans(),
    seed=st.integers(0, 2**31 - 1),
)
def test_equals_reference(device, sizes, vocab, kind, rule, law, close, seed):
    laws = {
        k: torch.full((len(sizes),), v, dtype=torch.int64 if k == "top_k" else torch.float32)
        for k, v in law.items()
    }
    call = random_call(seed, sizes, vocab, kind, rule, laws, close)
    got, status = verify(device, **call, probe=True)
    assert not status.any()
    assert_follows_its_probe(got, call)
    plain, _ = verify(device, **call)
    assert all(torch.equal(a, b) for a, b in zip(plain[:5], got[:5], strict=True))
    want = reference.verify_chain(**call)
    # The rounding of exp, of the log-sum-exp and of q, relative to logits up to 40 in size.
    slack = 60 * 2.0**-24
    total = got.weights.double().sum(dim=1, keepdim=True)
    share = want.weights / want.weights.sum(dim=1, keepdim=True)
    near = (share * total - got.weights.double()).abs() < slack * (1 + 1 / total.clamp(min=1e-3))
    assert near.all() or "top_p" in law or "min_p" in law
    if rule == "token" and near.all():
        error = (got.accept_probs.double() - want.accept_probs).abs()
        assert (error <= slack * (1 + want.accept_probs)).all()


@pytest.mark.parametrize("law", [{}, {"temperature": 0.7}, {"top_k": 5}, {"min_p": 0.01}])
@pytest.mark.parametrize("kind", ["none", "sparse", "dense"])
@pytest.mark.parametrize("rule", ["token", "block"])
def test_every_isa_gives_the_same_bits(each_isa, rule, kind, law):
    """Over several spans of 512 ids, the last of them not whole, with a mask."""
    g = torch.Generator().manual_seed(1)
    laws = {k: torch.full((2,), v) for k, v in law.items()}
    laws["token_mask"] = torch.randint(-(2**31), 2**31, (14, 44), generator=g).int()
    call = random_call(7, [5, 9], 1400, kind, rule, laws, close=True)
    first, *others = each_isa(lambda: verify("cpu", **call, probe=True)[0])
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_first_row_of_known_laws(device):
    """p = (.5, .5), q = (.85, .15): the residual of a rejected 0 is all on 1."""
    n = 4000
    logits, q = torch.zeros(2 * n, 2), torch.tensor([[0.85, 0.15]]).expand(2 * n, 2)
    call = {
        "tokens": torch.zeros(2 * n).long(),
        "logits": logits,
        "positions": torch.arange(2).repeat(n),
        "cu_verify": torch.arange(0, 2 * n + 1, 2),
        "temperature": torch.ones(n),
        "seeds": torch.arange(n),
        "max_path": 1,
    }
    for rule in ("token", "block"):
        got, _ = verify(device, **call, q=q, rule=rule)
        rejected = got.num_accepted == 0
        assert abs(rejected.double().mean() - (1 - 0.5 / 0.85)) < 0.03
        assert (got.emitted[rejected, 0] == 1).all() and (got.emitted[~rejected, 0] == 0).all()
        got, _ = verify(device, **call, rule=rule)  # deterministic drafts: one-hot q
        assert abs((got.num_accepted == 0).double().mean() - 0.5) < 0.03


@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_draft_without_target_probability_is_rejected(device, rule):
    """Strictly: u * 0 < 0 is false."""
    logits = torch.tensor([[0.0, -INF], [0.0, 0.0]])
    for q in (torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]])):
        got, _ = verify(
            device,
            tokens=torch.tensor([0, 1]),
            logits=logits,
            positions=torch.tensor([0, 1]),
            cu_verify=torch.tensor([0, 2]),
            temperature=torch.ones(1),
            seeds=torch.zeros(1).long(),
            q=q.expand(2, 2),
            rule=rule,
            max_path=1,
        )
        assert got.emitted.tolist() == [[0, -1]] and got.num_accepted.tolist() == [0]


@pytest.mark.parametrize("rule", ["token", "block"])
def test_greedy_is_the_argmax_chain(device, rule):
    call = random_call(5, [6] * 40, 8, "dense", rule, {"temperature": torch.zeros(40)})
    best = call["logits"].argmax(dim=1).view(40, 6)
    call["tokens"].view(40, 6)[:, 1:4] = best[:, :3]
    call["tokens"].view(40, 6)[:, 4] = (best[:, 3] + 1) % 8
    got, _ = verify(device, **call)
    assert (got.num_accepted == 3).all() and torch.equal(got.emitted[:, :4], best[:, :4])
    assert got.accepted_rows[1].tolist() == [6, 7, 8, 9, -1, -1]


@pytest.mark.parametrize("rule", ["token", "block"])
def test_bad_drafts_and_laws_end_the_chain_and_leave_p(device, rule):
    nan = float("nan")
    q = torch.full((8, 2, 4), 0.25)
    q[1, 0, 0], q[2, 0, 1], q[3, 0], q[4, 0, 2] = nan, -0.1, 0.0, INF
    tokens = torch.tensor([[0, 1]] * 8)
    tokens[5, 1], tokens[6, 1], tokens[7, 1] = -1, 4, 2**40
    call = {
        "tokens": tokens.flatten(),
        "logits": torch.zeros(16, 4),
        "positions": torch.arange(2).repeat(8),
        "cu_verify": torch.arange(0, 17, 2),
        "temperature": torch.ones(8),
        "seeds": torch.arange(8),
        "q": q.flatten(0, 1),
        "rule": rule,
        "max_path": 1,
        "probe": True,
    }
    got, status = verify(device, **call)
    assert status.tolist() == [0] + [Status.BAD_Q] * 4 + [Status.BAD_DRAFT_ID] * 3
    assert (got.num_emitted[1:] == 1).all() and (got.weights[2::2] == 0.25).all()
    assert got.emitted.min() >= -1 and got.emitted.max() < 4
    ids = torch.tensor([0, 1, 2, 2**33]).expand(16, 4)
    _, status = verify(device, **(call | {"q": torch.ones(16, 4), "q_ids": ids}))
    assert (status & Status.BAD_Q).bool()[:5].all()


def test_a_short_path_cuts_but_changes_no_token(device):
    call = random_call(3, [7] * 30, 8, "dense", "token")
    whole, _ = verify(device, **call)
    for max_path in (0, 2, 5):
        got, status = verify(device, **(call | {"max_path": max_path}))
        assert torch.equal(got.num_accepted, whole.num_accepted.clamp(max=max_path))
        kept = torch.arange(max_path + 1) < got.num_emitted[:, None]
        assert torch.equal(got.emitted, whole.emitted[:, : max_path + 1].where(kept, -1))
        assert torch.equal((status & Status.BOUND_TOO_SMALL) != 0, whole.num_accepted > max_path)


def test_a_request_does_not_depend_on_its_neighbours(device):
    """Nor on padding, order and threads."""
    for rule, kind in (("token", "sparse"), ("block", "dense")):
        call = random_call(
            9, [4, 1, 6, 3], 200, kind, rule, {"temperature": torch.tensor([1.0, 0.7, 1.3, 1.0])}
        )
        whole, _ = verify(device, **call)
        for b in range(4):
            first, last = call["cu_verify"][b], call["cu_verify"][b + 1]
            one = {
                k: v[first:last]
                for k, v in call.items()
                if k in ("tokens", "logits", "positions", "q", "q_ids")
            }
            one = (
                call
                | one
                | {
                    "cu_verify": torch.tensor([0, last - first, last - first]),
                    "req_rows": torch.tensor([b, -1]),
                }
            )
            got, _ = verify(device, **one)
            assert torch.equal(got.emitted[0], whole.emitted[b]) and torch.equal(
                got.logprobs[0], whole.logprobs[b]
            )
            assert got.num_emitted[1] == 0


def test_draft_kind_mixes_requests(device):
    call = random_call(2, [4, 4], 8, "dense", "token")
    mixed, _ = verify(device, **call, draft_kind=torch.tensor([0, 1]), probe=True)
    sampled, _ = verify(device, **call, probe=True)
    plain, _ = verify(device, **{k: v for k, v in call.items() if k != "q"}, probe=True)
    assert torch.equal(mixed.weights[:4], plain.weights[:4])
    assert torch.equal(mixed.weights[4:], sampled.weights[4:])


def test_padded_and_bad_requests(device):
    call = random_call(1, [3, 3, 3, 3], 8, "dense", "token")
    call |= {
        "req_rows": torch.tensor([-1, 4, 2, 3]),
        "verify_rows": torch.tensor([0, 1, 2, 3, 4, 5, -1, 7, 8, 9, 99, 11]),
    }
    got, status = verify(device, **call)
    assert got.num_emitted[:3].tolist() == [0, 0, 0] and got.num_emitted[3] == 1
    assert (got.emitted[:3] == -1).all() and (got.accepted_rows[:3] == -1).all()
    assert status.tolist() == [0, Status.OUT_OF_RANGE, 0, Status.OUT_OF_RANGE]
    call["cu_verify"] = torch.tensor([0, 3, 2, 99, 12])
    got, status = verify(device, **(call | {"req_rows": torch.arange(4)}))
    assert got.num_emitted[1:].tolist() == [0, 0, 0]


def test_logprobs_are_of_the_raw_law(device):
    call = random_call(
        4,
        [5] * 9,
        50,
        "sparse",
        "token",
        {"temperature": torch.full((9,), 0.6), "top_k": torch.full((9,), 9)},
    )
    got, _ = verify(device, **call)
    logprobs = call["logits"].double().log_softmax(dim=1)
    for b in range(9):
        for j in range(int(got.num_emitted[b])):
            assert_within(got.logprobs[b, j], logprobs[5 * b + j, got.emitted[b, j]], terms=20.0)


def valid_call():
    call = random_call(0, [3, 2], 8, "sparse", "block") | {
        "draft_kind": torch.ones(2).int(),
        "status": torch.zeros(2).int(),
        "probe": True,
    }
    out = Verified(*(torch.zeros_like(x) for x in verify_chain(**call)))
    return call, out._asdict()


def test_strided_in_place(device):
    call, _ = valid_call()
    assert_any_strides(verify_chain, call | {"probe": False}, ("logits",))


WRONG = [
    ("tokens", torch.zeros(4).int(), ValueError, "tokens must have shape [Tv] = [5], got [4]"),
    (
        "logits",
        torch.zeros(5, 8).double(),
        TypeError,
        "logits must be bfloat16 or float16 or float32, got float64",
    ),
    ("q", None, ValueError, "q must be given with q_ids, got None"),
    ("q", torch.zeros(5, 65), ValueError, "K must be at most 64, got 65"),
    (
        "q_ids",
        torch.zeros(5, 7).int(),
        ValueError,
        "q_ids must have shape [Tv, K] = [5, 8], got [5, 7]",
    ),
    ("q_ids", torch.zeros(5, 8), TypeError, "q_ids must be int32 or int64, got float32"),
    (
        "draft_kind",
        torch.zeros(3).int(),
        ValueError,
        "draft_kind must have shape [B] = [2], got [3]",
    ),
    ("rule", "tree", ValueError, "rule must be one of token, block, got tree"),
    ("max_path", -1, ValueError, "max_path must be at least 0, got -1"),
    ("status", torch.zeros(5).int(), ValueError, "status must have shape [B] = [2], got [5]"),
    (
        "emitted",
        torch.zeros(2, 2).int(),
        ValueError,
        "emitted must have shape [B, max_path + 1] = [2, 3], got [2, 2]",
    ),
    (
        "weights",
        torch.zeros(5, 7),
        ValueError,
        "weights must have shape [Tv, vocab_size] = [5, 8], got [5, 7]",
    ),
]


@pytest.mark.parametrize(("name", "value", "error", "text"), WRONG)
def test_names_what_is_wrong(name, value, error, text):
    call, out = valid_call()
    (out if name in out else call)[name] = value
    assert_raises_alike(verify_chain, OP.out, call, out, error, text, Verified)


def test_opcheck(device):
    call, out = valid_call()
    args = call.pop("tokens"), call.pop("logits")
    torch.library.opcheck(OP.default, args, call)
    torch.library.opcheck(OP.default, args, call | {"probe": False})
    torch.library.opcheck(OP.out, args, call | out)


def test_compiles_whole(device):
    call, _ = valid_call()
    assert_compiles_whole(verify_chain, call)
