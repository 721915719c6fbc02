import math

import pytest
import torch
from calls import assert_raises_alike, spread
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_ops import Status, Tree, build_tree, reference, tree_metadata

OP = torch.ops.dflash.build_tree


def make_call(seed=0, batch=3, slots=4, candidates=3, max_nodes=8, conditional=False, levels=None):
    """Log-probabilities; with few `levels`, so that ties abound."""
    g = torch.Generator().manual_seed(seed)
    shape = (batch, slots, candidates, candidates)[: 4 if conditional else 3]
    scores = torch.randn(shape, generator=g).log_softmax(-1)
    if levels is not None:
        scores = -torch.randint(1, levels + 1, shape, generator=g).float()
    ids = torch.rand(batch, slots, 50, generator=g).argsort(-1)[..., :candidates].contiguous()
    return {
        "anchors": torch.randint(0, 50, (batch,), generator=g),
        "ids": ids,
        "scores": scores,
        "max_nodes": max_nodes,
        "status": torch.zeros(batch, dtype=torch.int32),
    }


def check(device, call):
    got_call = {
        k: x.clone().to(device) if isinstance(x, torch.Tensor) else x for k, x in call.items()
    }
    got = Tree(*(x.cpu() for x in build_tree(**got_call)))
    status = call["status"].clone()
    want = reference.build_tree(**call | {"status": status})
    for name, a, b in zip(Tree._fields, got, want, strict=True):
        assert torch.equal(a, b), f"{name}: got {a}, expected {b}"
    assert torch.equal(got_call["status"].cpu(), status)
    return got, status.tolist()


def test_takes_the_likeliest_paths(device):
    """Slot 0: .6, .4; slot 1: .9, .1. Products: a .6, aa .54, b .4, ba .36, ab .06, bb .04."""
    scores = torch.tensor([[[0.6, 0.4], [0.9, 0.1]]]).log()
    ids = torch.tensor([[[10, 11], [20, 21]]])
    call = {"anchors": torch.tensor([5]), "ids": ids, "scores": scores, "max_nodes": 8}
    got, _ = check(device, call | {"status": torch.zeros(1, dtype=torch.int32)})
    assert got.cu_rows.tolist() == [0, 7]
    assert got.tokens.tolist() == [5, 10, 20, 11, 20, 21, 21, -1]
    assert got.parents.tolist() == [-1, 0, 1, 0, 3, 1, 3, -1]
    want = torch.tensor([1, 0.6, 0.54, 0.4, 0.36, 0.06, 0.04, 0]).log()
    torch.testing.assert_close(got.path_scores, want, rtol=2**-20, atol=0)


def test_conditional_edges_depend_on_the_parent(device):
    edges = torch.tensor([[[0.6, 0.4], [9, 9]], [[0.1, 0.9], [0.95, 0.05]]])[None].log()
    ids = torch.tensor([[[10, 11], [20, 21]]])
    call = {"anchors": torch.tensor([5]), "ids": ids, "scores": edges, "max_nodes": 5}
    got, _ = check(device, call | {"status": torch.zeros(1, dtype=torch.int32)})
    assert got.tokens.tolist() == [5, 10, 21, 11, 20] and got.parents.tolist() == [-1, 0, 1, 0, 3]


def test_ties_go_to_the_lower_parent_row_then_the_lower_id(device):
    call = make_call(batch=1, slots=2, candidates=3, max_nodes=13) | {
        "scores": torch.zeros(1, 2, 3)
    }
    call["ids"] = torch.tensor([[[7, 3, 5], [9, 8, 4]]])
    got, _ = check(device, call)
    assert got.tokens[1:].tolist() == [3, 5, 7, 4, 8, 9, 4, 8, 9, 4, 8, 9]
    assert got.parents[1:].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_it_is_the_best_set_of_nodes(device):
    """Against all nodes sorted by score: the tree's scores are the highest there are."""
    call = make_call(3, batch=1, slots=4, candidates=3, max_nodes=40)
    got, _ = check(device, call)
    level = [0.0]
    every = []
    for slot in range(4):
        level = [a + b for a in level for b in call["scores"][0, slot].double().tolist()]
        every += level
    best = torch.tensor(sorted(every, reverse=True)[:39])
    torch.testing.assert_close(got.path_scores[1:].double(), best.double(), rtol=2**-18, atol=0)


