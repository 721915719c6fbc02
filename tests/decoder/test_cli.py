import json
import subprocess
import sys

import gguf_writer
import pytest
import torch

from dflash_ops.cli.main import main

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
KEYS = {
    "text",
    "token_ids",
    "new_tokens",
    "tokens_per_s",
    "cycles",
    "tokens_per_cycle",
    "acceptance_per_position",
    "draft_s",
    "verify_s",
    "other_s",
    "kv_bytes",
    "identical_to_plain",
    "speedup",
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(gguf_writer.model(tmp_path_factory.mktemp("m") / "x.gguf", template=TEMPLATE))


@pytest.fixture(scope="module")
def quantised_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("q") / "x.gguf"
    return str(gguf_writer.model(path, template=TEMPLATE, quantised=True))


def generate(capsys, *arguments):
    assert main(["generate", *arguments]) == 0
    return capsys.readouterr()


def generate_json(capsys, *arguments):
    out = generate(capsys, *arguments, "--json").out
    assert out.count("\n") == 1
    return json.loads(out)


def test_json(capsys, path):
    got = generate_json(capsys, "abcabcabc", "--model", path, "--max-new-tokens", "20")
    assert got.keys() >= KEYS
    assert len(got["token_ids"]) == got["new_tokens"] == 20
    assert isinstance(got["text"], str) and got["tokens_per_s"] > 0
    assert 1 <= got["cycles"] <= 20 and got["kv_bytes"] > 0
    assert got["tokens_per_cycle"] == 20 / got["cycles"]
    assert got["identical_to_plain"] is None and got["speedup"] is None
    seconds = got["prefill_s"] + got["draft_s"] + got["verify_s"] + got["other_s"]
    assert seconds == pytest.approx(20 / got["tokens_per_s"])


@pytest.mark.parametrize("drafter", [["ngram"], ["ngram", "--tree-nodes", "9"], ["none"]])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("sampling", [[], ["--temperature", "0.3", "--top-k", "9", "--seed", "4"]])
def test_compare(capsys, path, drafter, dtype, sampling):
    arguments = ["abcabcabc", "--model", path, "--drafter", *drafter, "--dtype", dtype, *sampling]
    got = generate_json(capsys, *arguments, "--compare", "--max-new-tokens", "30")
    assert got["identical_to_plain"] is True and got["speedup"] > 0
    if drafter == ["none"]:
        assert got["tokens_per_cycle"] == 1 and got["acceptance_per_position"] == []


@pytest.mark.parametrize("verify", ["token", "block"])
def test_rejection(capsys, path, verify):
    """Greedy it is plain decoding; sampled only the law is, so ids are not compared."""
    arguments = ["abcabcabc", "--model", path, "--verify", verify, "--max-new-tokens", "30"]
    greedy = generate_json(capsys, *arguments, "--compare")
    assert greedy["identical_to_plain"] is True
    sampled = [*arguments, "--temperature", "0.8", "--compare"]
    got = generate_json(capsys, *sampled)
    assert got["identical_to_plain"] is None and got["speedup"] > 0
    assert "the same law" in generate(capsys, *sampled).out


@pytest.mark.parametrize("tree_nodes", ["0", "9"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_compare_with_weights_as_stored(capsys, quantised_path, dtype, tree_nodes):
    options = ["--model", quantised_path, "--dtype", dtype, "--max-new-tokens", "30"]
    stored = [*options, "--weights", "w4", "--tree-nodes", tree_nodes]
    got = generate_json(capsys, "abcabcabc", *stored, "--compare")
    assert got["identical_to_plain"] is True and got["new_tokens"] == 30
    if dtype == "fp32":  # the same numbers, but for roundings
        plain = generate_json(capsys, "abcabcabc", *options)
        assert got["token_ids"] == plain["token_ids"]


def test_a_prompt_in_a_batch_gets_what_it_gets_alone(capsys, path):
    prompts = ["abcabc", "zz", "Zeile"]
    options = ["--model", path, "--max-new-tokens", "9", "--temperature", "0.8"]
    batch = generate_json(capsys, *prompts, *options)
    alone = [generate_json(capsys, prompt, *options) for prompt in prompts]
    assert batch["token_ids"] == [one["token_ids"] for one in alone]
    assert batch["text"] == [one["text"] for one in alone]
    assert batch["new_tokens"] == 27


def test_text_and_table(capsys, path):
    options = ["--model", path, "--max-new-tokens", "9"]
    text = generate_json(capsys, "abcabc", *options)["text"]
    out = generate(capsys, "abcabc", *options, "--compare").out
    assert out.startswith(text + "\n")
    for row in ("tokens ", "tokens/s", "cycles", "time", "KV memory", "against plain"):
        assert f"\n{row}" in out
    assert "identical ids" in out

    out = generate(capsys, "abcabc", "zz", *options).out
    assert f"[1] {text}\n" in out and "[2] " in out


def test_context_ends(capsys, path):
    got = generate_json(capsys, "x" * 60, "--model", path, "--max-new-tokens", "99")
    assert got["new_tokens"] == 4  # of 64


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["x", "--model", "nothing"], "no such model: nothing"),
        (["x", "--model", "DAMAGED"], "damaged"),
        ([""], "the prompt is empty"),
        (["x", " \n"], "the prompt is empty"),
        (["x" * 64], "the prompt has 64 tokens, the model's context 64"),
        (["x", "--verify", "rrs"], "argument --verify: invalid choice: 'rrs'"),
        (["x", "--verify", "block", "--tree-nodes", "9"], "--verify block takes chains"),
        (["x", "--drafter", "magic"], "argument --drafter: invalid choice: 'magic'"),
        (["x", "--temperature", "-1"], "temperature must be at least 0, got -1.0"),
        (["x", "--temperature", "nan"], "temperature must be at least 0, got nan"),
        (["x", "--temperature", "inf"], "temperature must be at least 0, got inf"),
        (["x", "--temperature", "hot"], "argument --temperature: invalid float value: 'hot'"),
        (["x", "--top-k", "-1"], "top_k must be at least 0, got -1"),
        (["x", "--top-p", "0"], "top_p must be above 0 and at most 1, got 0.0"),
        (["x", "--min-p", "1.5"], "min_p must be from 0 to 1, got 1.5"),
        (["x", "--seed", str(2**63)], "seed must be a 64-bit integer"),
        (["x", "--draft-len", "0"], "argument --draft-len: must be from 1 to"),
        (["x", "--tree-nodes", "-1"], "argument --tree-nodes: must be from 0 to"),
        (["x", "--max-new-tokens", "0"], "argument --max-new-tokens: must be from 1 to"),
        (["x", "--max-new-tokens", "ten"], "argument --max-new-tokens: invalid int value: 'ten'"),
        (["x", "--weights", "w4"], "x.gguf: no tensor is of Q4_0, Q4_1 or Q8_0"),
        (["x", "--weights", "w2"], "argument --weights: invalid choice: 'w2'"),
        (["x", "--dtype", "fp8"], "argument --dtype: invalid choice: 'fp8'"),
        ([], "the following arguments are required: PROMPT"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, tmp_path, path, arguments, message):
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF\3\0\0\0 and no more")
    arguments = [str(damaged) if a == "DAMAGED" else a for a in arguments]
    if "--model" not in arguments:
        arguments += ["--model", path]
    try:
        code = main(["generate", *arguments])
    except SystemExit as error:  # argparse
        code = error.code
    out, err = capsys.readouterr()
    assert code == 2 and out == ""
    assert err.startswith("error: ") and err.count("\n") == 1 and message in err


def test_the_module_runs(path):
    command = [sys.executable, "-m", "dflash_ops"]
    done = subprocess.run([*command, "generate", "x", "--model", "nothing"], capture_output=True)
    assert done.returncode == 2 and b"Traceback" not in done.stderr
    done = subprocess.run([*command, "info", "--json"], capture_output=True, check=True)
    facts = json.loads(done.stdout)
    assert facts["torch"] == torch.__version__ and "cpu" in facts["backends"]
    assert facts["ops"]["accept_match"][0] == "cpu"


def test_a_reader_that_leaves():
    command = [sys.executable, "-m", "dflash_ops", "info"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.wait() == 1 and process.stderr.read() == b""


def test_info_table(capsys):
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert "cpu_capability" in out and "cpu_isa" in out and "accept_match" in out
