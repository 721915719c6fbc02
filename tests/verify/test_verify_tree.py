import pytest
import torch
from bounds import assert_within
from calls import assert_any_strides, assert_compiles_whole, assert_raises_alike
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_ops import Status, Verified, reference, verify_chain, verify_tree
from dflash_ops.reference import noise

OP = torch.ops.dflash.verify_tree
INF = float("inf")
RULES = ["rrs", "traversal", "target_only", "typical"]
PER_ROW = ("tokens", "logits", "parents", "positions", "q", "q_ids")


def random_call(seed, sizes, vocab, kind="dense", rule="rrs", replacement=False, laws=None):
    """Ragged trees near the target: drafts are drawn from their parent's q, in row order."""
    g = torch.Generator().manual_seed(seed)
    rows, batch = sum(sizes), len(sizes)
    logits = torch.randn(rows, vocab, generator=g) * 2
    q = (logits + torch.randn(rows, vocab, generator=g) * 0.7).softmax(dim=1)
    call = {}
    if kind == "sparse":
        top = q.topk(min(vocab, 8), dim=1)
        call = {"q": top.values.contiguous(), "q_ids": top.indices}
        q = torch.zeros_like(q).scatter_(1, top.indices, top.values)
    elif kind == "dense":
        call = {"q": q.clone()}
    parents, tokens, positions = [], [], []
    for b, n in enumerate(sizes):
        first, depth = len(tokens), []
        for i in range(n):
            open_rows = [j for j in range(i) if (q[first + j] > 0).any()]
            parent = open_rows[int(torch.randint(len(open_rows), (), generator=g))] if i else -1
            parents.append(parent)
            depth.append(depth[parent] + 1 if i else 0)
            positions.append(depth[-1] + 10 * b)
            law = q[first + max(parent, 0)]
            token = int(torch.multinomial(law, 1, generator=g)) if i else 0
            tokens.append(token)
            if i and not replacement:
                law[token] = 0
    return {
        "tokens": torch.tensor(tokens, dtype=torch.int64),
        "logits": logits,
        "parents": torch.tensor(parents, dtype=torch.int64),
        "positions": torch.tensor(positions, dtype=torch.int64),
        "cu_verify": torch.tensor([0, *sizes]).cumsum(0),
        "temperature": torch.ones(batch),
        "seeds": torch.randint(-(2**63), 2**63 - 1, (batch,), generator=g),
        "rule": rule,
        "replacement": replacement,
        "max_path": max([*sizes, 1]) - 1,
        **call,
        **(laws or {}),
    }


def verify(device, **call):
    status = torch.zeros(len(call["cu_verify"]) - 1, dtype=torch.int32, device=device)
    call = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in call.items()}
    got = verify_tree(**call, status=status)
    return Verified(*(x.cpu() for x in got)), status.cpu()


def path_of(got, call, b):
    """The end of the path that the probe's coins decide, and the one that was returned."""
    first, last = call["cu_verify"][b : b + 2].tolist()
    parents = call["parents"][first:last].tolist()
    children = [[j for j in range(1, last - first) if parents[j] == i] for i in range(last - first)]
    passed = (got.coins[first:last] < got.accept_probs[first:last]).tolist()
    if call["rule"] == "rrs":
        at = 0
        while True:
            at, before = next((j for j in children[at] if passed[j]), -1), at
            if at < 0:
                return before, first
    order = []

    def climb(i):
        for j in children[i]:
            climb(j)
        order.append(i)

    climb(0)
    return next(i for i in order if i == 0 or passed[i]), first


