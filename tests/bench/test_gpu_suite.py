"""bench/gpu_suite.py: every part of it, at small shapes and without a GPU."""

import json
import sys
import time

import bench_lm_head
import gpu_suite
import pytest
import torch
from case import Case
from conftest import HAS_PTX
from suite import checks, invariance, report, shapes, timing

from dflash_ops import verify_gemm

CPU = torch.device("cpu")
NEEDS_PTXRUN = pytest.mark.skipif(not HAS_PTX, reason="ptxrun is not built")


PEERS = {"torch linear", "sdpa, dense mask", "eager linear and topk", "eager dense rejection"}


def run(tmp_path, *arguments):
    file = tmp_path / "suite.json"
    code = gpu_suite.main(["--device", "cpu", "--quick", "--json", str(file), *arguments])
    return code, json.loads(file.read_text())


def test_every_op_is_timed(tmp_path, capsys):
    """Small shapes; each against its peers, whose results are compared."""
    code, found = run(tmp_path, "--part", "times")
    assert code == 0
    errors = [row for row in found["times"] if "error" in row]
    assert errors == []
    ops = {
        name.split("::")[1]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("dflash::") and "." not in name
    }
    assert ops - {row["op"] for row in found["times"]} == {"workspace_bytes"}  # a number
    assert {row["peer"] for row in found["times"]} >= PEERS
    for model in shapes.MODELS:
        own = {row["op"] for row in found["times"] if row["model"] == model.name}
        assert {"verify_gemm", "lm_head_sample", "tree_attention"} <= own
    assert min(found["rates"].values()) > 0
    assert capsys.readouterr().out.startswith("| model | op |")


def test_tests_run_in_a_process_of_their_own(tmp_path):
    code, found = run(tmp_path, "--part", "tests")
    part = found["tests"]["quick"]
    assert code == part["code"] == 0 and part["in_time"]
    assert part["passed"] > 10 and part["failed"] == []
    assert part["passed"] + part["skipped"] == part["tests"]


@NEEDS_PTXRUN
def test_columns_of_matrix_instructions(tmp_path):
    _, found = run(tmp_path, "--part", "columns")
    rows = found["columns"]["rows"]
    assert {8, 16, 32, 64, 128} <= {row["n"] for row in rows if row["kind"].startswith("m64")}
    assert sum(row["kind"].startswith("m16") for row in rows) > 40
    assert all(row["columns_equal"] and row.get("same_as_other_n", True) for row in rows)
    assert found["wrong"] == []


def test_rows_have_their_bits(tmp_path, monkeypatch):
    code, found = run(tmp_path, "--part", "rows")
    assert code == 0 and {row["op"] for row in found["invariance"]} == {
        *("verify_gemm", "lm_head_topk", "tree_attention"),
    }
    assert all(row["equal"] for row in found["invariance"]) and found["wrong"] == []

    def other(x, *args, **options):  # a row that knows how many it has beside it
        return verify_gemm(x, *args, **options) + len(x) % 64

    monkeypatch.setattr(invariance, "verify_gemm", other)
    monkeypatch.setattr(invariance, "tree_attention", None)
    code, found = run(tmp_path, "--part", "rows")
    assert code == 1
    assert any("attention, Qwen3-8B, TypeError" in line for line in found["wrong"])
    assert any("other bits for 8 rows from 56" in line for line in found["wrong"])


@NEEDS_PTXRUN
@pytest.mark.parametrize("name", ["mma/m16n8k16.f32.bf16.bf16.f32/normal", "wgmma/layout/n64"])
def test_a_column_of_its_own_is_found_in_its_place(monkeypatch, name):
    monkeypatch.syspath_prepend(str(checks.ROOT / "tools/ptxrun"))
    from corpus.cases import all_cases
    from corpus.emulated import Emulated
    from suite import columns

    case, column = all_cases()[name], 5
    if name.startswith("mma"):
        case = columns.mma_with_equal_columns(case, ("bf16", "bf16"), "normal")
        case.inputs[1][:, :, 4 * column] ^= 0x00400040
        seen = columns.mma_columns(Emulated().run(case), "f32")
    else:
        case = columns.wgmma_with_equal_columns(case, "bf16", "normal")
        case.inputs[1].reshape(-1, columns.ROW_WORDS)[column] ^= 0x00400040
        seen = columns.wgmma_columns(Emulated().run(case), "f32")
    differs = (seen != seen[..., :1]).reshape(-1, seen.shape[-1]).any(axis=0)
    assert differs.nonzero()[0].tolist() == [column] and not columns.are_equal(seen)


@NEEDS_PTXRUN
def test_the_recorder(tmp_path):
    file = tmp_path / "record.npz"
    _, found = run(tmp_path, "--part", "record", "--record", str(file))
    assert found["record"]["code"] == 0 and file.exists()


