"""Bundled prompts, a user's file, and prompts made longer."""

import json
from functools import partial

import pytest
from mlx_lm.chat_templates import deepseek_v32
from mlx_lm.tokenizer_utils import TokenizerWrapper
from support.tokenizer import byte_tokenizer

from dflash_mlx.errors import UserError
from dflash_mlx.generation.chat import chat_tokens
from dflash_mlx.measure.prompts import Prompt, pad, prompt_tokens, read_prompts, select

TOKENIZER = byte_tokenizer()


def write(tmp_path, *lines: object):
    path = tmp_path / "prompts.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts))
    return path


def test_bundled_prompts_are_of_five_kinds():
    prompts = read_prompts()
    kinds = ["code", "math", "structured", "chat", "prose"]
    assert [p.kind for p in select(prompts, [], 1)] == kinds
    assert all(sum(p.kind == kind for p in prompts) == 4 for kind in kinds)


def test_selection_by_kind_and_number():
    chosen = select(read_prompts(), ["prose", "code"], 2)
    assert [p.id for p in chosen] == ["prose-1", "prose-2", "code-1", "code-2"]
    assert len(select(read_prompts(), [], None)) == 20
    with pytest.raises(UserError, match="poetry"):
        select(read_prompts(), ["poetry"], 2)


def test_users_file(tmp_path):
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "b"}]
    path = write(tmp_path, {"prompt": "a", "kind": "x", "id": "one"}, "", {"messages": turns})
    first, second = read_prompts(path)
    assert (first.id, first.kind, first.messages[-1]["content"]) == ("one", "x", "a")
    assert (second.id, second.kind, list(second.messages)) == ("3", "other", turns)


MISTAKES = {
    "no JSON": ("{", "line 1 is not valid JSON"),
    "neither": ({"kind": "x"}, 'either "prompt" or "messages"'),
    "both": ({"prompt": "a", "messages": []}, 'either "prompt" or "messages"'),
    "empty prompt": ({"prompt": " "}, "not empty"),
    "unknown key": ({"prompt": "a", "text": "b"}, "text"),
    "messages of another form": ({"messages": ["a"]}, '"role" and "content"'),
    "last is the assistant's": (
        {"messages": [{"role": "assistant", "content": "a"}]},
        "the last one is the user's",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_wrong_lines_are_named(mistake, tmp_path):
    line, words = MISTAKES[mistake]
    with pytest.raises(UserError, match=words):
        read_prompts(write(tmp_path, line))


def test_files_that_hold_no_prompts(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        read_prompts(tmp_path / "none.jsonl")
    with pytest.raises(UserError, match="no prompts"):
        read_prompts(write(tmp_path, ""))
    with pytest.raises(UserError, match="'1' more than once"):
        read_prompts(write(tmp_path, {"prompt": "a", "id": 1}, {"prompt": "b", "id": 1}))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="UTF-8"):
        read_prompts(tmp_path / "binary")


def test_conversation_needs_a_template():
    messages = ({"role": "user", "content": "a"},)
    assert prompt_tokens(TOKENIZER, Prompt("1", "x", messages)) == TOKENIZER.encode("a")
    with pytest.raises(UserError, match="no chat template"):
        prompt_tokens(TOKENIZER, Prompt("1", "x", messages, chat=True))
    with pytest.raises(UserError, match="no chat template"):
        prompt_tokens(TOKENIZER, Prompt("1", "x", messages), {"enable_thinking": False})


def deepseek_tokenizer():
    """DeepSeek V3.2 has no template of its own: mlx-lm has one for it, which is a function."""
    template = deepseek_v32.apply_chat_template
    return TokenizerWrapper(byte_tokenizer()._tokenizer, chat_template=template)


@pytest.mark.parametrize("options", [{}, {"enable_thinking": True}], ids=str)
def test_conversation_by_a_template_of_mlx_lms_own(options):
    tokenizer, user = deepseek_tokenizer(), {"role": "user", "content": "a"}
    given = {"enable_thinking": False, "add_generation_prompt": True} | options
    expected = deepseek_v32.apply_chat_template([user], **given)
    found = prompt_tokens(tokenizer, Prompt("1", "x", (user,)), options)
    assert tokenizer.decode(found) == expected


REFUSED = {
    "role": ({"role": "nobody", "content": "a"}, {}),
    "answer without a thought": ({"role": "assistant", "content": "a"}, {"enable_thinking": True}),
    "option": ({"role": "user", "content": "a"}, {"mood": "glad"}),
    "one of ours": ({"role": "user", "content": "a"}, {"continue_final_message": True}),
}


@pytest.mark.parametrize(("message", "options"), REFUSED.values(), ids=REFUSED)
def test_what_a_template_of_mlx_lms_own_refuses(message, options):
    with pytest.raises(UserError, match="cannot be applied"):
        chat_tokens(deepseek_tokenizer(), [message], options)


@pytest.mark.parametrize("length", [60, 500, 5000])
def test_padded_prompt_has_about_the_length_and_ends_with_the_question(length):
    messages = ({"role": "system", "content": "S"}, {"role": "user", "content": "Why?"})
    prompt = Prompt("1", "x", messages)
    tokens = pad(prompt, length, partial(prompt_tokens, TOKENIZER))
    assert abs(len(tokens) - length) <= max(0.01 * length, 12)
    assert TOKENIZER.decode(tokens).endswith("\n\nWhy?")


def test_prompt_that_is_too_long_is_not_cut():
    prompt = Prompt("1", "x", ({"role": "user", "content": "a" * 50},))
    assert pad(prompt, 49, partial(prompt_tokens, TOKENIZER)) is None
    assert len(pad(prompt, 50, partial(prompt_tokens, TOKENIZER))) == 50
