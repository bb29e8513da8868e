"""Rows of a JSONL data set, in the formats that mlx-lm's fine-tuning takes."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError

FORMATS = (
    '{"messages": [...]}, {"prompt": ..., "completion": ...}, {"prompt": ...} or {"text": ...}'
)


@dataclass(frozen=True)
class Row:
    """One example.

    Attributes:
        where: file and line, for messages.
        messages: a chat, its last message an answer or not; None for plain text.
        text: plain text, all of which is learned; None for a chat.
        tools: descriptions of tools for the chat template, or None.
    """

    where: str
    messages: list[dict[str, Any]] | None
    text: str | None
    tools: list[Any] | None = None

    @property
    def answered(self) -> bool:
        """Whether there is something to learn from the row as it is."""
        return self.messages is None or self.messages[-1]["role"] == "assistant"

    @property
    def question(self) -> list[dict[str, Any]]:
        """The chat without the answer at its end."""
        return self.messages[:-1] if self.answered else self.messages


def read_rows(path: Path) -> list[Row]:
    """All rows of a file, or of ``train.jsonl`` in a folder.

    Raises:
        UserError: there is no such file, it is empty, or a line is none of the formats.
    """
    path = path / "train.jsonl" if path.is_dir() else path
    if not path.is_file():
        raise UserError(f"There is no data file {path}.")
    rows = [_parse(line, f"{path.name}, line {number}") for number, line in _lines(path)]
    if not rows:
        raise UserError(f"{path} holds no rows.")
    return rows


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error.reason}).") from error


def _parse(line: str, where: str) -> Row:
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
        return Row(where, _messages(value["messages"], where), None, tools)
    for name in ("prompt", "completion", "text"):
        if name in value and not isinstance(value[name], str):
            raise UserError(f"{where}: the {name} is no text.")
    if "prompt" in value:
        messages = [{"role": "user", "content": value["prompt"]}]
        if "completion" in value:
            messages.append({"role": "assistant", "content": value["completion"]})
        return Row(where, messages, None, tools)
    if "text" in value:
        return Row(where, None, value["text"])
    raise UserError(f"{where} has keys {', '.join(value) or 'none'}; it must be {FORMATS}.")


def _messages(value: Any, where: str) -> list[dict[str, Any]]:
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
    return value
