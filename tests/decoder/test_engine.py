import pytest
import torch
from tiny import Ask, DecoyDrafter, config, model, prompt, run, weights

from dflash_ops.decoder import Draft, Engine, Model, NgramDrafter, Settings
from dflash_ops.decoder.batch import Share, pack

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tiny_model():
    return model(torch.bfloat16)


def text_of(m, text, **settings):
    (trace,), _ = run(m, [Ask(text, Settings(**settings))])
    return trace.tokens


def test_pack():
    shares = [
        Share(2, 5, [10, 11, 12], 0, pages=[7, 8]),
        Share(-1, 0, [9, 9], 2),
        Share(0, 3, [20, 21, 22, 23], 4, [-1, 0, 0, 2], pages=[1, 4]),
    ]
    batch = pack(shares, 4, CPU)
    assert batch.ids.tolist() == [10, 11, 12, 9, 9, 20, 21, 22, 23]
    assert batch.positions.tolist() == [5, 6, 7, -1, -1, 3, 4, 4, 5]
    assert batch.slots.tolist() == [33, 34, 35, -1, -1, 7, 16, 17, 18]
    assert batch.cu_rows.tolist() == [0, 3, 5, 9] and batch.cu_verify.tolist() == [0, 0, 2, 6]
    assert batch.req_rows.tolist() == [2, -1, 0]
    assert batch.verify_rows.tolist() == [3, 4, 5, 6, 7, 8]
    assert batch.verify_parents.tolist() == [-1, 0, -1, 0, 0, 2]
    assert batch.tree["tree_nodes"].tolist() == [0, 0, 4]
    assert batch.tree["mask_bits"][5:, 0].tolist() == [0b1, 0b11, 0b101, 0b1101]
    assert batch.draft_depths == [0, 1, 2]


def test_pack_of_chains_has_no_tree():
    batch = pack([Share(0, 0, [1, 2], 1, pages=[0])], 4, CPU)
    assert batch.tree == {} and batch.verify_parents is None
    assert batch.positions.tolist() == batch.slots.tolist() == [0, 1]
    assert len(pack([], 4, CPU).ids) == 0


def test_counts_of_a_drafter_that_is_always_right(tiny_model):
    text = prompt(9)
    truth = text_of(tiny_model, text, max_new_tokens=41)
    ask = Ask(text, Settings(max_new_tokens=41), DecoyDrafter(truth, depth=4, decoys=0))
    _, engine = run(tiny_model, [ask])
    # One from the prefill, then 1 + 4 a cycle.
    assert engine.stats.cycles == 9 and engine.stats.new_tokens == 41
    assert engine.stats.accepted == engine.stats.proposed == [8, 8, 8, 8]
    report = engine.stats.report()
    assert report["acceptance_per_position"] == [1.0] * 4
    assert report["tokens_per_cycle"] == 41 / 9


def test_counts_of_a_drafter_that_is_always_wrong(tiny_model):
    text = prompt(9)
    truth = text_of(tiny_model, text, max_new_tokens=10)
    ask = Ask(text, Settings(max_new_tokens=10), DecoyDrafter(truth, 2, 0, first_wrong=0))
    _, engine = run(tiny_model, [ask])
    assert engine.stats.accepted == [0, 0] and engine.stats.cycles == 10


def test_a_stop_token_ends_the_text_also_in_the_middle_of_a_path(tiny_model):
    text = prompt(9)
    truth = text_of(tiny_model, text, max_new_tokens=30)
    stop = truth[9 + 12]
    first = truth.index(stop, 9)
    settings = Settings(max_new_tokens=30, stop_ids=(100 if stop != 100 else 99, stop))
    for drafter in (None, DecoyDrafter(truth, depth=5, decoys=1)):
        (trace,), engine = run(tiny_model, [Ask(text, settings, drafter)])
        assert trace.tokens == truth[: first + 1]
        assert engine.stats.new_tokens == first + 1 - 9