@settings(max_examples=60)
@given(
    batch=st.sampled_from([0, 1, 4]),
    slots=st.sampled_from([0, 1, 2, 7]),
    candidates=st.sampled_from([0, 1, 2, 5]),
    max_nodes=st.sampled_from([1, 2, 31, 33]),
    conditional=st.booleans(),
    levels=st.sampled_from([None, 1, 3]),
    ragged=st.booleans(),
    spoiled=st.booleans(),
    seed=st.integers(0, 2**31 - 1),
)
def test_equals_reference(
    device, batch, slots, candidates, max_nodes, conditional, levels, ragged, spoiled, seed
):
    call = make_call(seed, batch, slots, candidates, max_nodes, conditional, levels)
    g = torch.Generator().manual_seed(seed)
    if ragged:
        call["budgets"] = torch.randint(-1, max_nodes + 2, (batch,), generator=g)
        call["num_drafts"] = torch.randint(-1, slots + 2, (batch,), generator=g)
    if spoiled:
        bad = torch.tensor([math.nan, -math.inf, math.inf, -1.0, -2.0])
        spots = torch.rand(call["scores"].shape, generator=g) < 0.3
        call["scores"][spots] = bad[torch.randint(0, 5, (int(spots.sum()),), generator=g)]
        call["ids"][torch.rand(call["ids"].shape, generator=g) < 0.2] = -1
    got, _ = check(device, call)
    rows = int(got.cu_rows[-1])
    status = torch.zeros(batch, dtype=torch.int32)
    tree_metadata(got.parents, got.cu_rows, max_rows=max_nodes, status=status)
    assert not status.any()
    assert (got.tokens[:rows] >= 0).all() and (got.tokens[rows:] == -1).all()


def test_budgets_are_per_request(device):
    call = make_call(1, batch=4, max_nodes=6) | {"budgets": torch.tensor([3, 0, 1, 9])}
    got, status = check(device, call)
    assert got.cu_rows.tolist() == [0, 3, 3, 4, 10]
    assert status == [0, 0, 0, Status.BOUND_TOO_SMALL]


def test_a_larger_budget_only_appends(device):
    call = make_call(2, batch=1, slots=6, max_nodes=64)
    whole, _ = check(device, call)
    for budget in (1, 2, 17, 63):
        part, _ = check(device, call | {"budgets": torch.tensor([budget])})
        assert torch.equal(part.tokens[:budget], whole.tokens[:budget])


def test_nan_and_infinite_scores_make_no_node(device):
    """FAULTS B26: a row of NaN must not give an invalid tree."""
    call = make_call(batch=3, slots=2)
    call["scores"][0], call["scores"][1, 0] = math.nan, -math.inf
    call["scores"][2, 1, 1:] = math.nan
    got, _ = check(device, call)
    assert got.cu_rows.tolist() == [0, 1, 2, 2 + 7]


