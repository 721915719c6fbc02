from itertools import product

import pytest
import torch
from calls import assert_raises_alike, spread
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_ops import Status, commit, reference

OP = torch.ops.dflash.commit
STATE = ("tokens", "lengths", "ctx_lens", "finished")


def make_call(lengths, emitted, rows, verify=None, *, capacity=8, num_emitted=None, **options):
    """State rows hold 1, 2, 3.. as their tokens; -7 is what nobody has written."""
    lengths = torch.tensor(lengths, dtype=torch.int64)
    slot = torch.arange(capacity)
    emitted = torch.tensor(emitted, dtype=torch.int64).reshape(len(rows), -1 if rows else 0)
    state = torch.zeros(len(lengths), dtype=torch.bool)
    options = {k: v if v is None else torch.as_tensor(v) for k, v in options.items()}
    return {
        "tokens": torch.where(slot < lengths[:, None], slot + 1, -7),
        "lengths": lengths,
        "ctx_lens": lengths - 1,
        "finished": state if "finished" not in options else options.pop("finished"),
        "emitted": emitted,
        "num_emitted": (emitted >= 0).sum(1) if num_emitted is None else torch.tensor(num_emitted),
        "cu_rows": torch.tensor([0, *rows]).cumsum(0),
        "cu_verify": None if verify is None else torch.tensor([0, *verify]).cumsum(0),
        "status": torch.zeros(len(rows), dtype=torch.int32),
        **options,
    }


def check(device, call):
    """Runs the op, finds it equal to the reference, and returns num_kept and the changed call."""
    got = {k: None if x is None else x.clone().to(device) for k, x in call.items()}
    num_kept = commit(**got).cpu()
    want = {k: None if x is None else x.clone() for k, x in call.items()}
    assert torch.equal(num_kept, reference.commit(**want)), (call, num_kept)
    got = {k: None if x is None else x.cpu() for k, x in got.items()}
    for name, x in got.items():
        assert x is None or torch.equal(x, want[name]), f"{name}: got {x}, expected {want[name]}"
    return num_kept.tolist(), got


def test_appends_and_moves_the_anchor_on(device):
    kept, call = check(device, make_call([3, 4], [[50, 51, -1], [60, -1, -1]], [3, 3]))
    assert kept == [2, 1]
    assert call["tokens"].tolist() == [[1, 2, 3, 50, 51, -7, -7, -7], [1, 2, 3, 4, 60, -7, -7, -7]]
    assert call["lengths"].tolist() == [5, 5] and call["ctx_lens"].tolist() == [4, 4]
    assert not call["finished"].any()


def test_prefill_chunks(device):
    """A prompt of 5 in chunks of 3 and 2: keys appear, then keys and the first token."""
    call = make_call([5], [[-1]], [3], [0])
    call["ctx_lens"][:] = 0
    kept, call = check(device, call)
    assert kept == [0] and call["ctx_lens"].item() == 3 and call["lengths"].item() == 5
    call |= {"emitted": torch.tensor([[9]]), "num_emitted": torch.tensor([1])}
    call |= {"cu_rows": torch.tensor([0, 2]), "cu_verify": torch.tensor([0, 1])}
    kept, call = check(device, call)
    assert kept == [1] and call["ctx_lens"].item() == 5 and call["lengths"].item() == 6
    assert call["tokens"][0, :6].tolist() == [1, 2, 3, 4, 5, 9]


@pytest.mark.parametrize(("min_len", "want"), [(0, 1), (4, 1), (5, 3), (6, 3), (7, 4)])
def test_stops_at_the_first_stop_token_that_counts(device, min_len, want):
    call = make_call([3], [[70, 50, 71, 51]], [4], stop_ids=[[71, -1, 70]], min_lens=[min_len])
    kept, call = check(device, call)
    assert kept == [want] and call["finished"].item() == (want < 4)
    if call["finished"]:  # and stays so
        again, call = check(device, call)
        assert again == [0] and call["lengths"].item() == 3 + want


@pytest.mark.parametrize("max_len", range(2, 10))
def test_ends_at_the_maximum_length_or_the_end_of_the_buffer(device, max_len):
    kept, call = check(device, make_call([3], [[50, 51, 52, 53, 54, 55]], [6], max_lens=[max_len]))
    assert kept == [max(0, min(max_len, 8) - 3)] and call["finished"].item()
    assert call["status"].item() == (Status.BOUND_TOO_SMALL if max_len > 8 else 0)
    assert (call["tokens"] == -7).sum() == 8 - max(3, min(max_len, 8))


