"""The sequences of a training: read, invented, answered by the target, split."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import mlx.nn as nn
import numpy as np
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..errors import UserError, counted
from .blocks import Sequence
from .examples import Encoder, Example, read_examples
from .recipe import WRITING, Recipe
from .world import World
from .written import INVENTING, Author, opening

MOST_HELD_OUT = 32


def read_data(recipe: Recipe) -> tuple[list[Example], list[Example]]:
    """The examples of the data, and those of its ``valid.jsonl`` that are held out; perhaps none.

    Raises:
        UserError: they cannot be read, or the options ask of them what they do not allow, or what
            has no effect on them.
    """
    path, count = recipe.data, recipe.held_out
    if path is None and not recipe.self_prompts:
        raise UserError("There is nothing to train on; give --data, --self-prompts or both.")
    given, valid = [], []
    if path is not None:
        if (path / "valid.jsonl").is_file():
            valid = read_examples(path / "valid.jsonl")
        given = read_examples(path)
        valid = valid[: MOST_HELD_OUT if count is None else count]
    _check(recipe, given, valid)
    return given, valid


def _check(recipe: Recipe, given: list[Example], valid: list[Example]) -> None:
    """Check what the options ask of the data, as far as no target is needed for it."""
    for example in given + valid:
        if recipe.regenerate is False and not example.answered:
            raise UserError(f"{example.where} has no answer, and --no-regenerate was given.")
        if recipe.regenerate and not example.messages:
            raise UserError(f"{example.where} is plain text, which --regenerate cannot answer.")
    writes = any(_is_asked(x, recipe) for x in given + valid) or recipe.self_prompts
    if not writes and recipe.gives(*WRITING):
        raise UserError(
            "The target writes no answer to these data, so --max-tokens, --temp, --top-p and "
            "--generation-batch have no effect; leave them out, or give --regenerate."
        )
    chats = any(x.messages for x in given + valid) or recipe.self_prompts
    if not chats and recipe.template_options:
        raise UserError("--chat-template-config has no effect on plain text; leave it out.")
    if not (valid or recipe.self_prompts) and (recipe.held_out or 0) >= len(given):
        raise _none_left(recipe.held_out, len(given))


def _is_asked(example: Example, recipe: Recipe) -> bool:
    """Whether the target is to answer an example."""
    return bool(example.messages and (recipe.regenerate or not example.answered))


def _none_left(held_out: int, of: int) -> UserError:
    return UserError(
        f"With {counted(held_out, 'sequence')} held out of {of} usable, none is left to train on; "
        "give more data or a smaller --held-out."
    )


@dataclass
class Preparation:
    """Makes the sequences to train on and those to evaluate on.

    Attributes:
        model: the target, as mlx-lm loads it.
        tokenizer: the target's.
        recipe: of the training.
        data: what :func:`read_data` found.
        world: its first process writes invented prompts and answers; the others wait and read.
        say: called with a line for the user.

    Raises:
        UserError: the target cannot invent prompts.
    """

    model: nn.Module
    tokenizer: TokenizerWrapper
    recipe: Recipe
    data: tuple[list[Example], list[Example]]
    world: World
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        self._author = Author(self.model, self.tokenizer, self.recipe, self.world.is_first)
        self._encoder = Encoder(self.tokenizer, self.recipe.template_options)
        self._opening = opening(self.tokenizer) if self.recipe.self_prompts else []

    def sequences(self) -> tuple[list[Sequence], list[Sequence]]:
        """To train on, and held out.

        Raises:
            UserError: there is too little data, or an example cannot be used.
            PeerStopped: another process has said that.
        """
        agree = self.world.agree
        given, valid = self.data
        if self.recipe.self_prompts:
            path = self.recipe.folder / "prompts.jsonl"
            inventor = replace(self._author, recipe=replace(self.recipe, **INVENTING))
            self.world.first(lambda: inventor.prompts(self._opening, path))
            given = given + agree(lambda: read_examples(path))
        train, valid = agree(lambda: [self._encoded(part) for part in (given, valid)])
        found = self._with_answers(*train, "answers-train.jsonl")
        held_out = self._with_answers(*valid, "answers-valid.jsonl")
        return agree(lambda: self._split(found, held_out))

    def _encoded(self, examples: list[Example]) -> tuple[list[Sequence], list[list[int]]]:
        """The examples learned as they are, and the questions that the target is to answer."""
        ask = [x for x in examples if _is_asked(x, self.recipe)]
        keep = [x for x in examples if not _is_asked(x, self.recipe)]
        if any(x.messages for x in keep):
            self.say(
                "The answers in the data are learned as they are; a drafter learns its target "
                "better from the target's own (--regenerate)."
            )
        room = self.recipe.max_seq_length
        questions = [self._encoder.question(x) for x in ask]
        short = [tokens for tokens in questions if len(tokens) < room]
        if long := len(questions) - len(short):
            self.say(f"Left out {counted(long, 'prompt')} of {counted(room, 'token')} or more.")
        if questions and not short:
            raise UserError(
                f"All prompts have {counted(room, 'token')} or more; raise --max-seq-length."
            )
        return [self._encoder.sequence(x) for x in keep], short

    def _with_answers(
        self, kept: list[Sequence], questions: list[list[int]], name: str
    ) -> list[Sequence]:
        """What is kept, and the target's answers: written by the first process, or read."""

        path = self.recipe.folder / name

        def write() -> list[Sequence]:
            return self._author.answers(questions, self._encoder.end_token(), path)

        return kept + self.world.in_turn(write) if questions else kept

    def _split(
        self, found: list[Sequence], valid: list[Sequence]
    ) -> tuple[list[Sequence], list[Sequence]]:
        found, count = self._usable(found), self.recipe.held_out
        if valid:
            valid = self._usable(valid)
            if count is not None and len(valid) < count:
                held_out = counted(len(valid), "sequence")
                self.say(f"valid.jsonl has only {held_out} to hold out, not {count}.")
            return found, valid
        if count is None:
            count = min(max(1, round(len(found) / 20)), MOST_HELD_OUT)
        if count >= len(found):
            raise _none_left(count, len(found))
        order = np.random.default_rng([self.recipe.seed, 2]).permutation(len(found))
        return [found[i] for i in order[count:]], [found[i] for i in order[:count]]

    def _usable(self, sequences: list[Sequence]) -> list[Sequence]:
        """The sequences cut to length, without those that are too short."""
        room = self.recipe.max_seq_length
        cut = [Sequence(s.tokens[:room], s.supervised[:room]) for s in sequences]
        # A single supervised token would be an anchor's only draft: nothing of a block to learn.
        usable = [s for s in cut if s.supervised[1:].sum() > 1]
        if dropped := len(cut) - len(usable):
            left = counted(dropped, "sequence")
            self.say(f"Left out {left} with fewer than two tokens of an answer.")
        if not usable:
            raise UserError(
                f"Of {counted(len(cut), 'sequence')}, none has two tokens of an answer within the "
                f"first {room}."
            )
        return usable