def assert_follows_its_probe(got, call):
    """The path is the coins against the probabilities, the last token the draw from the weights."""
    for b in range(len(call["cu_verify"]) - 1):
        count = int(got.num_emitted[b])
        if count == 0:
            continue
        first = int(call["cu_verify"][b])
        end = int(got.accepted_rows[b, count - 1]) - first
        if call["rule"] in ("rrs", "traversal"):
            assert end == path_of(got, call, b)[0]
        rows = got.accepted_rows[b, :count] - first
        assert rows[0] == 0
        assert call["parents"][first + rows[1:]].tolist() == rows[:-1].tolist()
        assert got.emitted[b, : count - 1].tolist() == call["tokens"][first + rows[1:]].tolist()
        weights = got.weights[first + end].double()
        ids = weights.nonzero()[:, 0]
        g = noise.gumbel(
            int(call["seeds"][b]),
            ids,
            int(call["positions"][first + end]) + 1,
            noise.purpose(noise.RESIDUAL, 0, end),
            int(call["positions"][first]),
        )
        scores, token = weights[ids].log() + g, int(got.emitted[b, count - 1])
        assert weights[token] > 0 and scores.max() - scores[ids == token] < 1e-4


@settings(max_examples=60)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 2, 3, 5, 9]), min_size=1, max_size=4),
    vocab=st.sampled_from([4, 9, 63, 64, 65, 600]),
    kind=st.sampled_from(["sparse", "dense"]),
    rule=st.sampled_from(RULES),
    replacement=st.booleans(),
    law=st.sampled_from(
        [{}, {"temperature": 0.5}, {"top_k": 5}, {"temperature": 2.0}, {"temperature": 0.0}]
    ),
    seed=st.integers(0, 2**31 - 1),
)
def test_equals_reference(device, sizes, vocab, kind, rule, replacement, law, seed):
    laws = {
        k: torch.full((len(sizes),), v, dtype=torch.int64 if k == "top_k" else torch.float32)
        for k, v in law.items()
    }
    call = random_call(seed, sizes, vocab, kind, rule, replacement, laws)
    got, status = verify(device, **call, probe=True)
    assert not status.any()
    assert_follows_its_probe(got, call)
    plain, _ = verify(device, **call)
    assert all(torch.equal(a, b) for a, b in zip(plain[:5], got[:5], strict=True))
    want = reference.verify_tree(**call)
    assert torch.equal(got.coins.double(), want.coins)
    # The rounding of exp, of the log-sum-exp and of q, relative to logits up to 40 in size; a
    # residual of mass m magnifies it by 1 / m.
    slack = 60 * 2.0**-24
    total = got.weights.double().sum(dim=1, keepdim=True)
    share = want.weights / want.weights.sum(dim=1, keepdim=True)
    near = (share * total - got.weights.double()).abs() < slack * (1 + 1 / total.clamp(min=1e-3))
    # Behind a child that is taken for certain no residual is left but rounding, and none is drawn.
    certain = (want.accept_probs > 1 - slack).nonzero()[:, 0]
    request = torch.searchsorted(call["cu_verify"], certain, right=True) - 1
    near[call["cu_verify"][request] + call["parents"][certain].clamp(min=0)] |= rule == "rrs"
    assert near.all()
    if rule == "typical":
        assert torch.equal(got.accept_probs.double(), want.accept_probs)


@pytest.mark.parametrize("law", [{}, {"temperature": 0.7}, {"top_k": 5}])
@pytest.mark.parametrize("kind", ["sparse", "dense"])
@pytest.mark.parametrize("rule", RULES)
def test_every_isa_gives_the_same_bits(each_isa, rule, kind, law):
    """Over several spans of 512 ids, the last of them not whole."""
    laws = {k: torch.full((2,), v) for k, v in law.items()}
    call = random_call(7, [5, 9], 1400, kind, rule, laws=laws)
    first, *others = each_isa(lambda: verify("cpu", **call, probe=True)[0])
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("rule", RULES)
def test_decides_as_the_reference(device, rule):
    call = random_call(4, [9] * 60, 12, "sparse", rule)
    got, _ = verify(device, **call)
    want = reference.verify_tree(**call)
    assert torch.equal(got.emitted, want.emitted)
    assert torch.equal(got.accepted_rows, want.accepted_rows)
    assert torch.equal(got.num_accepted, want.num_accepted)
    assert got.num_accepted.max() >= 2
    assert_within(got.logprobs, want.logprobs, terms=20.0)


