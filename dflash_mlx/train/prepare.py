"""The sequences of a training: read, invented, answered by the target, split."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import mlx.nn as nn
import numpy as np
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tqdm import tqdm

from ..errors import UserError, counted
from .answers import Progress, Writing, write_answers
from .blocks import Sequence
from .encode import Encoder
from .invent import invent_prompts, opening
from .options import Options
from .rows import Row, read_rows
from .world import World

MOST_HELD_OUT = 32


Data = tuple[list[Row], list[Row]]


def read_data(options: Options) -> Data:
    """The rows of the data, and those of its ``valid.jsonl`` that are held out; perhaps none.

    Raises:
        UserError: they cannot be read.
    """
    path, count = options.data, options.held_out
    if path is None:
        return [], []
    valid = path / "valid.jsonl"
    rows = read_rows(valid) if valid.is_file() else []
    return read_rows(path), rows[: MOST_HELD_OUT if count is None else count]


def check_data(options: Options, data: Data) -> None:
    """Check what the options ask of the data, as far as no target is needed for it.

    Raises:
        UserError: they ask what the data do not allow, or what has no effect on them.
    """
    (given, valid), count = data, options.held_out
    for row in given + valid:
        if options.regenerate is False and not row.answered:
            raise UserError(f"{row.where} has no answer, and --no-regenerate was given.")
        if options.regenerate and not row.messages:
            raise UserError(f"{row.where} is plain text, which --regenerate cannot answer.")
    writes = any(_is_asked(row, options) for row in given + valid) or options.self_prompts
    if not writes and replace(options.writing, seed=0) != Writing():
        raise UserError(
            "The target writes no answer to these data, so --max-tokens, --temp, --top-p and "
            "--generation-batch have no effect; leave them out, or give --regenerate."
        )
    chats = any(row.messages for row in given + valid) or options.self_prompts
    if not chats and options.template_options:
        raise UserError("--chat-template-config has no effect on plain text; leave it out.")
    if not (valid or options.self_prompts) and (count or 0) >= len(given):
        raise _none_left(count, len(given))


def _is_asked(row: Row, options: Options) -> bool:
    """Whether the target is to answer a row."""
    return bool(row.messages and (options.regenerate or not row.answered))


def _none_left(held_out: int, of: int) -> UserError:
    return UserError(
        f"With {counted(held_out, 'sequence')} held out of {of} usable, none is left to train on; "
        "give more data or a smaller --held-out."
    )


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
            PeerStopped: another process has said that.
        """
        parts = {"train": self._rows(), "valid": self._valid}
        agree = self._world.agree
        kept = agree(lambda: {name: self._encoded(rows) for name, rows in parts.items()})
        all_ = {name: found + self._write(asked, name) for name, (found, asked) in kept.items()}
        return agree(lambda: self._split(all_["train"], all_["valid"]))

    def _split(
        self, found: list[Sequence], valid: list[Sequence]
    ) -> tuple[list[Sequence], list[Sequence]]:
        found, count = self._usable(found), self._options.held_out
        if valid:
            valid = self._usable(valid)
            if count is not None and len(valid) < count:
                held_out = counted(len(valid), "sequence")
                self._say(f"valid.jsonl has only {held_out} to hold out, not {count}.")
            return found, valid
        if count is None:
            count = min(max(1, round(len(found) / 20)), MOST_HELD_OUT)
        if count >= len(found):
            raise _none_left(count, len(found))
        order = np.random.default_rng([self._options.seed, 2]).permutation(len(found))
        return [found[i] for i in order[count:]], [found[i] for i in order[:count]]

    def _rows(self) -> list[Row]:
        options = self._options
        rows = self._given
        if options.self_prompts:
            path = self._folder / "prompts.jsonl"
            self._world.first(lambda: self._invent(path))
            rows = rows + self._world.agree(lambda: read_rows(path))
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

    def _encoded(self, rows: list[Row]) -> tuple[list[Sequence], list[list[int]]]:
        """The rows that are learned as they are, and those that the target is to answer."""
        ask = [row for row in rows if _is_asked(row, self._options)]
        keep = [row for row in rows if not _is_asked(row, self._options)]
        if any(row.messages for row in keep):
            self._say(
                "The answers in the data are learned as they are; a drafter learns its target "
                "better from the target's own (--regenerate)."
            )
        room = self._options.max_seq_length
        questions = [self._encoder.question(row) for row in ask]
        short = [tokens for tokens in questions if len(tokens) < room]
        if long := len(questions) - len(short):
            self._say(f"Left out {counted(long, 'prompt')} of {counted(room, 'token')} or more.")
        if questions and not short:
            raise UserError(
                f"All prompts have {counted(room, 'token')} or more; raise --max-seq-length."
            )
        return [self._encoder.sequence(row) for row in keep], short

    def _usable(self, sequences: list[Sequence]) -> list[Sequence]:
        """The sequences cut to length, without those that are too short."""
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

    def _write(self, questions: list[list[int]], name: str) -> list[Sequence]:
        """The target's answers: written by the first process, read by the others."""
        if not questions:
            return []
        path = self._folder / f"answers-{name}.jsonl"

        def write(progress: Progress) -> list[Sequence]:
            writing, end = self._options.writing, self._encoder.end_token()
            return write_answers(
                self._model, self._tokenizer, questions, writing, end, path, progress
            )

        def write_first() -> list[Sequence]:
            with bar("Answering", "answer") as progress:
                return write(progress)

        written = self._world.first(write_first)
        return self._world.agree(lambda: written or write(lambda done, total: None))


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
