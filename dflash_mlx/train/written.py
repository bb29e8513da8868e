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
from dataclasses import dataclass
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
from .world import ProgressBar

# How prompts are invented, and what one must hold.
INVENTING = {"max_tokens": 128, "temp": 1.0, "top_p": 0.95}
FEWEST_LETTERS = 8
# A template is rendered around this, to find where a user's message begins.
_PLACE = "PLACE OF THE PROMPT"


@dataclass
class Author:
    """The target as the author of what its drafter learns from.

    Attributes:
        model: an mlx-lm model.
        tokenizer: knows the tokens that end a text.
        recipe: how to write; a text of ``max_tokens`` has not come to its end.
        shown: whether a bar tells how far it is.
    """

    model: nn.Module
    tokenizer: TokenizerWrapper
    recipe: Recipe
    shown: bool = True

    def answers(
        self, questions: list[list[int]], end_token: int | None, path: Path
    ) -> list[Sequence]:
        """The answer to every question, as sequences.

        Answers are appended to ``path`` a batch at a time. If it holds the first of them already,
        the rest is written; the result is the same.

        Args:
            questions: prompts in tokens, in order.
            end_token: what an answer ends with that came to its end, which mlx-lm leaves out.
            path: JSON lines, the first of them saying what the file was made of.

        Raises:
            UserError: the file was made of other questions or in another way, or is damaged, or
                cannot be written.
        """
        recipe, batch = self.recipe, self.recipe.generation_batch
        # Both the batches and what comes out depend on all of it.
        head = {
            "questions": hashlib.sha256(json.dumps(questions).encode()).hexdigest(),
            "max_tokens": recipe.max_tokens,
            "temp": recipe.temp,
            "top_p": recipe.top_p,
            "seed": recipe.seed,
            "batch": batch,
        }
        done = _answers_there(path, head, len(questions))
        told = {"unit": "answer", "initial": len(done), "total": len(questions)}
        with ProgressBar(desc="Answering", shown=self.shown, **told) as bar:
            while len(done) < len(questions):
                part = questions[len(done) : len(done) + batch]
                lines = []
                for question, answer in zip(part, self.draw(part, len(done)), strict=True):
                    if len(answer) < recipe.max_tokens and end_token is not None:
                        answer = [*answer, end_token]
                    lines.append({"question": question, "answer": answer})
                append_lines(path, lines)
                done += lines
                bar.update(len(lines))
        return [_answered(line["question"], line["answer"]) for line in done]

    def prompts(self, opening: list[int], path: Path) -> None:
        """Write different prompts to ``path``, one ``{"prompt": …, "batch": …}`` a line.

        If the file holds the first of them already, the rest is appended; the result is the same.
        Prompts that did not come to an end, hold hardly a letter or were there before are dropped.

        Args:
            opening: see :func:`opening`.
            path: JSON lines.

        Raises:
            UserError: the target only repeats itself, or the file is damaged or cannot be written.
        """
        count, batch = self.recipe.self_prompts, self.recipe.generation_batch
        special = set(self.tokenizer.all_special_ids)
        found = _prompts_there(path, count)
        known = {_words(line["prompt"]) for line in found}
        number = found[-1]["batch"] + 1 if found else 0
        told = {"unit": "prompt", "initial": len(found), "total": count}
        with ProgressBar(desc="Inventing prompts", shown=self.shown, **told) as bar:
            while len(found) < count:
                if number * batch > 10 * (count + batch):
                    raise UserError(
                        f"The target invented only {counted(len(found), 'different prompt')} in "
                        f"{number * batch} tries; ask for fewer, or give --data."
                    )
                before = len(found)
                for tokens in self.draw([opening] * batch, number):
                    prompt = self.tokenizer.decode(tokens).strip()
                    ended = len(tokens) < self.recipe.max_tokens
                    letters = sum(map(str.isalpha, prompt)) if ended else 0
                    if letters < FEWEST_LETTERS or special.intersection(tokens):
                        continue
                    if len(found) < count and _words(prompt) not in known:
                        known.add(_words(prompt))
                        found.append({"prompt": prompt, "batch": number})
                append_lines(path, found[before:])
                number += 1
                bar.update(len(found) - before)

    def draw(self, prompts: list[list[int]], place: int) -> list[list[int]]:
        """One batch of continuations; ``place`` tells its noise from that of other batches."""
        mx.random.seed(self.recipe.seed + place)
        return batch_generate(
            self.model,
            self.tokenizer,
            prompts,
            max_tokens=self.recipe.max_tokens,
            return_token_ids=True,
            completion_batch_size=self.recipe.generation_batch,
            sampler=make_sampler(temp=self.recipe.temp, top_p=self.recipe.top_p),
        ).token_ids


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
