"""Answers written by the target itself, kept in a file that an interrupted run goes on with.

A drafter learns what its target would say, so the answers of any other author teach it worse:
on a corpus that was not regenerated τ fell from 6.0 to 2.5 (JetSpec, arXiv 2606.18394).
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.generate import batch_generate
from mlx_lm.sample_utils import make_sampler
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..engine.sampling import Sampling
from ..errors import UserError, at_least_one
from .blocks import Sequence
from .lines import append_lines, read_lines, write_lines

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Writing:
    """How the target writes.

    Attributes:
        max_tokens: the longest answer.
        temp: temperature; 0 is greedy.
        top_p: nucleus mass; 0 keeps everything.
        seed: of the sampling.
        batch: texts at a time.

    Raises:
        UserError: a value is out of its range, or has no effect.
    """

    max_tokens: int = 512
    temp: float = 0.0
    top_p: float = 0.0
    seed: int = 0
    batch: int = 32

    def __post_init__(self) -> None:
        at_least_one("max_tokens", self.max_tokens)
        at_least_one("generation_batch", self.batch)
        Sampling(self.temp, self.top_p, seed=self.seed)
        if self.top_p and not self.temp:
            raise UserError("top_p has no effect on greedy answers; give --temp as well.")


def write_answers(
    model: nn.Module,
    tokenizer: TokenizerWrapper,
    questions: list[list[int]],
    writing: Writing,
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
        writing: how.
        end_token: what an answer ends with that came to its end.
        path: JSON lines, the first of them saying what the file was made of.
        progress: called with the answers written and all.

    Raises:
        UserError: the file was made of other questions or in another way, or is damaged, or
            cannot be written.
    """
    done = _read(path, questions, writing)
    progress(len(done), len(questions))
    while len(done) < len(questions):
        part = questions[len(done) : len(done) + writing.batch]
        answers = _answer(model, tokenizer, part, writing, end_token, len(done))
        lines = [
            {"question": question, "answer": answer}
            for question, answer in zip(part, answers, strict=True)
        ]
        append_lines(path, lines)
        done += lines
        progress(len(done), len(questions))
    return [_sequence(line) for line in done]


def _answer(
    model: nn.Module,
    tokenizer: TokenizerWrapper,
    questions: list[list[int]],
    writing: Writing,
    end: int | None,
    number: int,
) -> list[list[int]]:
    """One batch of answers; the end token, which mlx-lm leaves out, is part of them."""
    # A batch's noise depends on its number alone, so that a run that goes on draws the same.
    mx.random.seed(writing.seed + number)
    written = batch_generate(
        model,
        tokenizer,
        questions,
        max_tokens=writing.max_tokens,
        return_token_ids=True,
        completion_batch_size=writing.batch,
        sampler=make_sampler(temp=writing.temp, top_p=writing.top_p),
    ).token_ids
    return [[*a, end] if len(a) < writing.max_tokens and end is not None else a for a in written]


def _sequence(line: dict[str, Any]) -> Sequence:
    begin, tokens = len(line["question"]), line["question"] + line["answer"]
    return Sequence(np.array(tokens, np.int32), np.arange(len(tokens)) >= begin)


def _head(questions: list[list[int]], writing: Writing) -> dict[str, Any]:
    """What the file's first line says; the batch and what came out depend on all of it."""
    digest = hashlib.sha256(json.dumps(questions).encode())
    return {"questions": digest.hexdigest(), **vars(writing)}


def _read(path: Path, questions: list[list[int]], writing: Writing) -> list[dict[str, Any]]:
    """The answers in a file, which is begun if it is not there.

    A batch that is not whole is dropped: the batches after it would be others than without it.
    """
    head = _head(questions, writing)
    found, *answers = read_lines(path, ("question", "answer"), head=1) or [head]
    if found != head:
        raise UserError(
            f"{path} holds answers to other questions or by other settings; remove it, or give "
            "the same data and options as before."
        )
    if len(answers) > len(questions):
        raise UserError(f"{path} holds more answers than there are questions; remove it.")
    if len(answers) < len(questions):
        answers = answers[: len(answers) // writing.batch * writing.batch]
    write_lines(path, [head, *answers])
    return answers
