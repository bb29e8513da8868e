"""The loop: prompts are prefilled a chunk at a time, and sequences decode together, in turns."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from ..loading.pair import Pair
from .batch import Batch
from .costs import CostTable
from .interrupt import uninterrupted
from .session import EmittedToken, Session

# While others decode, a chunk of a prompt has a multiple of so many tokens, if it has as many.
CHUNK = 32
# A chunk while others decode, before it is known what a token of a prompt takes.
FIRST_CHUNK = 256
# The shortest rest of a prompt goes first; a second of waiting counts as so many tokens less.
AGING = 500.0


class Scheduler:
    """Steps sequences: a chunk of a prompt, then a round of a batch, and again.

    It is a plain object that belongs to one thread, and does nothing between two steps.

    Args:
        model: the pair.
        largest_batch: the most sequences that decode at a time. Those whose caches differ in kind,
            and those of a family that takes a single sequence, decode in turns.
        gap: seconds that a chunk of a prompt may keep others from their next tokens.
        costs: see :class:`Batch`.

    Attributes:
        waiting: sessions of whose prompt nothing was computed, in the order in which they came.
        decoding: the batch of the latest round.
    """

    def __init__(
        self,
        model: Pair,
        largest_batch: int = 1,
        gap: float = 0.1,
        costs: Callable[[int], CostTable | None] = lambda n: None,
    ):
        self._model = model
        self._most = largest_batch
        self._slots = largest_batch if model.target.batched else 1
        self._gap = gap
        self._costs = costs
        self.waiting: dict[Session, float] = {}
        self._prefilling: dict[Session, tuple[float, Iterator[int]]] = {}
        self._batches: list[Batch] = []
        self.decoding: Batch | None = None
        # What a token of a prompt took in the last chunk.
        self._pace = gap / FIRST_CHUNK

    @property
    def idle(self) -> bool:
        """Whether there is nothing to compute."""
        return not (self.waiting or self._prefilling or self._batches)

    @property
    def busy(self) -> int:
        """Sessions that hold caches."""
        return len(self._prefilling) + sum(len(batch.sessions) for batch in self._batches)

    def add(self, session: Session) -> None:
        """Let a session take part."""
        self.waiting[session] = time.perf_counter()

    def remove(self, session: Session) -> None:
        """Let a session leave, wherever it is; its prompt cache holds what was taken of it."""
        self.waiting.pop(session, None)
        self._prefilling.pop(session, None)
        for batch in self._batches:
            if session in batch.sessions:
                batch.leave(session)
        self._batches = [batch for batch in self._batches if batch.sessions]

    def held_up(self) -> AbstractContextManager[None]:
        """Around what a consumer of the last round's tokens does."""
        return self.decoding.held_up()

    def step(self) -> Iterator[tuple[Session, Iterator[EmittedToken]]]:
        """Compute a chunk of a prompt, and a round, if there is any need of them.

        Yields:
            Each session of the round that is still here, and the tokens it emits; and each that
            failed, with its ``error``. Whoever wants no more of a session removes it.
        """
        if session := self._next_prompt():
            try:
                self._prefill(session)
            except Exception as error:  # Theirs alone; it is raised where their tokens are asked.
                session.error = error
                yield session, iter(())
        if not self._batches:
            return
        # The batches take turns.
        self.decoding = batch = self._batches.pop(0)
        self._batches.append(batch)
        for other in self._batches[:-1]:
            other.disturbed()
        try:
            news = batch.round()
        except Exception as error:  # Nobody knows whose.
            for session in batch.sessions:
                session.error = error
            news = []
        yield from news
        yield from ((session, iter(())) for session in batch.sessions if session.error)

    def _next_prompt(self) -> Session | None:
        """Whose prompt is to be computed next."""
        now = time.perf_counter()
        begun = {session: since for session, (since, _) in self._prefilling.items()}
        free = self.waiting if self.busy < self._most else {}
        rest = {
            session: session.prompt_left - AGING * (now - since)
            for session, since in (begun | free).items()
        }
        return min(rest, key=rest.__getitem__, default=None)

    def _prefill(self, session: Session) -> None:
        """Compute a chunk of a prompt."""
        if session in self.waiting:
            since = self.waiting.pop(session)
            self._prefilling[session] = since, session.prefill(self._step_size)
        begun, left = time.perf_counter(), session.prompt_left
        done = next(self._prefilling[session][1], None) is None or session.prompt_left == 0
        for batch in self._batches:
            batch.disturbed()
        if computed := left - session.prompt_left:
            self._pace = (time.perf_counter() - begun) / computed
        if done:
            # An interrupt finds the caches with the prompt cache, or in a batch.
            with uninterrupted():
                del self._prefilling[session]
                self._join(session)

    def _step_size(self) -> float:
        """Tokens of the next chunk: as many as there are, if nobody waits for it."""
        if not self._batches:
            return math.inf
        tokens = max(int(self._gap / self._pace), 1)
        return tokens if tokens < CHUNK else tokens // CHUNK * CHUNK

    def _join(self, session: Session) -> None:
        """Let a session whose prompt is complete decode."""
        state = session.start()
        batch = next((batch for batch in self._batches if batch.takes(state)), None)
        if batch is None:
            batch = Batch(self._model, self._slots, self._costs)
            self._batches.append(batch)
        batch.join(session, state)
