"""Examples of a JSONL data set: mlx-lm's formats for fine-tuning, and tokens."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..errors import UserError
from ..generation.chat import TEMPLATE_ERRORS
from .blocks import Sequence

FORMATS = (
    '{"messages": [...]}, {"prompt": ..., "completion": ...}, {"prompt": ...} or {"text": ...}'
)


@dataclass(frozen=True)
class Example:
    """One line of a data set.

    Attributes:
        where: file and line, for messages.
        messages: a chat, its last message an answer or not; None for plain text.
        text: plain text, all of which is learned; None for a chat.
        tools: descriptions of tools for the chat template, or None.
    """

    where: str
    messages: list[dict[str, Any]] | None
    text: str | None = None
    tools: list[Any] | None = None

    @property
    def answered(self) -> bool:
        """Whether there is something to learn from the example as it is."""
        return self.messages is None or self.messages[-1]["role"] == "assistant"

    @property
    def question(self) -> list[dict[str, Any]]:
        """The chat without the answer at its end."""
        return self.messages[:-1] if self.answered else self.messages


def read_examples(path: Path) -> list[Example]:
    """All examples of a file, or of ``train.jsonl`` in a folder.

    Raises:
        UserError: there is no such file, it is empty, or a line is none of the formats.
    """
    path = path / "train.jsonl" if path.is_dir() else path
    if not path.is_file():
        raise UserError(f"There is no data file {path}.")
    try:
        with path.open(encoding="utf-8") as file:
            lines = [(n, line) for n, line in enumerate(file, 1) if line.strip()]
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error.reason}).") from error
    if not lines:
        raise UserError(f"{path} holds no rows.")
    return [_parse(line, f"{path.name}, line {number}") for number, line in lines]


def _parse(line: str, where: str) -> Example:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where} is not valid JSON ({error}).") from error
    if not isinstance(value, dict):
        raise UserError(f"{where} is not a JSON object; it must be {FORMATS}.")
    tools = value.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise UserError(f"{where}: tools must be a list.")
    if "messages" in value:
        _check_messages(value["messages"], where)
        return Example(where, value["messages"], tools=tools)
    for name in ("prompt", "completion", "text"):
        if name in value and not isinstance(value[name], str):
            raise UserError(f"{where}: the {name} is no text.")
    if "prompt" in value:
        messages = [{"role": "user", "content": value["prompt"]}]
        if "completion" in value:
            messages.append({"role": "assistant", "content": value["completion"]})
        return Example(where, messages, tools=tools)
    if "text" in value:
        return Example(where, None, value["text"])
    raise UserError(f"{where} has keys {', '.join(value) or 'none'}; it must be {FORMATS}.")


def _check_messages(value: Any, where: str) -> None:
    well_formed = isinstance(value, list) and all(
        isinstance(m, dict) and isinstance(m.get("role"), str) and "content" in m for m in value
    )
    if not well_formed or not value:
        raise UserError(f"{where}: messages must be a list of objects with role and content.")
    for message in value:
        content = message["content"]
        # A message that calls tools may say nothing, and one with images is a list of parts.
        silent = content is None and message["role"] == "assistant"
        if not (silent or isinstance(content, str | list)):
            raise UserError(f"{where}: the content of a message is no text.")
    if len(value) == 1 and value[0]["role"] == "assistant":
        raise UserError(f"{where}: an answer without a question cannot be learned from.")


class Encoder:
    """Renders examples by the target's chat template, or as plain text if it has none.

    Args:
        tokenizer: the target's.
        template_options: for the chat template, such as ``{"enable_thinking": False}``. They must
            be those that the drafter will be used with.
    """

    def __init__(self, tokenizer: TokenizerWrapper, template_options: dict[str, Any] | None = None):
        self._tokenizer = tokenizer
        self._options = template_options or {}
        self._chat = bool(tokenizer.has_chat_template)
        if self._options and not self._chat:
            raise UserError("Chat template options were given, but the target has no template.")

    def end_token(self) -> int | None:
        """The token that ends an answer; of several that may, the one that the template writes."""
        chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        sequence = self.sequence(Example("A chat to learn the template by", chat))
        last = int(sequence.tokens[sequence.answers()[-1][1] - 1])
        return last if last in self._tokenizer.eos_token_ids else self._tokenizer.eos_token_id

    def question(self, example: Example) -> list[int]:
        """The tokens that the target is to answer.

        Raises:
            UserError: the example is plain text, or its chat cannot be rendered.
        """
        if example.messages is None:
            raise UserError(f"{example.where} is plain text, which the target cannot answer.")
        return self._render(example, example.question, ask=True)

    def sequence(self, example: Example) -> Sequence:
        """The example's tokens, supervised where the assistant speaks; all of a plain text.

        Raises:
            UserError: its chat cannot be rendered, or the template moves the answers about.
        """
        if example.messages is None:
            tokens = self._with_end(self._tokenizer.encode(example.text))
            return Sequence(np.array(tokens, np.int32), np.ones(len(tokens), bool))
        tokens = self._render(example, example.messages)
        supervised = np.zeros(len(tokens), bool)
        for i, message in enumerate(example.messages):
            if message["role"] == "assistant" and i:
                begin, end = self._turn(example, i, tokens)
                supervised[begin:end] = True
        return Sequence(np.array(tokens, np.int32), supervised)

    def _turn(self, example: Example, i: int, tokens: list[int]) -> tuple[int, int]:
        """Where message ``i`` begins and ends in the rendered chat.

        The chat up to the message and the chat through it agree with the whole up to where the
        message begins and ends. What follows an end token is the template's, not the target's. A
        template may leave out of an answer, once the chat goes on, what it wrote at its beginning.
        """
        before = self._render(example, example.messages[:i])
        begin = _common(self._render(example, example.messages[:i], ask=True), tokens)
        through = _common(self._render(example, example.messages[: i + 1]), tokens)
        limit = through if through > begin else len(tokens)
        ends = [k for k in range(begin, limit) if tokens[k] in self._tokenizer.eos_token_ids]
        end = ends[0] + 1 if ends else through
        if tokens[: len(before)] != before or begin < len(before) or end <= begin:
            raise UserError(
                f"{example.where}: the chat template renders the beginning of a chat differently "
                "once it goes on, so the answers cannot be found; give the chat in rows of one "
                "answer."
            )
        return begin, end

    def _render(
        self, example: Example, messages: list[dict[str, Any]], ask: bool = False
    ) -> list[int]:
        """The tokens of some of its messages; ``ask`` opens the assistant's turn after them."""
        if not self._chat:
            return self._plain(example, messages)
        try:
            return self._tokenizer.apply_chat_template(
                messages, tools=example.tools, add_generation_prompt=ask, **self._options
            )
        except TEMPLATE_ERRORS as error:
            raise UserError(f"{example.where}: the chat template refuses it ({error}).") from error

    def _plain(self, example: Example, messages: list[dict[str, Any]]) -> list[int]:
        """A prompt and its completion for a target that knows no chats."""
        roles = [m["role"] for m in messages]
        text = all(isinstance(m["content"], str) for m in messages)
        if example.tools or not text or roles not in (["user"], ["user", "assistant"]):
            raise UserError(
                f"{example.where} is a chat of {', '.join(roles)}, or has tools or contents other "
                "than text, but the target has no chat template; give a prompt and its completion."
            )
        tokens = self._tokenizer.encode(messages[0]["content"])
        for answer in messages[1:]:
            more = self._tokenizer.encode(answer["content"], add_special_tokens=False)
            tokens = self._with_end(tokens + more)
        return tokens

    def _with_end(self, tokens: list[int]) -> list[int]:
        end = self._tokenizer.eos_token_id
        return tokens if end is None or tokens[-1:] == [end] else [*tokens, end]


def _common(a: list[int], b: list[int]) -> int:
    """How many tokens ``a`` and ``b`` begin with alike."""
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))
