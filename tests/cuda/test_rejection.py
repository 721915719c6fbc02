"""verify_tree and verify_chain on CUDA: the bits of the CPU kernels, and what they launch."""

import pytest
import torch
from emulator import ptxrun
from hypothesis import given, settings
from hypothesis import strategies as st
from verify.test_chain_record import LAWS as RECORD_LAWS
from verify.test_chain_record import head_call
from verify.test_verify_chain import random_call as random_chains
from verify.test_verify_tree import random_call as random_trees

from dflash_ops import lm_head_verify, verify_chain, verify_tree

LAWS = [
    {},
    {"temperature": 0.6},
    {"temperature": 0.0},
    {"top_k": 5},
    {"top_p": 0.999},  # with a flat law more than the 64 best of a row
    {"temperature": 1.5, "min_p": 0.01, "top_p": 0.95},
]
SIZES = st.lists(st.sampled_from([0, 1, 2, 4, 7]), min_size=1, max_size=3)
OPTIONS = {"logit_scale": 1.25, "softcap": 6.0}


def state(law, batch):
    dtype = {"top_k": torch.int64}
    return {k: torch.full((batch,), v, dtype=dtype.get(k, torch.float32)) for k, v in law.items()}


def assert_same_bits(verify, call):
    """All nine outputs, and the status."""
    batch = len(call["cu_verify"]) - 1
    status = torch.zeros(2, batch, dtype=torch.int32)
    want = verify(**call, probe=True, status=status[0])
    with ptxrun.emulated(missing=pytest.fail):
        got = verify(**call, probe=True, status=status[1])
    for name, a, b in zip(want._fields, got, want, strict=True):
        assert torch.equal(a, b), name
    assert torch.equal(*status)
    with ptxrun.emulated(missing=pytest.fail):
        plain = verify(**call)
    assert all(torch.equal(a, b) for a, b in zip(plain[:5], want[:5], strict=True))


@settings(max_examples=25)
@given(
    sizes=SIZES,
    vocab=st.sampled_from([3, 64, 65, 300]),
    kind=st.sampled_from(["sparse", "dense"]),
    rule=st.sampled_from(["rrs", "traversal", "target_only", "typical"]),
    replacement=st.booleans(),
    law=st.sampled_from(LAWS),
    options=st.sampled_from([{}, OPTIONS]),
    seed=st.integers(0, 2**31 - 1),
)
def test_trees(sizes, vocab, kind, rule, replacement, law, options, seed):
    laws = state(law, len(sizes)) | options
    assert_same_bits(verify_tree, random_trees(seed, sizes, vocab, kind, rule, replacement, laws))


@settings(max_examples=20)
@given(
    sizes=SIZES,
    vocab=st.sampled_from([3, 64, 65, 300]),
    kind=st.sampled_from(["none", "sparse", "dense"]),
    rule=st.sampled_from(["token", "block"]),
    law=st.sampled_from(LAWS),
    seed=st.integers(0, 2**31 - 1),
)
def test_chains(sizes, vocab, kind, rule, law, seed):
    call = random_chains(seed, sizes, vocab, kind, rule, state(law, len(sizes)))
    if kind != "none":
        call["draft_kind"] = torch.arange(len(sizes)) % 2
    assert_same_bits(verify_chain, call)


@settings(max_examples=20)
@given(
    sizes=SIZES,
    vocab=st.sampled_from([3, 64, 65, 300]),
    num_q=st.sampled_from([0, 1, 6]),
    rule=st.sampled_from(["token", "block"]),
    first=st.integers(0, len(RECORD_LAWS) - 1),
    is_whole=st.booleans(),
    seed=st.integers(0, 2**31 - 1),
)
def test_chains_from_a_record(sizes, vocab, num_q, rule, first, is_whole, seed):
    """A record that was not asked about every draft tells too little."""
    laws = RECORD_LAWS[first:] + RECORD_LAWS[:first]
    h, weight, _, ours, chain, ids = head_call(seed, sizes, vocab, num_q, laws)
    ids = ids if is_whole else ids[:, :1]
    record = lm_head_verify(h, weight, ids, **ours)
    call = ours | chain | {"record_ids": ids, "record": record, "rule": rule}
    assert_same_bits(verify_chain, call)


@pytest.mark.parametrize("rule", ["rrs", "traversal", "target_only", "typical"])
@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_a_vocabulary_of_several_tiles(rule, kind):
    assert_same_bits(verify_tree, random_trees(3, [4], 3 * 8192 + 5, kind, rule))


def test_requests_that_share_rows():
    """cu_verify that falls and rises again: the first request has the rows."""
    call = random_trees(1, [4, 2], 9)
    call |= {"cu_verify": torch.tensor([0, 4, 2, 6]), "seeds": torch.arange(3)}
    call["temperature"] = torch.ones(3)
    assert_same_bits(verify_tree, call)


def launches(verify, call):
    ptxrun.counters(reset=True)
    with ptxrun.emulated(missing=pytest.fail):
        verify(**call)
    return {name: total.launches for name, total in ptxrun.totals().items()}


def test_launches_do_not_depend_on_data():
    """One pass of statistics and one for the last token, whatever is accepted."""
    calls = [random_trees(seed, [4, 6], 70, "sparse") for seed in (0, 1)]
    first, second = (launches(verify_tree, call) for call in calls)
    assert first == second and sum(first.values()) == 5 and set(first.values()) == {1}
