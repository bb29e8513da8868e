"""The queue between host and device: a round is submitted before the last one is read."""

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from ..drafter.proposal import Drafting
from ..target.stock import PlainTarget
from ..target.target import Target
from .choose import Chooser
from .mixed import MixedChooser
from .round import run_round, write_pending
from .state import State


@dataclass(frozen=True)
class HostRound:
    """A round as the host reads it.

    Attributes:
        tokens: the emitted tokens of each batch row, the bonus last.
        accepted: accepted drafts of each batch row.
        block_size: tokens verified, anchor included.
        logprobs: ``[block_size, vocab]`` of each batch row on the device; None where, or if, they
            were not asked for.
        slots: the batch row that each of its batch rows is by now; None for one that has left.
    """

    tokens: list[list[int]]
    accepted: list[int]
    block_size: int
    logprobs: mx.array | Sequence[mx.array | None] | None
    slots: list[int | None]


@dataclass(frozen=True)
class _Flight:
    block_size: int
    news: mx.array
    logprobs: mx.array | Sequence[mx.array | None] | None
    sequences: list[int | None]


class RoundQueue:
    """Submits rounds and reads their tokens, in order.

    The host knows how far a row can have come, not how far it has: buffers are sized by that
    bound, and it is tightened when a round is read.

    Sequences join and leave between two rounds, while others are in flight.

    Args:
        target: verifies.
        drafter: drafts, or None to decode plainly.
        chooser: draws and accepts.
        state: the first round's.
        lengths: the state's offsets, one a batch row.

    Attributes:
        state: of the round that is submitted next.
        drafter, chooser: of the rounds that are submitted from now on.
        drafts_nan: whether the first drafts' logits hold NaN; None before there were any, and False
            until their round is read.
    """

    def __init__(
        self,
        target: Target | PlainTarget,
        drafter: Drafting | None,
        chooser: Chooser | MixedChooser,
        state: State,
        lengths: list[int],
    ):
        self.state = state
        self.drafter = drafter
        self.chooser = chooser
        self.drafts_nan: bool | None = None
        self._target = target
        self._lengths: list[int | None] = list(lengths)
        self._numbers = itertools.count(len(lengths))
        # Which sequence is in which batch row, so that a round's outcome finds it, or nobody.
        self._sequences: list[int | None] = list(range(len(lengths)))
        self._flight: deque[_Flight] = deque()

    @property
    def in_flight(self) -> int:
        """Rounds submitted and not yet read."""
        return len(self._flight)

    @property
    def tokens_in_flight(self) -> int:
        """The most tokens that the rounds in flight can emit."""
        return sum(flight.block_size for flight in self._flight)

    @property
    def next_size(self) -> int | None:
        """Block size of the round that will be read next, or None if none is in flight."""
        return self._flight[0].block_size if self._flight else None

    @property
    def lengths(self) -> list[int | None]:
        """Committed positions of each batch row, after the rounds read so far; None if free."""
        return list(self._lengths)

    def in_flight_for(self, slot: int) -> int:
        """Rounds in flight that the sequence in a batch row takes part in."""
        return sum(self._sequences[slot] in flight.sequences for flight in self._flight)

    def put(self, slot: int, state: State, length: int) -> None:
        """Let a sequence of ``length`` committed positions join in a free batch row."""
        write_pending(self.drafter, self.state)
        self.state.put(slot, state, length)
        self._lengths[slot] = length
        self._sequences[slot] = next(self._numbers)
        self._mark_live()

    def drop(self, slot: int) -> None:
        """Free a batch row; what is in flight for it will be thrown away."""
        self._lengths[slot] = self._sequences[slot] = None
        self._mark_live()

    def select(self, rows: Sequence[int | None]) -> None:
        """Go on with these batch rows; None is a free one."""
        write_pending(self.drafter, self.state)
        self.state.select([row or 0 for row in rows])
        self._lengths = [None if row is None else self._lengths[row] for row in rows]
        self._sequences = [None if row is None else self._sequences[row] for row in rows]
        self._mark_live()

    def _mark_live(self) -> None:
        live = [length is not None for length in self._lengths]
        self.state.live = None if all(live) else mx.array(live)

    def submit(self, block_size: int) -> None:
        """Queue a round on the device. The host does not wait."""
        lengths = [length for length in self._lengths if length is not None]
        self.state.settle(min(lengths))
        self.state.reserve(max(lengths) + self.tokens_in_flight + block_size)
        verdict = run_round(self._target, self.drafter, self.chooser, self.state, block_size)
        # One array a round is read: the tokens, with the accepted count behind them, and once with
        # what became of the first drafts.
        columns = [verdict.tokens, verdict.accepted[:, None]]
        if self.drafts_nan is None and self.chooser.drafts_nan is not None:
            flag = self.chooser.drafts_nan.astype(mx.int32)
            columns.append(mx.broadcast_to(flag, columns[1].shape))
            self.drafts_nan = False
        news = mx.concatenate(columns, axis=1)
        kept = verdict.logprobs
        extra = [kept] if isinstance(kept, mx.array) else [x for x in kept or () if x is not None]
        # async_eval returns when few of its operations are left. In a call of their own, the head
        # and the choice are what the device is busy with while the host builds the next round.
        mx.async_eval(*self.state.arrays())
        mx.async_eval(self.state.anchor, self.state.offset, news, *self.state.replayed(), *extra)
        flight = _Flight(block_size, news, kept, list(self._sequences))
        self._flight.append(flight)

    def read(self) -> HostRound:
        """Wait for the oldest round in flight and read it."""
        flight = self._flight.popleft()
        rows = flight.news.tolist()
        accepted = [row[flight.block_size] for row in rows]
        if len(rows[0]) > flight.block_size + 1:
            self.drafts_nan = bool(rows[0][-1])
        tokens = [row[: n + 1] for row, n in zip(rows, accepted, strict=True)]
        here = {x: slot for slot, x in enumerate(self._sequences) if x is not None}
        slots = [here.get(x) for x in flight.sequences]
        for slot, n in zip(slots, accepted, strict=True):
            if slot is not None:
                self._lengths[slot] += n + 1
        return HostRound(tokens, accepted, flight.block_size, flight.logprobs, slots)
