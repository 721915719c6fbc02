import gguf_writer
import pytest

from dflash_ops.adapters import ModelError, TextStream, load

TEXTS = [
    "",
    "abba ab",
    "Zeile 1\n\tmit Umlaut: \u00e4\u00f6",
    "42 + 7 = 49",
    "\u4f60\u597d \U0001f600!",
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return load(str(gguf_writer.model(tmp_path_factory.mktemp("m") / "x.gguf"))).tokenizer()


@pytest.mark.parametrize("text", TEXTS)
def test_round_trip(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_merges_and_markers(tokenizer):
    assert tokenizer.encode("cab<|end|>b") == [ord("c"), 257, 256, ord("b")]
    assert tokenizer.decode([257, 256, 257]) == "abab"  # markers are not text
    assert tokenizer.stop_ids == (256,)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("step", [1, 2, 3])
def test_stream_gives_the_text_in_whole_characters(tokenizer, text, step):
    ids = tokenizer.encode(text)
    stream = TextStream(tokenizer)
    pieces = [stream.push(ids[i : i + step]) for i in range(0, len(ids), step)]
    assert "".join(pieces) == text
    assert stream.close() == ""


def test_stream_ends_inside_a_character(tokenizer):
    stream = TextStream(tokenizer)
    ids = tokenizer.encode("a\U0001f600")[:-1]
    assert stream.push(ids[:1]) + stream.push(ids[1:]) == "a"
    assert stream.close() == tokenizer.decode(ids)[1:]


def test_chat_template(tmp_path):
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    made = load(str(gguf_writer.model(tmp_path / "x.gguf", template=template))).tokenizer()
    assert made.decode(made.encode_prompt("hi")) == "[user]hi>"

    broken = load(
        str(gguf_writer.model(tmp_path / "y.gguf", template="{{ raise_exception('no') }}"))
    ).tokenizer()
    with pytest.raises(ModelError, match="chat template fails: no"):
        broken.encode_prompt("hi")


def test_no_template_takes_the_prompt_as_it_is(tokenizer):
    assert tokenizer.encode_prompt("hi") == tokenizer.encode("hi")