@pytest.mark.parametrize(("rule", "chain_rule"), [("rrs", "token"), ("traversal", "block")])
@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_a_chain_is_verified_as_by_verify_chain(device, rule, chain_rule, kind):
    call = random_call(6, [6] * 50, 9, kind, rule)
    call["parents"] = (torch.arange(6) - 1).repeat(50)
    call["positions"] = torch.arange(6).repeat(50)
    got, _ = verify(device, **call)
    call = {k: v for k, v in call.items() if k not in ("parents", "replacement")}
    want = verify_chain(**(call | {"rule": chain_rule}))
    assert torch.equal(got.emitted, want.emitted) and torch.equal(got.logprobs, want.logprobs)


def test_siblings_of_known_laws(device):
    """p = (.5, .3, .2), q = (.2, .3, .5): after token 2 is rejected p is (1, 0, 0)."""
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.3, 0.5])
    call = {
        "tokens": torch.tensor([0, 2, 0, 0, 2, 1]),
        "logits": p.log().expand(6, 3),
        "parents": torch.tensor([-1, 0, 0] * 2),
        "positions": torch.tensor([0, 1, 1] * 2),
        "cu_verify": torch.tensor([0, 3, 6]),
        "temperature": torch.ones(2),
        "seeds": torch.arange(2),
        "q": q.expand(6, 3),
        "max_path": 2,
        "probe": True,
    }
    got, _ = verify(device, **call)
    assert_within(got.accept_probs, torch.tensor([0, 0.4, 1, 0, 0.4, 0]).double(), terms=1.0)
    assert_within(
        got.weights[0] / got.weights[0].sum(), torch.tensor([1.0, 0, 0]).double(), terms=1.0
    )


def test_typical_takes_the_longest_likely_path(device):
    """Rows 1 and 2 pass, and only row 2's child does; at a flat law less is asked for."""
    logits = torch.tensor([[0.5, 0.45, 0.05], [0.02, 0.96, 0.02], [0.02, 0.96, 0.02], [1, 1, 1]])
    call = {
        "tokens": torch.tensor([0, 0, 1, 0, 1, 2]),
        "logits": torch.cat([logits, logits[:2]]).log(),
        "parents": torch.tensor([-1, 0, 0, 1, 2, 0]),
        "positions": torch.tensor([0, 1, 1, 2, 2, 1]),
        "cu_verify": torch.tensor([0, 6]),
        "temperature": torch.ones(1),
        "seeds": torch.zeros(1).long(),
        "rule": "typical",
        "max_path": 2,
        "probe": True,
    }
    got, _ = verify(device, **call)
    assert got.accept_probs.tolist() == [0, 1, 1, 0, 1, 1]
    assert got.accepted_rows.tolist() == [[0, 2, 4]]
    got, _ = verify(device, **call, typical_eps=0.06, typical_delta=9.0)
    assert got.accept_probs.tolist() == [0, 1, 1, 0, 1, 0]
    got, _ = verify(device, **call, typical_eps=1.0, typical_delta=9.0)
    assert got.num_accepted.tolist() == [0]


@pytest.mark.parametrize("rule", RULES)
def test_greedy_is_the_argmax_path(device, rule):
    call = random_call(5, [5] * 20, 8, "dense", rule, laws={"temperature": torch.zeros(20)})
    best = call["logits"].argmax(dim=1).view(20, 5)
    call["parents"] = torch.tensor([-1, 0, 0, 2, 3]).repeat(20)
    call["tokens"] = torch.stack(
        [best[:, 0], (best[:, 0] + 1) % 8, best[:, 0], best[:, 2], (best[:, 3] + 1) % 8], dim=1
    ).flatten()
    got, _ = verify(device, **call)
    assert (got.num_accepted == 2).all()
    assert torch.equal(got.emitted[:, :3], best[:, [0, 2, 3]])


