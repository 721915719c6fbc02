import pytest
import torch
from calls import assert_raises_alike, spread
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_ops import Status, commit_state, reference

OP = torch.ops.dflash.commit_state


def make_call(
    seed=0, batch=3, slots=4, rows=9, width=4, shapes=((2, 3), (5,)), dtype=torch.bfloat16
):
    g = torch.Generator().manual_seed(seed)

    def random_bytes(*shape):
        size = torch.empty(0, dtype=dtype).element_size()
        raw = torch.randint(0, 256, (*shape[:-1], shape[-1] * size), dtype=torch.uint8, generator=g)
        return raw.view(dtype)

    accepted = torch.randint(0, rows, (batch, width), generator=g).sort(1).values
    return {
        "states": [random_bytes(slots, *shape) for shape in shapes],
        "row_states": [random_bytes(rows, *shape) for shape in shapes],
        "accepted_rows": accepted,
        "num_kept": torch.randint(0, width + 1, (batch,), generator=g),
        "state_slots": torch.randperm(slots, generator=g)[:batch],
        "status": torch.zeros(batch, dtype=torch.int32),
    }


def changed(call, f):
    return {k: [f(x) for x in v] if isinstance(v, list) else f(v) for k, v in call.items()}


def bits(x):
    return x.contiguous().view(torch.uint8)


def check(device, call):
    got, want = changed(call, lambda x: x.clone().to(device)), changed(call, torch.clone)
    commit_state(**got)
    reference.commit_state(**want)
    for a, b in zip(got["states"], want["states"], strict=True):
        assert torch.equal(bits(a.cpu()), bits(b))
    assert torch.equal(got["status"].cpu(), want["status"]), (got["status"], want["status"])
    return want


def test_takes_the_state_after_the_last_kept_row(device):
    call = {
        "states": [torch.zeros(3, 1)],
        "row_states": [torch.arange(6.0)[:, None]],
        "accepted_rows": torch.tensor([[0, 2, -1], [3, -1, -1], [4, 5, -1]]),
        "status": torch.zeros(3, dtype=torch.int32),
    }
    assert check(device, call)["states"][0].flatten().tolist() == [2, 3, 5]
    kept = call | {"num_kept": torch.tensor([1, 0, 1])}
    assert check(device, kept)["states"][0].flatten().tolist() == [0, 0, 4]
    slots = call | {"state_slots": torch.tensor([2, 0, 1])}
    assert check(device, slots)["states"][0].flatten().tolist() == [3, 5, 2]


@settings(max_examples=60)
@given(
    batch=st.sampled_from([0, 1, 4]),
    width=st.sampled_from([0, 1, 5]),
    dtype=st.sampled_from([torch.bfloat16, torch.float32, torch.int8]),
    has=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    seed=st.integers(0, 2**31 - 1),
)
def test_equals_reference(device, batch, width, dtype, has, seed):
    call = make_call(seed, batch, 6, 9, width, dtype=dtype)
    for name, wanted in zip(("num_kept", "state_slots"), has, strict=False):
        if not wanted:
            del call[name]
    if has[2]:
        call["req_rows"] = torch.randperm(batch, generator=torch.Generator().manual_seed(seed)) - 1
    check(device, call)


def test_bad_data_changes_nothing(device):
    call = make_call(batch=8, slots=8)
    call["accepted_rows"][0, 3], call["accepted_rows"][1, 3] = 9, -1
    call["num_kept"] = torch.tensor([4, 4, 5, -1, 4, 4, 4, 0])
    call["state_slots"] = torch.tensor([0, 1, 2, 3, 8, -1, 6, 7])
    call["req_rows"] = torch.tensor([0, 1, 2, 3, 4, 5, 8, 7])
    got = check(device, call)
    assert got["status"].tolist() == [Status.OUT_OF_RANGE] * 7 + [0]
    assert all(
        torch.equal(bits(a), bits(b)) for a, b in zip(got["states"], call["states"], strict=True)
    )


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_any_strides_in_place(device, index):
    call = make_call(1)
    want = check(device, call)
    got = changed(call, lambda x: x.clone().to(device))
    for name in ("accepted_rows", "num_kept", "state_slots"):
        got[name] = spread(got[name].to(index))
    got["status"] = spread(got["status"])
    for name in ("states", "row_states"):  # rows apart, each in one piece
        got[name] = [torch.stack([x, x], dim=1)[:, 0] for x in got[name]]
    commit_state(**got)
    for a, b in zip(got["states"], want["states"], strict=True):
        assert torch.equal(bits(a.cpu()), bits(b))


def test_addresses_past_32_bits(device):
    buffer = torch.empty(2**32 + 8, dtype=torch.int8, device=device)
    states = buffer.as_strided((3, 1), (2**31, 1))
    rows = torch.tensor([[5], [6], [7]], dtype=torch.int8, device=device)
    commit_state([states], [rows], torch.tensor([[0], [1], [2]], device=device))
    assert states.flatten().tolist() == [5, 6, 7]


# fmt: off
WRONG = [
    ({"accepted_rows": torch.zeros(3).int()}, ValueError, "accepted_rows must have shape [B, P] = [*, *], got [3]"),
    ({"num_kept": torch.zeros(2).int()}, ValueError, "num_kept must have shape [B] = [3], got [2]"),
    ({"state_slots": torch.zeros(3)}, TypeError, "state_slots must be int32 or int64, got float32"),
    ({"states": []}, ValueError, "len(states) must be at least 1, got 0"),
    ({"row_states": []}, ValueError, "len(row_states) must be 2, got 0"),
    ({"row_states": [torch.zeros(9, 2, 3), torch.zeros(9, 5)]}, TypeError, "row_states[0] must be bfloat16, got float32"),
    ({"states": [torch.zeros(()).bfloat16()] * 2}, ValueError, "states[0] must have a first dimension, got shape []"),
    ({"states": [torch.zeros(4, 3, 2).bfloat16().mT, torch.zeros(4, 5).bfloat16()]}, ValueError, "states[0] must have contiguous rows, got strides [6, 1, 2]"),
    ({"states": [torch.zeros(4, 2, 4).bfloat16(), torch.zeros(4, 5).bfloat16()]}, ValueError, "row_states[0] must have rows of shape [2, 4], got [2, 3]"),
    ({"states": [torch.zeros(4, 2, 3).bfloat16(), torch.zeros(3, 5).bfloat16()]}, ValueError, "states[1] must have 4 rows, got 3"),
    ({"row_states": [torch.zeros(9, 2, 3).bfloat16(), torch.zeros(8, 5).bfloat16()]}, ValueError, "row_states[1] must have 9 rows, got 8"),
    ({"req_rows": torch.zeros(4).int()}, ValueError, "req_rows must have shape [B] = [3], got [4]"),
    ({"status": torch.zeros(3)}, TypeError, "status must be int32, got float32"),
]
# fmt: on


@pytest.mark.parametrize(("wrong", "error", "text"), WRONG)
def test_names_what_is_wrong(wrong, error, text):
    assert_raises_alike(commit_state, OP, make_call() | wrong, {}, error, text)


def test_opcheck_and_compile(device):
    call = changed(make_call(dtype=torch.int8), lambda x: x.to(device))
    args = [call[name] for name in ("states", "row_states", "accepted_rows")]
    torch.library.opcheck(OP, args, dict(list(call.items())[3:]))
    got, want = (changed(call, torch.clone) for _ in range(2))
    torch.compile(commit_state, fullgraph=True)(**got)
    commit_state(**want)
    assert all(torch.equal(a, b) for a, b in zip(got["states"], want["states"], strict=True))
