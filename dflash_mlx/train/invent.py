"""Prompts that an instruct model invents by continuing the user's turn of its own template.

The idea is Magpie's (arXiv 2406.08464): what a chat model has learned to answer, it can ask.
"""

import hashlib
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.generate import batch_generate
from mlx_lm.sample_utils import make_sampler
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..errors import UserError, counted
from ..generation.chat import TEMPLATE_ERRORS
from .answers import Progress
from .lines import append_lines, read_lines, write_lines

LONGEST = 128
TEMPERATURE = 1.0
TOP_P = 0.95
FEWEST_LETTERS = 8
# A template is rendered around this, to find where a user's message begins.
_PLACE = "PLACE OF THE PROMPT"


def invent_prompts(
    model: nn.Module,
    tokenizer: TokenizerWrapper,
    opening: list[int],
    count: int,
    seed: int,
    batch: int,
    path: Path,
    progress: Progress,
) -> None:
    """Write ``count`` different prompts to ``path``, one ``{"prompt": …, "batch": …}`` a line.

    If the file holds the first of them already, the rest is appended; the result is the same.
    Prompts that did not come to an end, hold hardly a letter or were there before are dropped.

    Args:
        model: an mlx-lm model.
        tokenizer: its tokenizer.
        opening: see :func:`opening`.
        count: how many.
        seed: of the sampling.
        batch: prompts at a time.
        path: JSON lines.
        progress: called with the prompts there are and all.

    Raises:
        UserError: the target only repeats itself, or the file is damaged or cannot be written.
    """
    found = _read(path, count)
    known = {_digest(line["prompt"]) for line in found}
    number = found[-1]["batch"] + 1 if found else 0
    progress(len(found), count)
    while len(found) < count:
        if number * batch > 10 * (count + batch):
            raise UserError(
                f"The target invented only {counted(len(found), 'different prompt')} in "
                f"{number * batch} tries; ask for fewer, or give --data."
            )
        # The noise depends on the number alone, so that a run that goes on draws the same.
        mx.random.seed(seed + number)
        before = len(found)
        for prompt in _draw(model, tokenizer, [opening] * batch):
            if len(found) < count and _digest(prompt) not in known:
                known.add(_digest(prompt))
                found.append({"prompt": prompt, "batch": number})
        append_lines(path, found[before:])
        number += 1
        progress(len(found), count)


def opening(tokenizer: TokenizerWrapper) -> list[int]:
    """The chat template's tokens up to where a user's message begins.

    Raises:
        UserError: the target has no chat template, or it fails, or does not show it.
    """
    if not tokenizer.has_chat_template:
        raise UserError(
            "The target has no chat template, so it cannot invent prompts; give --data."
        )
    chat = [{"role": "user", "content": _PLACE}]
    try:
        text = tokenizer.apply_chat_template(chat, tokenize=False)
    except TEMPLATE_ERRORS as error:
        raise UserError(
            f"The target's chat template cannot be applied ({error}), so it cannot invent prompts; "
            "give --data."
        ) from error
    before, there, _ = text.partition(_PLACE)
    if not there or not before:
        raise UserError("The target's chat template hides where a prompt begins; give --data.")
    return tokenizer.encode(before, add_special_tokens=False)


def _draw(model: nn.Module, tokenizer: TokenizerWrapper, openings: list[list[int]]) -> list[str]:
    """A batch of prompts that came to an end by themselves."""
    written = batch_generate(
        model,
        tokenizer,
        openings,
        max_tokens=LONGEST,
        return_token_ids=True,
        completion_batch_size=len(openings),
        sampler=make_sampler(temp=TEMPERATURE, top_p=TOP_P),
    ).token_ids
    special = set(tokenizer.all_special_ids)
    ended = [ids for ids in written if len(ids) < LONGEST and not special.intersection(ids)]
    texts = [tokenizer.decode(ids).strip() for ids in ended]
    return [text for text in texts if sum(map(str.isalpha, text)) >= FEWEST_LETTERS]


def _digest(prompt: str) -> str:
    return hashlib.sha256(" ".join(prompt.lower().split()).encode()).hexdigest()


def _read(path: Path, count: int) -> list[dict[str, Any]]:
    """The prompts that are there; if there are too few, the last batch may not be whole."""
    found = read_lines(path, ("prompt", "batch"))
    if found and len(found) < count:
        found = [line for line in found if line["batch"] < found[-1]["batch"]]
    write_lines(path, found)
    return found