@pytest.mark.parametrize("rule", ["rrs", "traversal"])
def test_a_draft_without_target_probability_is_rejected(device, rule):
    """Strictly: u * 0 < 0 is false."""
    got, _ = verify(
        device,
        tokens=torch.tensor([0, 1, 1]),
        logits=torch.tensor([[0.0, -INF], [0.0, 0.0], [0.0, 0.0]]),
        parents=torch.tensor([-1, 0, 0]),
        positions=torch.tensor([0, 1, 1]),
        cu_verify=torch.tensor([0, 3]),
        temperature=torch.ones(1),
        seeds=torch.zeros(1).long(),
        q=torch.tensor([[0.0, 1.0]]).expand(3, 2),
        rule=rule,
        replacement=True,
        max_path=1,
    )
    assert got.emitted.tolist() == [[0, -1]]


@pytest.mark.parametrize("rule", RULES)
def test_bad_trees_keep_what_is_before_them(device, rule):
    call = random_call(8, [6] * 5, 8, "dense", rule)
    bad = call["parents"].view(5, 6)
    bad[:] = torch.tensor([-1, 0, 0, 1, 2, 2])
    call["positions"] = torch.tensor([0, 1, 1, 2, 2, 2]).repeat(5)
    bad[0, 0], bad[1, 3], bad[2, 4], bad[3, 5] = 0, 3, 2**31 - 1, -1
    got, status = verify(device, **call, probe=True)
    assert status.tolist() == [Status.BAD_TREE] * 4 + [0]
    assert (got.num_emitted >= 1).all() and got.num_emitted[0] == 1
    for b, size in enumerate([1, 3, 4, 5, 6]):
        one = {k: v[6 * b : 6 * b + size] for k, v in call.items() if k in PER_ROW}
        one["parents"] = torch.tensor([-1, 0, 0, 1, 2, 2])[:size]
        one |= {"cu_verify": torch.tensor([0, size]), "req_rows": torch.tensor([b])}
        alone, _ = verify(device, **(call | one))
        assert torch.equal(alone.emitted[0], got.emitted[b])


@pytest.mark.parametrize("rule", RULES)
def test_bad_drafts_and_laws_are_rejected(device, rule):
    q = torch.full((9, 4, 4), 0.25)
    q[1, 0, 0], q[2, 0, 1], q[3, 0], q[4, 0, 2] = float("nan"), -0.1, 0.0, INF
    q[8, 0] = torch.tensor([0.0, 1.0, 0.0, 0.0])  # one token, two siblings
    tokens = torch.tensor([[0, 1, 2, 3]] * 9)
    tokens[5, 1], tokens[6, 1], tokens[7, 1] = -1, 4, 2**40
    call = {
        "tokens": tokens.flatten(),
        "logits": torch.zeros(36, 4),
        "parents": torch.tensor([-1, 0, 0, 1]).repeat(9),
        "positions": torch.tensor([0, 1, 1, 2]).repeat(9),
        "cu_verify": torch.arange(0, 37, 4),
        "temperature": torch.ones(9),
        "seeds": torch.arange(9),
        "q": q.flatten(0, 1),
        "rule": rule,
        "max_path": 2,
        "probe": True,
    }
    got, status = verify(device, **call)
    reads_q = rule in ("rrs", "traversal")
    bad_q = Status.BAD_Q if reads_q else 0
    assert status.tolist() == [0] + [bad_q] * 4 + [Status.BAD_DRAFT_ID] * 3 + [bad_q]
    assert got.emitted.min() >= -1 and got.emitted.max() < 4
    assert not got.accept_probs.view(9, 4)[5:8, 1].any()
    if reads_q:
        assert (got.num_emitted[1:5] == 1).all() and (
            got.weights.view(9, 4, 4)[1:5, 0] == 0.25
        ).all()
        got, status = verify(device, **call, draft_kind=torch.tensor([0] + [1] * 8))
        assert status[0] == Status.BAD_Q and got.num_emitted[0] == 1
        ids = torch.tensor([0, 1, 2, 2**33]).expand(36, 4)
        _, status = verify(device, **(call | {"q": torch.ones(36, 4), "q_ids": ids}))
        assert (status == Status.BAD_Q).any()


