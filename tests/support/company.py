"""Sequences that join and leave one loop at random, each beside what it writes alone."""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import mlx.core as mx
import mlx.nn as nn

from dflash_mlx import Pair
from dflash_mlx.cache.context import LinearContext
from dflash_mlx.drafter.proposal import Proposal
from dflash_mlx.engine.block_size import BlockSizes
from dflash_mlx.engine.scheduler import Scheduler
from dflash_mlx.engine.session import Session
from dflash_mlx.generation.options import Options
from dflash_mlx.generation.resolve import resolve
from dflash_mlx.target.target import Target
from support.oracle import OracleDrafter
from support.plain import vocab_of
from support.tokenizer import byte_tokenizer

TOKENIZER = byte_tokenizer()


class CompanyOracle(OracleDrafter):
    """Knows what every session will write, whatever batch row it is in.

    Args:
        vocab: vocabulary size.
        luck: says how many drafts of a session's block are right.
    """

    def __init__(self, vocab: int, luck: random.Random):
        super().__init__([[0]], lambda number: 0, vocab)
        self.scheduler: Scheduler | None = None
        self.truths: dict[Session, Sequence[int]] = {}
        self._luck = luck

    def draft(
        self, anchor: mx.array, block_size: int, context: Sequence[LinearContext]
    ) -> Proposal:
        slots = self.scheduler.decoding.slots
        truths = [self.truths.get(session, ()) for session in slots]
        width = max(map(len, truths)) + 2 * self.block_size
        self._truth = mx.array([[*truth, *[0] * (width - len(truth))] for truth in truths])
        right = [self._luck.choice((0, 1, block_size // 2, block_size - 1)) for _ in slots]
        self._accept = lambda number: right
        return super().draft(anchor, block_size, context)


class RandomSizes(BlockSizes):
    """A random size for every round."""

    def __init__(self, luck: random.Random, largest: int):
        super().__init__(largest)
        self._luck = luck

    def choose(self, context: int) -> int:
        return self._luck.choice((1, 2, 3, self.largest // 2, self.largest))


@dataclass
class Case:
    """A generation, and what it writes alone.

    Attributes:
        prompt, text: tokens.
        options: of the generation.
        wanted: tokens that its reader takes before leaving.
    """

    prompt: list[int]
    text: list[int]
    options: Mapping[str, object] = field(default_factory=dict)
    wanted: int = 0


@contextmanager
def company(
    model: nn.Module, seed: int, largest_batch: int, taps: Sequence[int] = (0, -1)
) -> Iterator[tuple[Pair, Scheduler, random.Random]]:
    """A pair with a :class:`CompanyOracle`, and a loop for it."""
    luck = random.Random(seed)
    ids = sorted({i % len(model.layers) for i in taps})
    oracle = CompanyOracle(vocab_of(model), luck)
    with Pair(Target(model, ids), oracle) as pair:
        oracle.scheduler = Scheduler(pair, largest_batch)
        yield pair, oracle.scheduler, luck


def play(
    pair: Pair, scheduler: Scheduler, luck: random.Random, cases: Sequence[Case], largest: int = 8
) -> tuple[list[list[int]], int]:
    """Let ``cases`` join at random moments, and leave when they have what they want.

    Returns:
        What each case got, and the rounds that were stepped.
    """
    coming, here, got, steps = list(enumerate(cases)), {}, [[] for _ in cases], 0
    while coming or here:
        while coming and (not here or luck.random() < 0.3):
            number, case = coming.pop(0)
            options = Options(max_tokens=len(case.text), **case.options)
            sizes = RandomSizes(luck, largest) if options.draft else BlockSizes(1)
            session = Session(pair, resolve(pair, TOKENIZER, case.prompt, options), sizes)
            pair.drafter.truths[session] = case.prompt + case.text
            here[session] = number
            scheduler.add(session)
        steps += 1
        for session, tokens in scheduler.step():
            if session.error is not None:
                raise session.error
            number = here[session]
            for token in tokens:
                got[number].append(token.token)
                session.taken += 1
                if len(got[number]) == cases[number].wanted:
                    break
        for session, number in list(here.items()):
            if session.finished or len(got[number]) == cases[number].wanted:
                scheduler.remove(session)
                del here[session]
    assert scheduler.idle and not scheduler.busy
    return got, steps