def test_the_context_is_the_end(tiny_model):
    (trace,), _ = run(tiny_model, [Ask(prompt(30), Settings(max_new_tokens=99))], num_pages=3)
    assert len(trace.tokens) == 48
    truth = trace.tokens
    ask = Ask(prompt(30), Settings(max_new_tokens=99), DecoyDrafter(truth))
    (trace,), _ = run(tiny_model, [ask], num_pages=3)
    assert trace.tokens == truth


def test_a_request_may_leave(tiny_model):
    texts = [prompt(12, seed=i) for i in range(3)]
    wants = [text_of(tiny_model, text, max_new_tokens=20) for text in texts]
    engine = Engine(tiny_model, num_pages=64, page_size=4, max_requests=2)
    a, b, c = (engine.add(text, Settings(max_new_tokens=20)) for text in texts)
    for _ in range(5):
        engine.step()
    assert c.row == -1 and len(a.new_tokens) == 5
    engine.cancel(a)
    engine.step()
    assert a.row == -1 and c.row != -1 and len(a.new_tokens) == 5
    engine.cancel(c)
    engine.run()
    assert b.tokens == wants[1] and c.tokens == wants[2][: len(c.tokens)]
    assert engine.cache.pool.num_available == 64 and not engine.has_work

    waiting = engine.add(texts[0], Settings())
    engine.cancel(waiting)
    assert engine.step() is None


def test_drafts_are_dropped_before_anybody_is_pushed_out(tiny_model):
    class Eager:
        def propose(self, tokens, limit):
            return Draft([1] * min(limit, 8))

    texts = [prompt(4, seed=i) for i in range(2)]
    wants = [text_of(tiny_model, text, max_new_tokens=12) for text in texts]
    engine = Engine(tiny_model, num_pages=32, page_size=1)  # 2 x 16 tokens: exactly enough
    requests = [engine.add(text, Settings(max_new_tokens=12), Eager()) for text in texts]
    engine.run()
    assert [r.tokens for r in requests] == wants
    assert engine.stats.preemptions == 0
    assert 0 < sum(engine.stats.proposed) < 8 * engine.stats.request_cycles


def test_who_came_last_is_pushed_out_and_comes_back(tiny_model):
    texts = [prompt(8, seed=i) for i in range(3)]
    wants = [text_of(tiny_model, text, max_new_tokens=24) for text in texts]
    engine = Engine(tiny_model, num_pages=40, page_size=1)
    requests = [engine.add(text, Settings(max_new_tokens=24)) for text in texts]
    done = []
    while engine.step():
        assert requests[0].row != -1 or requests[0].finished  # the first never waits
        done += [i for i, r in enumerate(requests) if r.finished and i not in done]
    assert done == [0, 1, 2] and engine.stats.preemptions > 0
    assert [r.tokens for r in requests] == wants


def test_few_rows_a_step():
    """Chunks and drafts take what is left of the rows; nobody is forgotten."""
    c = config()
    small = Model(c, weights(c, torch.bfloat16, "llama", 0), max_rows=3, max_position=200)
    texts = [prompt(5 + i, seed=i) for i in range(4)]
    wants = [text_of(model(torch.bfloat16), text, max_new_tokens=15) for text in texts]
    asks = [
        Ask(text, Settings(max_new_tokens=15), NgramDrafter(4, min_match=1) if i % 2 else None)
        for i, text in enumerate(texts)
    ]
    gots, _ = run(small, asks)
    assert [got.tokens for got in gots] == wants


@pytest.mark.parametrize(
    "text, settings, message",
    [
        ([], {}, "the prompt has no tokens"),
        ([1] * 64, {}, "the prompt has 64 tokens, the context ends at 64"),
        ([1], {"stop_ids": (1,) * 9}, "at most 8 stop tokens"),
    ],
)
def test_requests_that_are_refused(tiny_model, text, settings, message):
    engine = Engine(tiny_model, num_pages=4)
    with pytest.raises(ValueError, match=message):
        engine.add(text, Settings(**settings))
    assert not engine.has_work


@pytest.mark.parametrize(
    "settings",
    [
        {"max_new_tokens": 0},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"seed": 2**63},
    ],
)
def test_settings_that_are_refused(settings):
    (name,) = settings
    with pytest.raises(ValueError, match=f"{name} must be"):
        Settings(**settings)