def test_the_sanitizer_s_verdict(tmp_path, monkeypatch):
    program = tmp_path / "compute-sanitizer"
    program.write_text("#!/bin/sh\necho $@\nexit 9\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    _, found = run(tmp_path, "--part", "sanitizer")
    assert [part["tool"] for part in found["sanitizer"]] == list(checks.TOOLS)
    assert "--tool memcheck" in found["sanitizer"][0]["output"][0]
    assert found["wrong"] == [f"compute-sanitizer {t}: ended with 9" for t in checks.TOOLS]
    monkeypatch.setenv("PATH", "")
    assert checks.sanitized("cpu", 1) == []


def test_a_process_that_takes_too_long_is_ended():
    begin = time.monotonic()
    done = checks.Finished([sys.executable, "-c", "import time; time.sleep(60)"], 0.5)
    assert not done.in_time and done.code != 0 and time.monotonic() - begin < 30


def test_failed_tests_are_named(tmp_path):
    file = tmp_path / "tests.xml"
    file.write_text(
        '<testsuites><testsuite><testcase classname="a" name="x"/>'
        '<testcase classname="a" name="y"><failure/></testcase>'
        '<testcase classname="b" name="z"><skipped/></testcase></testsuite></testsuites>'
    )
    counts = checks.summary(file)
    assert counts == {"tests": 3, "passed": 1, "skipped": 1, "failed": ["a::y"]}
    part = counts | {"in_time": True, "code": 1}
    empty = {"columns": {}, "record": {}, "sanitizer": [], "times": [], "invariance": []}
    assert report.verdict({"tests": {"ops": part}} | empty) == ["ops: failed: a::y"]


def test_no_time_is_left(tmp_path):
    _, found = run(tmp_path, "--part", "times", "--minutes", "0")
    assert {row["error"] for row in found["times"]} == {"no time was left"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_one_line_where_it_cannot_run(capsys):
    for arguments, text in ([], "no GPU found"), (["--device", "cpu"], "--record FILE is needed"):
        with pytest.raises(SystemExit) as exit:
            gpu_suite.main(arguments)
        error = capsys.readouterr().err
        assert exit.value.code == 2
        assert error.startswith(f"gpu_suite: {text}") and error.count("\n") == 1


def case_of(**options):
    x = torch.ones(4)
    return Case(op="op", name="name", ours=lambda: x, bytes_moved=16, **options)


def test_a_peer_that_fails_is_a_row_and_a_wrong_result_is_an_error():
    timer = timing.Timer(CPU, 1)

    def broken():
        raise TypeError("other arguments")

    peers = {"broken": broken, "right": lambda: torch.ones(4)}
    rows = list(timing.measure(case_of(peers=peers), timer, 10.0, rounds=2))
    assert [row["peer"] for row in rows] == ["broken", "right"]
    assert rows[0]["error"] == "TypeError: other arguments"
    assert rows[1]["ours_p5_ms"] <= rows[1]["ours_ms"] <= rows[1]["ours_p95_ms"]
    (alone,) = timing.measure(case_of(peers={}), timer, 10.0, rounds=1)
    assert alone["ratio"] is None
    with pytest.raises(AssertionError):
        list(timing.measure(case_of(peers={"wrong": lambda: torch.zeros(4)}), timer, 10.0))


def test_spread():
    assert timing.spread([0.002, 0.001, 0.003]) == {"median": 2.0, "p5": 1.0, "p95": 3.0}


@pytest.mark.parametrize(
    ("op", "name", "size", "aim"),
    [
        ("verify_gemm", "bf16 24576x4096, M=32", 2e8, 0.85),
        ("verify_gemm", "bf16 4096x4096, M=1", 3e7, 0.70),
        ("verify_gemm", "bf16 4096x4096, M=64", 3e7, None),
        ("verify_gemm", "bf16 64x64, M=1", 8e3, None),
        ("verify_gemm_w4", "int4 4096x4096, float rows, M=1", 2e7, 0.75),
        ("lm_head_topk", "k=16, rows=8, V=151936, H=4096", 1e9, 0.90),
        ("tree_attention", "chain, rows=8, keys=32768, Hkv=8, GQA=4, D=128", 1e8, 0.80),
        ("commit", "B=64", 1e3, None),
    ],
)
def test_aims(op, name, size, aim):
    row = {"op": op, "case": name, "bytes": size, "peer": "torch", "ratio": 1.0}
    assert report.aim(row) == aim
    short = row | {"fraction_of_read_bandwidth": 0.5}
    assert len(report.misses(short)) == (aim is not None)
    assert "slower than the peer" in report.misses(short | {"ratio": 0.9})


def test_sizes_are_given_back():
    before = bench_lm_head.VOCAB
    cases = shapes.resized(bench_lm_head, CPU, VOCAB=512, HIDDEN=64)
    assert "V=512, H=64" in next(cases).name
    cases.close()
    assert before == bench_lm_head.VOCAB


def test_shapes_of_a_model():
    llama = shapes.MODELS[1]
    assert llama.matrices["qkv"] == (1280, 8192) and llama.matrices["gate, up"] == (7168, 8192)