def test_a_stop_token_at_the_end_of_the_buffer_is_no_fault(device):
    kept, call = check(device, make_call([3], [[50, 70]], [2], capacity=5, stop_ids=[[70]]))
    assert kept == [2] and call["finished"].item() and call["status"].item() == 0


@pytest.mark.parametrize("count", [31, 32, 33, 64, 65, 70])
def test_long_emissions(device, count):
    """Both sides of a warp's 32 tokens; then a stop token far behind."""
    ids = torch.arange(100, 170)[None]
    call = make_call([1], ids.tolist(), [70], capacity=80, num_emitted=[count], stop_ids=[[164]])
    kept, _ = check(device, call)
    assert kept == [min(count, 65)]


def test_every_short_request(device):
    """Each emission over {stop, not, negative}, with each length, minimum and maximum."""
    emitted = list(product((70, 5, -1), repeat=3))
    cases = list(product(emitted, (1, 2, 4), (0, 2, 3), (1, 3, 4, 9), (0, 2, 3)))
    ids, lengths, mins, maxs, counts = zip(*cases, strict=True)
    call = make_call(
        lengths, ids, [3] * len(cases), capacity=4, num_emitted=counts, stop_ids=[[70]] * len(cases)
    )
    check(device, call | {"min_lens": torch.tensor(mins), "max_lens": torch.tensor(maxs)})


@settings(max_examples=60)
@given(
    batch=st.sampled_from([0, 1, 5, 1500]),
    spare=st.integers(0, 3),
    wide=st.integers(0, 5),
    has=st.tuples(*[st.booleans()] * 5),
    seed=st.integers(0, 2**31 - 1),
)
def test_equals_reference(device, batch, spare, wide, has, seed):
    g = torch.Generator().manual_seed(seed)

    def ints(low, high, *shape):
        return torch.randint(low, high, shape, generator=g)

    rows = batch + spare
    call = make_call(ints(0, 9, rows).tolist(), [-1] * batch, [1] * batch)
    call["emitted"], call["num_emitted"] = ints(0, 5, batch, wide), ints(0, wide + 1, batch)
    call["finished"] = ints(0, 4, rows) == 0
    call["cu_rows"] = torch.cat([ints(0, 2, 1), ints(3, 9, batch)]).cumsum(0)
    options = {
        "cu_verify": torch.cat([ints(0, 2, 1), ints(0, 4, batch)]).cumsum(0),
        "req_rows": torch.cat([torch.randperm(rows, generator=g), ints(-1, 0, batch)])[spare:][
            :batch
        ],
        "stop_ids": ints(-1, 5, rows, 2),
        "min_lens": ints(0, 9, rows),
        "max_lens": ints(0, 12, rows),
    }
    check(
        device, call | {k: x for (k, x), wanted in zip(options.items(), has, strict=True) if wanted}
    )


def test_bad_data_changes_nothing_and_no_neighbour(device):
    # Good, padded, four bad state rows or ranges, a bad count, a bad length, good.
    call = make_call([3, 3, 3, 3, 9, 3], [[50]] * 8, [1] * 8, capacity=5)
    call["req_rows"] = torch.tensor([0, -1, 6, -2, 1, 2, 4, 5])
    call["cu_rows"] = torch.tensor([0, 1, 2, 3, 4, 5, 4, 5, 6])
    call["num_emitted"][4] = 2
    kept, call = check(device, call)
    assert kept == [1, 0, 0, 0, 0, 0, 0, 1]
    bad = Status.OUT_OF_RANGE
    assert call["status"].tolist() == [0, 0, bad, bad, bad, bad, bad, 0]
    assert call["lengths"].tolist() == [4, 3, 3, 3, 9, 4]


