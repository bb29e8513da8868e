"""The prompts that are measured: bundled ones by kind, or a user's file, at a chosen length."""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..errors import UserError, os_reason
from ..generation.chat import chat_tokens

BUNDLED = files(__package__) / "prompts.jsonl"
PADDING = files(__package__) / "padding.txt"

# A padded prompt may be so much longer or shorter than what was asked for.
_TOLERANCE = 0.01


@dataclass(frozen=True)
class Prompt:
    """One prompt.

    Attributes:
        id: names it in reports.
        kind: what sort of text it asks for.
        messages: a conversation whose last message is the user's.
        chat: False if it was given as text, which a target without a chat template takes as it is.
    """

    id: str
    kind: str
    messages: tuple[Mapping[str, Any], ...]
    chat: bool = False


def read_prompts(path: Path | None = None) -> list[Prompt]:
    """The prompts of a JSON Lines file, or the bundled ones.

    Each line is an object with ``prompt`` (a text) or ``messages`` (a conversation), and with
    ``kind`` and ``id`` if wanted.

    Raises:
        UserError: naming the line that is not like that.
    """
    try:
        text = (path or BUNDLED).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"The prompts in {path} cannot be read ({os_reason(error)}).") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not a UTF-8 text.") from error
    lines = [(i, line) for i, line in enumerate(text.splitlines(), 1) if line.strip()]
    prompts = [_parse(line, f"{path}, line {number}", number) for number, line in lines]
    if not prompts:
        raise UserError(f"{path} holds no prompts.")
    ids = [p.id for p in prompts]
    if repeated := sorted({i for i in ids if ids.count(i) > 1}):
        raise UserError(f"{path} uses the id {repeated[0]!r} more than once.")
    return prompts


def _parse(line: str, where: str, number: int) -> Prompt:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where} is not valid JSON: {error}.") from error
    if not isinstance(entry, dict) or ("prompt" in entry) == ("messages" in entry):
        raise UserError(f'{where} must be an object with either "prompt" or "messages".')
    if unknown := sorted(set(entry) - {"id", "kind", "prompt", "messages"}):
        raise UserError(f"{where} has unknown keys: {', '.join(unknown)}.")
    names = str(entry.get("id", number)), str(entry.get("kind", "other"))
    if "prompt" in entry:
        if not isinstance(entry["prompt"], str) or not entry["prompt"].strip():
            raise UserError(f'{where}: "prompt" must be a text that is not empty.')
        return Prompt(*names, ({"role": "user", "content": entry["prompt"]},))
    messages = entry["messages"]
    texts = isinstance(messages, list) and all(
        isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
        for m in messages
    )
    if not texts or not messages or messages[-1]["role"] != "user":
        raise UserError(
            f'{where}: "messages" must be a list of objects with "role" and "content", both texts; '
            "the last one is the user's."
        )
    return Prompt(*names, tuple(messages), chat=True)


def select(prompts: Sequence[Prompt], kinds: Sequence[str], limit: int | None) -> list[Prompt]:
    """At most ``limit`` prompts of each of the ``kinds``; no kinds means all of them.

    Raises:
        UserError: there is no prompt of such a kind.
    """
    known = list(dict.fromkeys(p.kind for p in prompts))
    if unknown := [kind for kind in kinds if kind not in known]:
        raise UserError(f"There are no prompts of kind {unknown[0]!r}; there are {known}.")
    chosen = [[p for p in prompts if p.kind == kind][:limit] for kind in kinds or known]
    return list(itertools.chain.from_iterable(chosen))


def prompt_tokens(
    tokenizer: TokenizerWrapper, prompt: Prompt, options: Mapping[str, Any] | None = None
) -> list[int]:
    """A prompt as the target receives it, through its chat template if it has one.

    Args:
        tokenizer: the target's.
        prompt: the prompt.
        options: for the chat template.

    Raises:
        UserError: a conversation or options were given and there is no template, or it refuses.
    """
    if tokenizer.has_chat_template:
        return chat_tokens(tokenizer, prompt.messages, options)
    if prompt.chat or options:
        raise UserError(
            "The target has no chat template, which conversations and template options need."
        )
    return tokenizer.encode(prompt.messages[-1]["content"])


def pad(prompt: Prompt, length: int, tokenize: Callable[[Prompt], list[int]]) -> list[int] | None:
    """The prompt after so much other text that it has about ``length`` tokens.

    Args:
        prompt: the prompt, whose last message is put after the text.
        length: tokens, template included.
        tokenize: turns a prompt into tokens.

    Returns:
        Tokens, within 1% of ``length`` or a word, or None if the prompt alone is longer.
    """
    words = PADDING.read_text(encoding="utf-8").split()
    *before, last = prompt.messages

    def padded(count: int) -> list[int]:
        text = " ".join(itertools.islice(itertools.cycle(words), count))
        content = f"{text}\n\n{last['content']}" if count else last["content"]
        messages = (*before, {**last, "content": content})
        return tokenize(Prompt(prompt.id, prompt.kind, messages, prompt.chat))

    alone, with_all = len(padded(0)), len(padded(len(words)))
    if alone > length:
        return None
    per_word = (with_all - alone) / len(words)
    count = round((length - alone) / per_word)
    # Words differ in length, so what is missing after the first guess is corrected.
    for _ in range(4):
        tokens = padded(count)
        missing = length - len(tokens)
        if abs(missing) <= max(length * _TOLERANCE, per_word):
            break
        count = max(0, count + round(missing / per_word))
    return tokens
