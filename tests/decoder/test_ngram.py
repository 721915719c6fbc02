from hypothesis import given
from hypothesis import strategies as st

from dflash_ops.decoder.ngram import NgramDrafter


def paths(draft):
    """Every node of a draft as the tokens on its path."""
    parents = draft.parents or list(range(len(draft.tokens)))
    rows = [[]]
    for token, parent in zip(draft.tokens, parents, strict=True):
        rows.append([*rows[parent], token])
    return rows[1:]


def test_continues_the_latest_of_the_longest_matches():
    tokens = [1, 2, 3, 7, 7, 2, 3, 8, 8, 1, 2, 3]
    assert NgramDrafter(3, max_match=3).propose(tokens, 9).tokens == [7, 7, 2]
    assert NgramDrafter(3, max_match=2).propose(tokens, 9).tokens == [8, 8, 1]


def test_no_match_no_draft():
    assert NgramDrafter().propose([1, 2, 3], 8).tokens == []
    assert NgramDrafter().propose([1], 8).tokens == []
    assert NgramDrafter().propose([1, 2, 1, 2], 0).tokens == []


def test_repetition_goes_on():
    assert NgramDrafter(5).propose([9, 1, 2, 3, 1, 2, 3, 1], 8).tokens == [2, 3, 1, 2, 3]
    assert NgramDrafter(3).propose([4, 4, 4], 8).tokens == [4, 4, 4]


def test_tree_merges_continuations():
    tokens = [1, 2, 3, 4, 9, 1, 2, 3, 5, 9, 1, 2]
    draft = NgramDrafter(3, 5).propose(tokens, 9)
    assert draft.tokens == [3, 5, 9, 4, 9] and draft.parents == [0, 1, 2, 1, 4]
    assert NgramDrafter(3, 2).propose(tokens, 9).tokens == [3, 5]
    assert NgramDrafter(3, 5).propose(tokens, 4).tokens == [3, 5, 9, 4]


tokens_strategy = st.lists(st.integers(0, 2), min_size=1, max_size=40)


@given(
    tokens=tokens_strategy,
    draft_len=st.integers(1, 6),
    tree_nodes=st.integers(0, 9),
    limit=st.integers(0, 9),
    step=st.integers(1, 5),
)
def test_drafts_follow_what_stands_before(tokens, draft_len, tree_nodes, limit, step):
    grown, whole = (NgramDrafter(draft_len, tree_nodes, min_match=1) for _ in range(2))
    for size in range(1, len(tokens), step):
        grown.propose(tokens[:size], limit)
    draft = grown.propose(tokens, limit)
    assert draft == whole.propose(tokens, limit)  # the index does not depend on its steps

    assert len(draft.tokens) <= min(limit, tree_nodes or draft_len)
    assert (draft.parents is not None) == (tree_nodes > 0)
    nodes = [tuple(path) for path in paths(draft)]
    assert len(set(nodes)) == len(nodes)  # no twins among siblings
    for path in nodes:
        assert len(path) <= draft_len
        if tree_nodes and len(path) > 1:
            assert path[:-1] in nodes[: nodes.index(path)]
    # Wherever the last token stood before with a successor, there is a draft.
    assert bool(draft.tokens) == (limit > 0 and tokens[-1] in tokens[:-1])
    for path in nodes:  # its first token really followed the last one somewhere
        assert any(tokens[i : i + 2] == [tokens[-1], path[0]] for i in range(len(tokens) - 1))
