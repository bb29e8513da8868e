"""What the target writes for its own drafter: answers, and prompts that it invents.

A drafter learns what its target would say, so the answers of any other author teach it worse:
on a corpus that was not regenerated τ fell from 6.0 to 2.5 (JetSpec, arXiv 2606.18394). What a chat
model has learned to answer, it can ask: it invents prompts by continuing the user's turn of its own
template (Magpie, arXiv 2406.08464).

Both are kept in files that an interrupted run goes on with. A batch's noise depends on its place
alone, so that a run that goes on draws the same, and a batch that is not whole is drawn again.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.generate import batch_generate
from mlx_lm.sample_utils import make_sampler
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..errors import UserError, counted
from ..generation.chat import TEMPLATE_ERRORS
from .blocks import Sequence
from .disk import append_lines, read_lines, write_lines
from .recipe import Recipe

# How prompts are invented, and what one must hold.
INVENTING = {"max_tokens": 128, "temp": 1.0, "top_p": 0.95}
FEWEST_LETTERS = 8
# A template is rendered around this, to find where a user's message begins.
_PLACE = "PLACE OF THE PROMPT"

# Called with what is done and all.
Progress = Callable[[int, int], None]


def write_answers(
    model: nn.Module,
    tokenizer: TokenizerWrapper,
    questions: list[list[int]],
    recipe: Recipe,
    end_token: int | None,
    path: Path,
    progress: Progress,
) -> list[Sequence]:
    """The target's answer to every question, as sequences.

    Answers are appended to ``path`` a batch at a time. If it holds the first of them already, the
    rest is written; the result is the same.

    Args:
        model: an mlx-lm model.
        tokenizer: knows the tokens that end an answer.
        questions: prompts in tokens, in order.
        recipe: how to write.
        end_token: what an answer ends with that came to its end, which mlx-lm leaves out.
        path: JSON lines, the first of them saying what the file was made of.
        progress: called with the answers written and all.

    Raises:
        UserError: the file was made of other questions or in another way, or is damaged, or
            cannot be written.
    """
    # Both the batches and what comes out depend on all of it.
    head = {
        "questions": hashlib.sha256(json.dumps(questions).encode()).hexdigest(),
        "max_tokens": recipe.max_tokens,
        "temp": recipe.temp,
        "top_p": recipe.top_p,
        "seed": recipe.seed,
        "batch": recipe.generation_batch,
    }
    done = _answers_there(path, head, len(questions))
    progress(len(done), len(questions))
    while len(done) < len(questions):
        part = questions[len(done) : len(done) + recipe.generation_batch]
        lines = []
        for question, answer in zip(
            part, _draw(model, tokenizer, part, recipe, len(done)), strict=True
        ):
            if len(answer) < recipe.max_tokens and end_token is not None:
                answer = [*answer, end_token]
            lines.append({"question": question, "answer": answer})
        append_lines(path, lines)
        done += lines
        progress(len(done), len(questions))
    return [_answered(line["question"], line["answer"]) for line in done]


def _answered(question: list[int], answer: list[int]) -> Sequence:
    tokens = np.array(question + answer, np.int32)
    return Sequence(tokens, np.arange(len(tokens)) >= len(question))


def _answers_there(path: Path, head: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """The answers in a file, which is begun with ``head`` if it is not there."""
    found, *answers = read_lines(path, ("question", "answer"), head=1) or [head]
    if found != head:
        raise UserError(
            f"{path} holds answers to other questions or by other settings; remove it, or give "
            "the same data and options as before."
        )
    if len(answers) > count:
        raise UserError(f"{path} holds more answers than there are questions; remove it.")
    if len(answers) < count:
        answers = answers[: len(answers) // head["batch"] * head["batch"]]
    write_lines(path, [head, *answers])
    return answers


def invent_prompts(
    model: nn.Module,
    tokenizer: TokenizerWrapper,
    opening: list[int],
    count: int,
    recipe: Recipe,
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
        recipe: how to draw; a prompt of ``max_tokens`` has not come to its end.
        path: JSON lines.
        progress: called with the prompts there are and all.

    Raises:
        UserError: the target only repeats itself, or the file is damaged or cannot be written.
    """
    batch, special = recipe.generation_batch, set(tokenizer.all_special_ids)
    found = _prompts_there(path, count)
    known = {_words(line["prompt"]) for line in found}
    number = found[-1]["batch"] + 1 if found else 0
    progress(len(found), count)
    while len(found) < count:
        if number * batch > 10 * (count + batch):
            raise UserError(
                f"The target invented only {counted(len(found), 'different prompt')} in "
                f"{number * batch} tries; ask for fewer, or give --data."
            )
        before = len(found)
        for tokens in _draw(model, tokenizer, [opening] * batch, recipe, number):
            prompt = tokenizer.decode(tokens).strip()
            ended = len(tokens) < recipe.max_tokens and not special.intersection(tokens)
            letters = sum(map(str.isalpha, prompt))
            new = ended and letters >= FEWEST_LETTERS and _words(prompt) not in known
            if new and len(found) < count:
                known.add(_words(prompt))
                found.append({"prompt": prompt, "batch": number})
        append_lines(path, found[before:])
        number += 1
        progress(len(found), count)


def _prompts_there(path: Path, count: int) -> list[dict[str, Any]]:
    """The prompts in a file; if there are too few, the last batch may not be whole."""
    found = read_lines(path, ("prompt", "batch"))
    if found and len(found) < count:
        found = [line for line in found if line["batch"] < found[-1]["batch"]]
    write_lines(path, found)
    return found


def _words(prompt: str) -> str:
    """What two prompts that are hardly different have in common."""
    return " ".join(prompt.lower().split())


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


def _draw(
    model: nn.Module,
    tokenizer: TokenizerWrapper,
    prompts: list[list[int]],
    recipe: Recipe,
    place: int,
) -> list[list[int]]:
    """One batch of continuations; ``place`` tells its noise from that of other batches."""
    mx.random.seed(recipe.seed + place)
    return batch_generate(
        model,
        tokenizer,
        prompts,
        max_tokens=recipe.max_tokens,
        return_token_ids=True,
        completion_batch_size=recipe.generation_batch,
        sampler=make_sampler(temp=recipe.temp, top_p=recipe.top_p),
    ).token_ids