@pytest.mark.parametrize("rule", RULES)
def test_a_row_without_a_finite_logit(device, rule):
    call = random_call(2, [4, 4], 8, "dense", rule)
    call["logits"][0], call["logits"][4] = float("nan"), -INF
    got, status = verify(device, **call)
    assert (status == Status.NO_FINITE_LOGIT).all()
    assert (got.emitted[:, 0] == 0).all() and (got.logprobs[:, 0] == -INF).all()


@pytest.mark.parametrize("rule", RULES)
def test_a_short_path_cuts_but_changes_no_token(device, rule):
    call = random_call(3, [9] * 40, 6, "dense", rule)
    whole, _ = verify(device, **call)
    for max_path in (0, 1, 2):
        got, status = verify(device, **(call | {"max_path": max_path}))
        assert torch.equal(got.num_accepted, whole.num_accepted.clamp(max=max_path))
        kept = torch.arange(max_path + 1) < got.num_emitted[:, None]
        assert torch.equal(got.emitted, whole.emitted[:, : max_path + 1].where(kept, -1))
        assert torch.equal((status & Status.BOUND_TOO_SMALL) != 0, whole.num_accepted > max_path)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_a_request_does_not_depend_on_its_neighbours(device, rule, kind):
    """Nor on padding, dtype of ids, strides, or NaN in columns that are no token."""
    call = random_call(9, [4, 1, 6, 3], 100, kind, rule)
    call["temperature"] = torch.tensor([1.0, 0.7, 1.3, 1.0])
    whole, _ = verify(device, **call)
    for b in range(4):
        first, last = call["cu_verify"][b : b + 2].tolist()
        one = {k: v[first:last] for k, v in call.items() if k in PER_ROW}
        one["logits"] = torch.nn.functional.pad(one["logits"], (0, 9), value=float("nan"))
        one["q"] = torch.stack([one["q"], one["q"]], dim=2)[..., 1]
        one["parents"] = torch.stack([one["parents"], one["parents"]], dim=1).int()[:, 1]
        got, status = verify(
            device,
            **call
            | one
            | {
                "cu_verify": torch.tensor([0, last - first, last - first]),
                "req_rows": torch.tensor([b, -1]),
                "vocab_size": 100,
            },
        )
        assert torch.equal(got.emitted[0], whole.emitted[b])
        assert torch.equal(got.logprobs[0], whole.logprobs[b])
        assert got.num_emitted[1] == 0 and not status.any()


@pytest.mark.parametrize("rule", RULES)
def test_padded_and_bad_requests(device, rule):
    call = random_call(1, [3, 3, 3, 3], 8, "dense", rule)
    call |= {
        "parents": torch.tensor([-1, 0, 0] * 4),
        "req_rows": torch.tensor([-1, 4, 2, 3]),
        "verify_rows": torch.tensor([0, 1, 2, 3, 4, 5, -1, 7, 8, 9, 99, -1]),
    }
    got, status = verify(device, **call)
    assert got.num_emitted.tolist() == [0, 0, 0, 1]
    assert (got.emitted[:3] == -1).all() and (got.accepted_rows[:3] == -1).all()
    assert status.tolist() == [0, Status.OUT_OF_RANGE, 0, Status.OUT_OF_RANGE]
    call["cu_verify"] = torch.tensor([0, 3, 2, 99, 12])
    got, status = verify(device, **(call | {"req_rows": torch.arange(4)}))
    assert got.num_emitted[1:].tolist() == [0, 0, 0]