@pytest.mark.parametrize("conditional", [False, True])
def test_every_small_lattice_of_scores(device, device_class, conditional):
    """FAULTS B26: two slots of two candidates with every combination of NaN, infinities, ties and a
    lower score, the budgets taking turns; the cells that no walk reads are NaN."""
    levels = [math.nan, -math.inf, math.inf, -1.0, -2.0][: 5 - conditional]
    cells = torch.cartesian_prod(*[torch.tensor(levels)] * (6 if conditional else 4))
    if device_class != "cpu":
        cells = cells[:: len(cells) // 100]  # an emulated call takes long
    n = len(cells)
    scores = torch.full((n, 2, 2, 2), math.nan)
    if conditional:
        scores[:, 0, 0], scores[:, 1] = cells[:, :2], cells[:, 2:].view(n, 2, 2)
    else:
        scores = cells.view(n, 2, 2)
    call = {
        "anchors": torch.arange(n) % 3 - (torch.arange(n) % 50 == 0).long(),
        "ids": torch.tensor([[9, 4], [4, 9]]).expand(n, 2, 2).contiguous(),
        "scores": scores,
        "max_nodes": 8,
        "budgets": torch.arange(n) % 10 - 1 + (torch.arange(n) // 10 % 2),
        "status": torch.zeros(n, dtype=torch.int32),
    }
    call["ids"][5::7] = torch.tensor([[4, 4], [-1, 4]])
    got, _ = check(device, call)
    status = torch.zeros(n, dtype=torch.int32)
    tree_metadata(got.parents, got.cu_rows, max_rows=8, status=status)
    assert not status.any()
    rows = int(got.cu_rows[-1])
    assert not got.path_scores[:rows].isnan().any() and (got.tokens[:rows] >= 0).all()


def test_padded_requests_have_no_rows(device):
    got, _ = check(device, make_call(batch=3) | {"anchors": torch.tensor([3, -1, 4])})
    assert got.cu_rows.tolist() == [0, 8, 8, 16]


def test_a_request_does_not_depend_on_its_neighbours(device):
    call = make_call(4, batch=40, slots=7, candidates=6, max_nodes=24)
    torch.set_num_threads(3)
    together, _ = check(device, call)
    torch.set_num_threads(1)
    for b in (0, 13, 39):
        alone = {k: x[b : b + 1] if isinstance(x, torch.Tensor) else x for k, x in call.items()}
        got, _ = check(device, alone)
        assert torch.equal(got.tokens, together.tokens[24 * b : 24 * (b + 1)])


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("conditional", [False, True])
def test_any_strides_in_place(device, index, conditional):
    call = make_call(5, conditional=conditional)
    call |= {"budgets": torch.tensor([3, 8, 5]), "num_drafts": torch.tensor([4, 2, 1])}
    want = reference.build_tree(**call)
    ints = ("anchors", "ids", "budgets", "num_drafts")
    call |= {k: spread(call[k].to(device, index)) for k in ints}
    call |= {k: spread(call[k].to(device)) for k in ("scores", "status")}
    out = Tree(
        *(
            spread(torch.zeros_like(x).to(device, x.dtype if x.is_floating_point() else index))
            for x in want
        )
    )
    assert build_tree(**call, out=out) is out
    for a, b in zip(out, want, strict=True):
        assert torch.equal(a.cpu().to(b.dtype), b)


def test_addresses_past_32_bits(device):
    buffer = torch.empty(2**31 + 64, dtype=torch.int32, device=device)
    ids = buffer.as_strided((2, 1, 2), (2**31, 2, 1))
    ids.copy_(torch.tensor([[[1, 2]], [[3, 4]]]))
    call = make_call(batch=2, slots=1, candidates=2, max_nodes=3)
    call = {k: x.to(device) if isinstance(x, torch.Tensor) else x for k, x in call.items()}
    assert sorted(build_tree(**call | {"ids": ids}).tokens[4:].tolist()) == [3, 4]


INTS = "must be int32 or int64, got"
# fmt: off
WRONG = [
    ("anchors", torch.zeros(3), TypeError, f"anchors {INTS} float32"),
    ("ids", torch.zeros(3, 4).int(), ValueError, "ids must have shape [B, D, K] = [3, *, *], got [3, 4]"),
    ("scores", torch.zeros(3, 4, 3).half(), TypeError, "scores must be float32, got float16"),
    ("scores", torch.zeros(3, 4, 2), ValueError, "scores must have shape [B, D, K] = [3, 4, 3], got [3, 4, 2]"),
    ("scores", torch.zeros(3, 4, 3, 2), ValueError, "scores must have shape [B, D, K, K] = [3, 4, 3, 3], got [3, 4, 3, 2]"),
    ("max_nodes", 0, ValueError, "max_nodes must be at least 1, got 0"),
    ("budgets", torch.zeros(2).int(), ValueError, "budgets must have shape [B] = [3], got [2]"),
    ("num_drafts", torch.zeros(3), TypeError, f"num_drafts {INTS} float32"),
    ("status", torch.zeros(3), TypeError, "status must be int32, got float32"),
    ("tokens", torch.zeros(23).int(), ValueError, "tokens must have shape [B * max_nodes] = [24], got [23]"),
    ("parents", torch.zeros(24), TypeError, f"parents {INTS} float32"),
    ("path_scores", torch.zeros(24).int(), TypeError, "path_scores must be float32, got int32"),
    ("cu_rows", torch.zeros(3).int(), ValueError, "cu_rows must have shape [B + 1] = [4], got [3]"),
]
# fmt: on


@pytest.mark.parametrize(("name", "value", "error", "text"), WRONG)
def test_names_what_is_wrong(name, value, error, text):
    call = make_call()
    out = reference.build_tree(**call)._asdict()
    (out if name in out else call)[name] = value
    assert_raises_alike(build_tree, OP.out, call, out, error, text, Tree)
    if name not in out:
        assert_raises_alike(build_tree, OP, call, {}, error, text)


def test_opcheck(device):
    call = make_call() | {"budgets": torch.tensor([3, 8, 5])}
    call = {k: x.to(device) if isinstance(x, torch.Tensor) else x for k, x in call.items()}
    args = [call.pop(name) for name in ("anchors", "ids", "scores")]
    torch.library.opcheck(OP.default, args, call)
    out = Tree(*(torch.empty_like(x) for x in OP(*args, **call)))
    torch.library.opcheck(OP.out, args, call | out._asdict())


def test_compiles_whole(device):
    compiled = torch.compile(build_tree, fullgraph=True)
    for batch in (3, 2):
        call = make_call(batch=batch)
        call = {k: x.to(device) if isinstance(x, torch.Tensor) else x for k, x in call.items()}
        for a, b in zip(compiled(**call), build_tree(**call), strict=True):
            assert torch.equal(a, b)