def test_more_verify_rows_than_rows_is_out_of_range(device):
    kept, call = check(device, make_call([3], [[50, 51]], [1], [2]))
    assert kept == [0] and call["status"].item() == Status.OUT_OF_RANGE


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_any_strides_in_place(device, index):
    options = {"stop_ids": [[70], [50]], "min_lens": [0, 9], "max_lens": [7, 5], "req_rows": [1, 0]}
    call = make_call([3, 4], [[50, 51, 52], [60, 70, 61]], [3, 3], [3, 2], **options)
    want = {k: x.clone() for k, x in call.items()}
    kept = reference.commit(**want)
    ints = {
        k: x.to(torch.int32 if k == "status" else index) for k, x in call.items() if k != "finished"
    }
    got = {k: spread(x.to(device)) for k, x in ints.items()}
    got["finished"] = spread(call["finished"].to(device), fill=True)
    out = spread(torch.zeros(2, dtype=index, device=device))
    assert commit(**got, out=out) is out
    assert torch.equal(out.cpu().long(), kept)
    for name, x in got.items():
        assert torch.equal(x.cpu().long(), want[name].long()), name


def test_addresses_past_32_bits(device):
    buffer = torch.empty(2**33, dtype=torch.int8, device=device).view(torch.int32)
    call = make_call([3, 3], [[50], [60]], [1, 1])
    tokens = buffer.as_strided((2, 8), (2**31 - 16, 1))
    got = {k: None if x is None else x.to(device) for k, x in call.items()} | {"tokens": tokens}
    commit(**got)
    assert tokens[:, 3].tolist() == [50, 60]


INTS = "must be int32 or int64, got"
# fmt: off
WRONG = [
    ("tokens", torch.zeros(2, 8), TypeError, f"tokens {INTS} float32"),
    ("lengths", torch.zeros(3).int(), ValueError, "lengths must have shape [R] = [2], got [3]"),
    ("ctx_lens", torch.zeros(2), TypeError, f"ctx_lens {INTS} float32"),
    ("finished", torch.zeros(2).int(), TypeError, "finished must be bool, got int32"),
    ("emitted", torch.zeros(2).int(), ValueError, "emitted must have shape [B, E] = [*, *], got [2]"),
    ("emitted", torch.zeros(()).int(), ValueError, "emitted must have shape [B, E] = [*, *], got []"),
    ("num_emitted", torch.zeros(1).int(), ValueError, "num_emitted must have shape [B] = [2], got [1]"),
    ("cu_rows", torch.zeros(2).int(), ValueError, "cu_rows must have shape [B + 1] = [3], got [2]"),
    ("cu_verify", torch.zeros(3), TypeError, f"cu_verify {INTS} float32"),
    ("req_rows", torch.zeros(3).int(), ValueError, "req_rows must have shape [B] = [2], got [3]"),
    ("stop_ids", torch.zeros(1, 4).int(), ValueError, "stop_ids must have shape [R, S] = [2, *], got [1, 4]"),
    ("min_lens", torch.zeros(3).int(), ValueError, "min_lens must have shape [R] = [2], got [3]"),
    ("max_lens", torch.zeros(2), TypeError, f"max_lens {INTS} float32"),
    ("status", torch.zeros(2).long(), TypeError, "status must be int32, got int64"),
    ("num_kept", torch.zeros(2), TypeError, f"num_kept {INTS} float32"),
]
# fmt: on


@pytest.mark.parametrize(("name", "value", "error", "text"), WRONG)
def test_names_what_is_wrong(name, value, error, text):
    call = make_call([3, 4], [[50], [60]], [1, 1])
    out = {"num_kept": torch.zeros(2, dtype=torch.int64)}
    (out if name in out else call)[name] = value
    assert_raises_alike(commit, OP.out, call, out, error, text)
    if name not in out:
        assert_raises_alike(commit, OP, call, {}, error, text)


def test_opcheck(device):
    call = make_call([3, 4], [[50, 70], [60, -1]], [2, 2], [2, 1], stop_ids=[[70], [0]])
    call = {k: x.to(device) for k, x in call.items()}
    names = (*STATE, "emitted", "num_emitted", "cu_rows", "cu_verify")
    args = [call.pop(name) for name in names]
    torch.library.opcheck(OP.default, args, call)
    out = torch.zeros(2, dtype=torch.int64, device=device)
    torch.library.opcheck(OP.out, args, call | {"num_kept": out})


def test_compiles_whole(device):
    compiled = torch.compile(commit, fullgraph=True)
    for rows in ([3, 3], [1, 2]):
        call = make_call([3, 4], [[50, 51], [60, -1]], rows)
        got, want = (
            {k: None if x is None else x.to(device, copy=True) for k, x in call.items()}
            for _ in range(2)
        )
        assert torch.equal(compiled(**got), commit(**want))
        assert all(torch.equal(got[name], want[name]) for name in STATE)
