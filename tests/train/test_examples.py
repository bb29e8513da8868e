"""Examples of data sets: every format, what is wrong with one, and which tokens are answers."""

import json

import pytest
from support.tokenizer import EOS, byte_tokenizer

from dflash_mlx.errors import UserError
from dflash_mlx.train.examples import Encoder, Example, read_examples

# As SmolLM2's: every turn ends with the end token and a line break of the template's own.
PLAIN = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
# As Qwen3's: the thoughts of all answers but the last are taken out, and an empty one is prompted.
FORGETFUL = (
    "{% for m in messages %}[{{ m.role }}]"
    "{% if m.role == 'assistant' and loop.last %}<think></think>{% endif %}"
    "{{ m.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]<think></think>{% endif %}"
)
# Says at the top how many messages there are, so no chat begins like its continuation.
COUNTING = "({{ messages | length }})" + PLAIN
CHAT = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "uno"},
    {"role": "user", "content": "two"},
    {"role": "assistant", "content": "dos"},
]
PAIR = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "cd"}]


def write(path, *examples):
    lines = (x if isinstance(x, str) else json.dumps(x) for x in examples)
    path.write_text("".join(line + "\n" for line in lines))
    return path


def encoder(template=PLAIN, **options):
    return Encoder(byte_tokenizer(template=template), options)


def supervised(sequence):
    """The supervised tokens as text, with | between runs and $ for the end token."""
    runs = [sequence.tokens[begin:end].tolist() for begin, end in sequence.answers()]
    return "|".join("".join("$" if i == EOS else chr(i) for i in ids) for ids in runs)


def test_formats(tmp_path):
    path = write(
        tmp_path / "x.jsonl",
        {"messages": PAIR, "kind": "chat"},
        {"messages": PAIR[:1]},
        "",
        {"prompt": "ab", "completion": "cd"},
        {"prompt": "ab"},
        {"text": "abc"},
    )
    examples = read_examples(path)
    assert [x.answered for x in examples] == [True, False, True, False, True]
    assert all(x.question == PAIR[:1] for x in examples[:4])
    assert examples[2].messages == PAIR
    assert examples[4] == Example("x.jsonl, line 6", None, "abc")
    path.rename(tmp_path / "train.jsonl")
    assert len(read_examples(tmp_path)) == 5


@pytest.mark.parametrize(
    "line, words",
    [
        ("{", "line 2 is not valid JSON"),
        ([], "line 2 is not a JSON object"),
        ({"question": "x"}, "has keys question"),
        ({"messages": ["x"]}, "messages must"),
        ({"messages": []}, "messages must"),
        ({"messages": PAIR, "tools": 3}, "tools must"),
        ({"messages": [PAIR[1]]}, "without a question"),
        ({"messages": [{"role": "user", "content": 5}]}, "the content"),
        ({"messages": [{"role": "user", "content": None}]}, "the content"),
        ({"prompt": ["a"], "completion": "b"}, "the prompt"),
        ({"prompt": "a", "completion": 3}, "the completion"),
        ({"text": 3}, "the text"),
    ],
)
def test_mistakes(line, words, tmp_path):
    with pytest.raises(UserError, match=words):
        read_examples(write(tmp_path / "x.jsonl", {"text": "abc"}, line))


@pytest.mark.parametrize(
    "content, words", [(None, "no data file"), (b"\n", "no rows"), (b'{"text": "\xff"}\n', "UTF-8")]
)
def test_files_without_examples(content, words, tmp_path):
    if content is not None:
        (tmp_path / "x.jsonl").write_bytes(content)
    with pytest.raises(UserError, match=words):
        read_examples(tmp_path / "x.jsonl")


@pytest.mark.parametrize("template", [PLAIN, FORGETFUL])
def test_every_answer_and_its_end_token_is_supervised(template):
    sequence = encoder(template).sequence(Example("x", CHAT))
    assert supervised(sequence) == "uno$|dos$"
    assert bytes(t for t in sequence.tokens if t < 256).decode().startswith("[system]be brief")


@pytest.mark.parametrize(
    "template, words",
    [(COUNTING, "rows of one answer"), ("{{ raise_exception('no system') }}", "no system")],
)
def test_templates_that_do_not_do(template, words):
    with pytest.raises(UserError, match=f"x.jsonl, line 1: .*{words}"):
        encoder(template).sequence(Example("x.jsonl, line 1", CHAT))


def test_question():
    tokens = encoder().question(Example("x", CHAT))
    assert bytes(t for t in tokens if t < 256).decode().endswith("[user]two\n[assistant]")


def test_the_end_token_is_the_templates():
    assert encoder().end_token() == encoder(None).end_token() == EOS
    # As Gemma's: the end of a turn is one of several end tokens, and not the first.
    turns = PLAIN.replace("<eos>", "<end_of_turn>")
    tokenizer = byte_tokenizer(eos=[257], words=["<end_of_turn>"], template=turns)
    assert Encoder(tokenizer).end_token() == 257


def test_tools_reach_the_template():
    made = encoder("{% for t in tools or [] %}({{ t.name }}){% endfor %}" + PLAIN)
    with_tools = Example("x", CHAT, tools=[{"name": "clock"}])
    assert made.question(with_tools)[:7] == list(b"(clock)")
    assert supervised(made.sequence(with_tools)) == "uno$|dos$"
    with pytest.raises(UserError, match="tools"):
        encoder(None).question(Example("x", PAIR, tools=[{"name": "clock"}]))


def test_template_options():
    assert encoder("{{ mood }}" + PLAIN, mood="glad").question(Example("x", CHAT))[:4] == [*b"glad"]
    with pytest.raises(UserError, match="no template"):
        encoder(None, mood="glad")


def test_without_a_template():
    sequence = encoder(None).sequence(Example("x", PAIR))
    assert sequence.tokens.tolist() == [*b"abcd", EOS] and supervised(sequence) == "cd$"
    assert encoder(None).question(Example("x", PAIR)) == [*b"ab"]
    for messages in ([{"role": "user", "content": [{"type": "text"}]}], CHAT):
        with pytest.raises(UserError, match="no chat template"):
            encoder(None).sequence(Example("x", messages))


def test_plain_text_is_all_supervised():
    text = Example("x", None, "abc")
    sequence = encoder().sequence(text)
    assert sequence.tokens.tolist() == [*b"abc", EOS] and sequence.supervised.all()
    with pytest.raises(UserError, match="plain text"):
        encoder().question(text)
