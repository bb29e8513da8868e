"""Rows to tokens, and which of the tokens are the assistant's."""

from typing import Any

import numpy as np
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..errors import UserError
from ..generation.chat import TEMPLATE_ERRORS
from .blocks import Sequence
from .rows import Row


class Encoder:
    """Renders rows by the target's chat template, or as plain text if it has none.

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
        sequence = self.sequence(Row("A chat to learn the template by", chat, None))
        last = int(sequence.tokens[sequence.answers()[-1][1] - 1])
        return last if last in self._tokenizer.eos_token_ids else self._tokenizer.eos_token_id

    def question(self, row: Row) -> list[int]:
        """The tokens that the target is to answer.

        Raises:
            UserError: the row is plain text, or its chat cannot be rendered.
        """
        if row.messages is None:
            raise UserError(f"{row.where} is plain text, which the target cannot answer.")
        return self._render(row, row.question, ask=True)

    def sequence(self, row: Row) -> Sequence:
        """The row's tokens, supervised where the assistant speaks; all of a plain text.

        Raises:
            UserError: the row's chat cannot be rendered, or its template moves the answers about.
        """
        if row.messages is None:
            tokens = self._with_end(self._tokenizer.encode(row.text))
            return Sequence(np.array(tokens, np.int32), np.ones(len(tokens), bool))
        tokens = self._render(row, row.messages)
        supervised = np.zeros(len(tokens), bool)
        for i, message in enumerate(row.messages):
            if message["role"] == "assistant" and i:
                begin, end = self._turn(row, i, tokens)
                supervised[begin:end] = True
        return Sequence(np.array(tokens, np.int32), supervised)

    def _turn(self, row: Row, i: int, tokens: list[int]) -> tuple[int, int]:
        """Where message ``i`` begins and ends in the rendered chat.

        The chat up to the message and the chat through it agree with the whole up to where the
        message begins and ends. What follows an end token is the template's, not the target's. A
        template may leave out of an answer, once the chat goes on, what it wrote at its beginning.
        """
        before = self._render(row, row.messages[:i])
        begin = _common(self._render(row, row.messages[:i], ask=True), tokens)
        through = _common(self._render(row, row.messages[: i + 1]), tokens)
        limit = through if through > begin else len(tokens)
        ends = [k for k in range(begin, limit) if tokens[k] in self._tokenizer.eos_token_ids]
        end = ends[0] + 1 if ends else through
        if tokens[: len(before)] != before or begin < len(before) or end <= begin:
            raise UserError(
                f"{row.where}: the chat template renders the beginning of a chat differently once "
                "it goes on, so the answers cannot be found; give the chat in rows of one answer."
            )
        return begin, end

    def _render(self, row: Row, messages: list[dict[str, Any]], ask: bool = False) -> list[int]:
        """The tokens of some of a row's messages; ``ask`` opens the assistant's turn after them."""
        if not self._chat:
            return self._plain(row, messages)
        try:
            return self._tokenizer.apply_chat_template(
                messages, tools=row.tools, add_generation_prompt=ask, **self._options
            )
        except TEMPLATE_ERRORS as error:
            raise UserError(f"{row.where}: the chat template refuses it ({error}).") from error

    def _plain(self, row: Row, messages: list[dict[str, Any]]) -> list[int]:
        """A prompt and its completion for a target that knows no chats."""
        roles = [m["role"] for m in messages]
        text = all(isinstance(m["content"], str) for m in messages)
        if row.tools or not text or roles not in (["user"], ["user", "assistant"]):
            raise UserError(
                f"{row.where} is a chat of {', '.join(roles)}, or has tools or contents other than "
                "text, but the target has no chat template; give a prompt and its completion."
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