@pytest.mark.parametrize("rule", ["rrs", "traversal"])
def test_rows_beyond_32_bits(device, rule):
    call = random_call(7, [3], 100, "dense", rule)
    want, _ = verify(device, **call)
    buffer = torch.empty(2**32 + 2048, dtype=torch.float32, device=device)  # few pages are touched
    for name, at in (("logits", 0), ("q", 1024)):
        wide = buffer.as_strided((3, 100), (2**31, 1), at)
        wide.copy_(call[name])
        call[name] = wide
    got, _ = verify(device, **call)
    assert torch.equal(got.emitted, want.emitted) and torch.equal(got.logprobs, want.logprobs)


def test_a_deep_tree_ends(device, device_class):
    """No recursion: a chain of 20 000 rows, all of it sure."""
    n = 300 if device_class.startswith("ptx") else 20_000  # an emulated row takes long
    call = {
        "tokens": torch.zeros(n).int(),
        "logits": torch.tensor([0.0, -INF]).expand(n, 2).contiguous(),
        "parents": torch.arange(n) - 1,
        "positions": torch.arange(n),
        "cu_verify": torch.tensor([0, n]),
        "q": torch.tensor([[1.0, 0.0]]).expand(n, 2),
        "max_path": n - 1,
    }
    for rule in ("rrs", "traversal"):
        assert verify(device, **call, rule=rule)[0].num_accepted.tolist() == [n - 1]


def valid_call():
    call = random_call(0, [3, 2], 8, "sparse") | {
        "draft_kind": torch.ones(2).int(),
        "status": torch.zeros(2).int(),
        "probe": True,
    }
    out = Verified(*(torch.zeros_like(x) for x in verify_tree(**call)))
    return call, out._asdict()


def test_strided_in_place(device):
    call, _ = valid_call()
    assert_any_strides(verify_tree, call | {"probe": False}, ("logits",))


WRONG = [
    (
        "parents",
        torch.zeros(4).int(),
        ValueError,
        "parents must have shape [Tv] = [5], got [4]",
    ),
    ("parents", torch.zeros(5), TypeError, "parents must be int32 or int64, got float32"),
    ("q", torch.zeros(5, 65), ValueError, "K must be at most 64, got 65"),
    (
        "rule",
        "token",
        ValueError,
        "rule must be one of rrs, traversal, target_only, typical, got token",
    ),
    ("typical_eps", -0.5, ValueError, "typical_eps must be at least 0, got -0.5"),
    ("max_path", -1, ValueError, "max_path must be at least 0, got -1"),
    ("status", torch.zeros(5).int(), ValueError, "status must have shape [B] = [2], got [5]"),
    (
        "emitted",
        torch.zeros(2, 2).int(),
        ValueError,
        "emitted must have shape [B, max_path + 1] = [2, 3], got [2, 2]",
    ),
]


@pytest.mark.parametrize(("name", "value", "error", "text"), WRONG)
def test_names_what_is_wrong(name, value, error, text):
    call, out = valid_call()
    (out if name in out else call)[name] = value
    assert_raises_alike(verify_tree, OP.out, call, out, error, text, Verified)


@pytest.mark.parametrize("rule", ["rrs", "traversal"])
def test_deterministic_trees_are_refused(rule):
    call, _ = valid_call()
    call |= {"q": None, "q_ids": None, "draft_kind": None, "rule": rule}
    text = "verify_tree: q must be given with rule rrs or traversal, got None"
    for function, error in ((verify_tree, ValueError), (OP, RuntimeError)):
        with pytest.raises(error) as raised:
            function(**call)
        assert str(raised.value) == text


def test_opcheck(device):
    call, out = valid_call()
    args = call.pop("tokens"), call.pop("logits"), call.pop("parents")
    torch.library.opcheck(OP.default, args, call)
    torch.library.opcheck(OP.default, args, call | {"probe": False})
    torch.library.opcheck(OP.out, args, call | out)


def test_compiles_whole(device):
    call, _ = valid_call()
    assert_compiles_whole(verify_tree, call)
