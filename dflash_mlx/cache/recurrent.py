"""A recurrent state that stays at the last commit, and what it takes to bring it to the next."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from .linear import put_row
from .protocol import TargetBuffer

# A generation ends within the round that is being emitted, or on the first token of the one queued
# behind it.
KEPT = 2


@dataclass(frozen=True)
class Recurrence:
    """One call of a recurrence, which can be made again over fewer tokens.

    Attributes:
        function: mlx-lm's; it returns the output of each token and the state after the last.
        arguments: its arguments by name, without ``state``, ``mask`` and ``lengths``.
        takes_lengths: the function wants the number of unmasked tokens as well as the mask.
        n: how many tokens went in.
        state: what it returned, if a single token went in: then nothing is left to replay.
    """

    function: Callable[..., tuple[mx.array, mx.array]]
    arguments: dict[str, object]
    takes_lengths: bool
    n: int
    state: mx.array | None

    def after(self, state: mx.array | None, count: mx.array) -> mx.array:
        """``state`` after the first ``count [B]`` tokens, at least one each."""
        if self.state is not None:
            return self.state
        extra = {"lengths": count} if self.takes_lengths else {}
        mask = mx.arange(self.n) < count[:, None]
        return self.function(**self.arguments, state=state, mask=mask, **extra)[1]

    def arrays(self) -> list[mx.array]:
        """What a replay reads."""
        return [x for x in self.arguments.values() if isinstance(x, mx.array)]


@dataclass(frozen=True)
class Convolved:
    """The input of a causal convolution, whose state is the last of it.

    Attributes:
        inputs: ``[B, width + n, channels]``, the state in front of the ``n`` tokens of a forward.
        width: tokens of the state.
    """

    inputs: mx.array
    width: int

    def after(self, state: mx.array | None, count: mx.array) -> mx.array:
        """The state after the first ``count [B]`` tokens; ``state`` is in the window already."""
        at = (count[:, None] + mx.arange(self.width))[..., None]
        return mx.take_along_axis(self.inputs, at, axis=1)

    def arrays(self) -> list[mx.array]:
        """What a replay reads."""
        return [self.inputs]


@dataclass
class Tape:
    """What went into one layer's convolutions and recurrences in a forward, in order.

    Attributes:
        windows: the convolutions' inputs.
        recurrences: the recurrences, each with the state that it returned.
    """

    windows: list[mx.array] = field(default_factory=list)
    recurrences: list[tuple[mx.array, Recurrence]] = field(default_factory=list)


@dataclass(frozen=True)
class Forward:
    """A forward's start and inputs: enough for the states after any of its tokens.

    Attributes:
        offset: ``[B]`` int32, tokens in ``states``.
        states: before the forward; an item is None where nothing was ever written.
        steps: how each item moves on.
    """

    offset: mx.array
    states: list[mx.array | None]
    steps: list[Recurrence | Convolved]

    def after(self, count: mx.array) -> list[mx.array]:
        """The states after the first ``count [B]`` tokens, at least one each."""
        return [step.after(x, count) for step, x in zip(self.steps, self.states, strict=True)]


class RecurrentCache(TargetBuffer):
    """One layer's convolution and recurrence states, at the last commit.

    mlx-lm's layer reads the states as items and assigns new ones. A new one counts only after
    :meth:`record` has been told what it came from: then :meth:`commit` replays as many tokens as
    were accepted, each batch row its own number, inside the graph.

    Attributes:
        states: ``[B, …]`` each, or None before the first token.
        lengths, left_padding: None; here no token is padding.
    """

    lengths = None
    left_padding = None

    def __init__(self, states: Sequence[mx.array | None], batch: int = 1):
        self.states = list(states)
        self._batch = batch
        self._written: list[mx.array | None] = [None] * len(self.states)
        self._steps: list[Recurrence | Convolved] | None = None
        # Each with the place that every batch row has in it, or None if it was not there yet.
        self._rounds: deque[tuple[Forward, list[int | None]]] = deque(maxlen=KEPT)
        # A stock cache does not say how many tokens it holds; the first commit does.
        self._offset: mx.array | None = None

    @classmethod
    def adopt(cls, caches: Sequence[ArraysCache]) -> "RecurrentCache":
        """Take over the same layer's stock caches, one a batch row; they stay as they are."""
        states = [_stacked(items) for items in zip(*(c.cache for c in caches), strict=True)]
        return cls(states, len(caches))

    def __getitem__(self, i: int) -> mx.array | None:
        return self.states[i]

    def __setitem__(self, i: int, state: mx.array) -> None:
        self._written[i] = state

    def advance(self, n: int) -> None:
        """The layer has read ``n`` tokens, none of which is committed yet."""

    def make_mask(self, n: int) -> None:
        """No token of a forward is padding."""

    def reserve(self, length: int) -> None:
        """A state needs no room."""

    def record(self, tape: Tape) -> None:
        """Learn how the states that the layer has just assigned came about.

        Raises:
            ValueError: one of them came from neither a convolution nor a recurrence of the tape.
        """
        windows = iter(tape.windows)
        steps = []
        for written in self._written:
            step = next((note for state, note in tape.recurrences if state is written), None)
            steps.append(step or _window(next(windows, None), written))
        if next(windows, None) is not None:
            raise ValueError("A convolution keeps its state elsewhere than in the cache.")
        self._steps = steps
        self._written = [None] * len(self.states)

    def commit(self, offset: mx.array, accepted: mx.array) -> None:
        """Move on to ``offset [B]``, past the anchor and ``accepted [B]`` drafts of a round.

        Raises:
            ValueError: no forward was recorded since the last commit.
        """
        if self._steps is None:
            raise ValueError("A round is committed whose forward was not recorded.")
        done = Forward(offset - accepted - 1, self.states, self._steps)
        self._rounds.append((done, list(range(self._batch))))
        self.states = done.after(accepted + 1)
        self._offset, self._steps = offset, None

    def arrays(self) -> list[mx.array]:
        """What the last commit replays; what comes of it depends on the acceptance."""
        steps = self._rounds[-1][0].steps if self._rounds else ()
        return [x for step in steps for x in step.arrays()]

    def replayed(self) -> list[mx.array]:
        return self.states

    def hand_back(self, row: int, length: int, cache: ArraysCache) -> ArraysCache:
        """Leave the state after the first ``length`` tokens of batch row ``row`` in ``cache``.

        Raises:
            ValueError: the state of that length is not known any more, or not yet.
        """
        states, place = self._states_after(row, length)
        # A list of its own: a copy of the stock cache may share the old one.
        cache.cache = [x if x is None else x[place : place + 1] for x in states]
        return cache

    def _states_after(self, row: int, length: int) -> tuple[list[mx.array | None], int]:
        """States of a batch after ``length`` tokens of batch row ``row``, and its place there."""
        count = 0 if self._offset is None else length - self._offset[row].item()
        if count == 0:
            return self.states, row
        # Newest first: an older round's rejected tokens reach past the start of the next.
        for start, places in reversed(self._rounds if count < 0 else ()):
            place = places[row]
            count = -1 if place is None else length - start.offset[place].item()
            if count == 0:
                return start.states, place
            if count > 0:
                return start.after(mx.full(start.offset.shape, count)), place
        raise ValueError(f"The recurrent state after {length} tokens is out of reach.")

    def put(self, slot: int, other: "RecurrentCache", length: int) -> None:
        if self._offset is not None:
            self._offset = put_row(self._offset, slot, mx.array([length]))
        for _, places in self._rounds:
            places[slot] = None
        for i, (old, new) in enumerate(zip(self.states, other.states, strict=True)):
            # A row without a state has zeros, as mlx-lm's layers have.
            if old is None and new is not None:
                old = mx.zeros((self._batch, *new.shape[1:]), new.dtype)
            if old is not None:
                self.states[i] = put_row(old, slot, mx.zeros_like(old[:1]) if new is None else new)

    def select(self, rows: Sequence[int]) -> None:
        index, self._batch = mx.array(rows), len(rows)
        self.states = [x if x is None else x[index] for x in self.states]
        self._offset = None if self._offset is None else self._offset[index]
        for _, places in self._rounds:
            places[:] = [places[row] for row in rows]


def _window(inputs: mx.array | None, written: mx.array | None) -> Convolved:
    known = inputs is not None and written is not None and inputs.ndim == 3
    if not known or inputs.shape[2] != written.shape[2]:
        raise ValueError("A recurrent state came from no convolution or recurrence that is known.")
    return Convolved(inputs, written.shape[1])


def _stacked(items: Sequence[mx.array | None]) -> mx.array | None:
    """The same state of a batch; a row without one has zeros, as mlx-lm's layers have."""
    present = [x for x in items if x is not None]
    if not present:
        return None
    return mx.concatenate([mx.zeros_like(present[0]) if x is None else x for x in items])
