"""Which tokens are the assistant's, under templates of several habits."""

import pytest
from support.tokenizer import EOS, byte_tokenizer

from dflash_mlx.errors import UserError
from dflash_mlx.train.encode import Encoder
from dflash_mlx.train.rows import Row

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
COUNTING = (
    "({{ messages | length }}){% for m in messages %}[{{ m.role }}]{{ m.content }}<eos>{% endfor %}"
)
STRICT = "{{ raise_exception('no system messages') }}"

CHAT = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "uno"},
    {"role": "user", "content": "two"},
    {"role": "assistant", "content": "dos"},
]


def encoder(template: str | None, **options: object) -> Encoder:
    tokenizer = byte_tokenizer()
    tokenizer._tokenizer.chat_template = template
    tokenizer.has_chat_template = template is not None
    return Encoder(tokenizer, options)


def row(messages: list | None, text: str | None = None) -> Row:
    return Row("x.jsonl, line 1", messages, text)


def supervised(sequence) -> str:
    """The supervised tokens as text, with | between runs and $ for the end token."""
    pieces = []
    for begin, end in sequence.answers():
        ids = sequence.tokens[begin:end].tolist()
        pieces.append("".join("$" if i == EOS else chr(i) for i in ids))
    return "|".join(pieces)


def test_every_answer_and_its_end_token():
    sequence = encoder(PLAIN).sequence(row(CHAT))
    assert supervised(sequence) == "uno$|dos$"
    assert bytes(t for t in sequence.tokens if t < 256).decode().startswith("[system]be brief")


def test_a_template_that_forgets_thoughts():
    assert supervised(encoder(FORGETFUL).sequence(row(CHAT))) == "uno$|dos$"


def test_a_template_that_moves_the_answers():
    with pytest.raises(UserError, match="rows of one answer"):
        encoder(COUNTING).sequence(row(CHAT))


def test_a_template_that_refuses():
    with pytest.raises(UserError, match="no system messages"):
        encoder(STRICT).sequence(row(CHAT))


def test_question():
    tokens = encoder(PLAIN).question(row(CHAT))
    assert bytes(t for t in tokens if t < 256).decode().endswith("[user]two\n[assistant]")


def test_the_end_token_is_the_templates():
    assert encoder(PLAIN).end_token() == encoder(None).end_token() == EOS
    # As Gemma's: the end of a turn is one of several end tokens, and not the first.
    tokenizer = byte_tokenizer(eos=[257], words=["<end_of_turn>"])
    tokenizer._tokenizer.chat_template = PLAIN.replace("<eos>", "<end_of_turn>")
    tokenizer.has_chat_template = True
    assert Encoder(tokenizer).end_token() == 257


def test_tools_reach_the_template():
    template = "{% for t in tools or [] %}({{ t.name }}){% endfor %}" + PLAIN
    with_tools = Row("x", CHAT, None, [{"name": "clock"}])
    made = encoder(template)
    assert made.question(with_tools)[:7] == list(b"(clock)")
    assert supervised(made.sequence(with_tools)) == supervised(made.sequence(row(CHAT)))
    with pytest.raises(UserError, match="tools"):
        encoder(None).question(Row("x", CHAT[1:2], None, [{"name": "clock"}]))


def test_template_options():
    template = "{{ mood }}" + PLAIN
    assert encoder(template, mood="glad").question(row(CHAT))[:4] == list(b"glad")
    with pytest.raises(UserError, match="no template"):
        encoder(None, mood="glad")


def test_without_a_template():
    pair = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "cd"}]
    sequence = encoder(None).sequence(row(pair))
    assert sequence.tokens.tolist() == [*b"abcd", EOS] and supervised(sequence) == "cd$"
    assert encoder(None).question(row(pair)) == [*b"ab"]
    with pytest.raises(UserError, match="contents other than text"):
        encoder(None).question(row([{"role": "user", "content": [{"type": "text"}]}]))
    with pytest.raises(UserError, match="no chat template"):
        encoder(None).sequence(row(CHAT))


def test_plain_text_is_all_supervised():
    sequence = encoder(PLAIN).sequence(row(None, "abc"))
    assert sequence.tokens.tolist() == [*b"abc", EOS] and sequence.supervised.all()
    with pytest.raises(UserError, match="plain text"):
        encoder(PLAIN).question(row(None, "abc"))
