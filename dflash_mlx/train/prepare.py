"""The sequences of a training: read, invented, answered by the target, split."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import mlx.nn as nn
import numpy as np
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tqdm import tqdm

from ..errors import UserError
from ..wording import counted
from .answers import Progress, Question, write_answers
from .blocks import Sequence
from .encode import Encoder
from .invent import invent_prompts, opening
from .options import Options
from .rows import Row, read_rows
from .world import World

MOST_HELD_OUT = 32


Data = tuple[list[Row], list[Row]]


def read_data(path: Path | None) -> Data:
    """The rows of a file or folder, and those of its ``valid.jsonl``; none without a path.

    Raises:
        UserError: they cannot be read.
    """
    if path is None:
        return [], []
    valid = path / "valid.jsonl"
    return read_rows(path), read_rows(valid) if valid.is_file() else []


class Preparation:
    """Makes the sequences to train on and those to evaluate on.

    Args:
        model: the target, as mlx-lm loads it.
        tokenizer: the target's.
        options: of the training.
        data: what :func:`read_data` found.
        folder: where invented prompts and answers are kept.
        world: its first process writes them; the others wait and read.
        say: called with a line for the user.

    Raises:
        UserError: the target cannot invent prompts.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: TokenizerWrapper,
        options: Options,
        data: Data,
        folder: Path,
        world: World,
        say: Callable[[str], None],
    ):
        self._say = say
        self._model, self._tokenizer = model, tokenizer
        self._options, self._folder, self._world = options, folder, world
        self._encoder = Encoder(tokenizer, options.template_options)
        self._given, self._valid = data
        self._opening = opening(tokenizer) if options.self_prompts else []

    def sequences(self) -> tuple[list[Sequence], list[Sequence]]:
        """To train on, and held out.

        Raises:
            UserError: there is too little data, or a row cannot be used.
        """
        found, count = self._answered(self._rows(), "train"), self._options.held_out
        if self._valid:
            limit = MOST_HELD_OUT if count is None else count
            return found, self._answered(self._valid[:limit], "valid") if limit else []
        if count is None:
            count = min(max(1, round(len(found) / 20)), MOST_HELD_OUT)
        if count >= len(found):
            raise UserError(
                f"With {counted(count, 'sequence')} held out of {len(found)} usable, none is left "
                "to train on; give more data or a smaller --held-out."
            )
        order = np.random.default_rng([self._options.seed, 2]).permutation(len(found))
        return [found[i] for i in order[count:]], [found[i] for i in order[:count]]

    def _rows(self) -> list[Row]:
        options = self._options
        rows = self._given
        if options.self_prompts:
            path = self._folder / "prompts.jsonl"
            self._world.first(lambda: self._invent(path))
            rows = rows + read_rows(path)
        return rows

    def _invent(self, path: Path) -> None:
        options = self._options
        with bar("Inventing prompts", "prompt") as progress:
            invent_prompts(
                self._model,
                self._tokenizer,
                self._opening,
                options.self_prompts,
                options.seed,
                options.writing.batch,
                path,
                progress,
            )

    def _answered(self, rows: list[Row], name: str) -> list[Sequence]:
        """The rows as sequences with answers, cut to length; those too short are dropped."""
        regenerate = self._options.regenerate
        ask = [row for row in rows if row.messages and (regenerate or not row.answered)]
        keep = [row for row in rows if not row.messages or (row.answered and not regenerate)]
        if ask and regenerate is False:
            raise UserError(f"{ask[0].where} has no answer, and --no-regenerate was given.")
        if regenerate and keep:
            raise UserError(f"{keep[0].where} is plain text, which --regenerate cannot answer.")
        if any(row.messages for row in keep):
            self._say(
                "The answers in the data are learned as they are; a drafter learns its target "
                "better from the target's own (--regenerate)."
            )
        sequences = [self._encoder.sequence(row) for row in keep]
        if ask:
            sequences += self._write(ask, name)
        sequences = [_cut(s, self._options.max_seq_length) for s in sequences]
        # A single supervised token would be an anchor's only row: nothing of a block to learn.
        usable = [s for s in sequences if s.supervised[1:].sum() > 1]
        if dropped := len(sequences) - len(usable):
            left = counted(dropped, "sequence")
            self._say(f"Left out {left} with fewer than two tokens of an answer.")
        if not usable:
            raise UserError(
                f"Of {counted(len(sequences), 'sequence')}, none has two tokens of an answer "
                f"within the first {self._options.max_seq_length}."
            )
        return usable

    def _write(self, rows: list[Row], name: str) -> list[Sequence]:
        room = self._options.max_seq_length
        questions = [Question(self._encoder.question(row), row.kind) for row in rows]
        long = sum(len(q.tokens) >= room for q in questions)
        questions = [q for q in questions if len(q.tokens) < room]
        if long:
            self._say(f"Left out {counted(long, 'prompt')} of {counted(room, 'token')} or more.")
        if not questions:
            raise UserError(
                f"All prompts have {counted(room, 'token')} or more; raise --max-seq-length."
            )
        path = self._folder / f"answers-{name}.jsonl"
        end = self._encoder.end_token()

        def write(progress: Progress) -> list[Sequence]:
            writing = self._options.writing
            return write_answers(
                self._model, self._tokenizer, questions, writing, end, path, progress
            )

        def write_first() -> list[Sequence]:
            with bar("Answering", "answer") as progress:
                return write(progress)

        return self._world.first(write_first) or write(lambda done, total: None)


def _cut(sequence: Sequence, length: int) -> Sequence:
    return replace(
        sequence, tokens=sequence.tokens[:length], supervised=sequence.supervised[:length]
    )


@contextmanager
def bar(title: str, unit: str) -> Iterator[Progress]:
    """A progress bar as a function of what is done and all."""
    with tqdm(desc=title, unit=unit, disable=None) as inner:

        def progress(done: int, total: int) -> None:
            inner.total = total
            inner.update(done - inner.n)

        yield progress
