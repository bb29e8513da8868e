"""The queue between host and device: a round is submitted before the last one is read."""

from collections import deque
from dataclasses import dataclass

import mlx.core as mx

from ..drafter.proposal import Drafting
from ..target.stock import PlainTarget
from ..target.target import Target
from .choose import Chooser
from .round import run_round, write_pending
from .state import State


@dataclass(frozen=True)
class HostRound:
    """A round as the host reads it.

    Attributes:
        tokens: the emitted tokens of each batch row, the bonus last.
        accepted: accepted drafts of each batch row.
        block_size: tokens verified, anchor included.
        logprobs: ``[B, block_size, vocab]`` on the device, or None.
    """

    tokens: list[list[int]]
    accepted: list[int]
    block_size: int
    logprobs: mx.array | None


class RoundQueue:
    """Submits rounds and reads their tokens, in order.

    The host knows how far a row can have come, not how far it has: buffers are sized by that
    bound, and it is tightened when a round is read.

    Args:
        target: verifies.
        drafter: drafts, or None to decode plainly.
        chooser: draws and accepts.
        state: the first round's.
        lengths: the state's offsets, one a batch row.
    """

    def __init__(
        self,
        target: Target | PlainTarget,
        drafter: Drafting | None,
        chooser: Chooser,
        state: State,
        lengths: list[int],
    ):
        self.state = state
        self._target = target
        self._drafter = drafter
        self._chooser = chooser
        self._lengths = list(lengths)
        self._flight: deque[tuple[int, mx.array, mx.array | None]] = deque()

    @property
    def in_flight(self) -> int:
        """Rounds submitted and not yet read."""
        return len(self._flight)

    @property
    def tokens_in_flight(self) -> int:
        """The most tokens that the rounds in flight can emit."""
        return sum(size for size, _, _ in self._flight)

    @property
    def next_size(self) -> int | None:
        """Block size of the round that will be read next, or None if none is in flight."""
        return self._flight[0][0] if self._flight else None

    @property
    def lengths(self) -> list[int]:
        """Committed positions of each batch row, after the rounds read so far."""
        return list(self._lengths)

    def submit(self, block_size: int) -> None:
        """Queue a round on the device. The host does not wait."""
        self.state.settle(min(self._lengths))
        self.state.reserve(max(self._lengths) + self.tokens_in_flight + block_size)
        verdict = run_round(self._target, self._drafter, self._chooser, self.state, block_size)
        # One array a round is read: the tokens, with the accepted count behind them.
        news = mx.concatenate([verdict.tokens, verdict.accepted[:, None]], axis=1)
        extra = [x for x in (verdict.logprobs, self._chooser.drafts_nan) if x is not None]
        # async_eval returns when few of its operations are left. In a call of their own, the head
        # and the choice are what the device is busy with while the host builds the next round.
        mx.async_eval(*self.state.arrays())
        mx.async_eval(self.state.anchor, self.state.offset, news, *self.state.replayed(), *extra)
        self._flight.append((block_size, news, verdict.logprobs))

    @property
    def drafts_nan(self) -> bool:
        """Whether the drafter's logits hold NaN, once a round with drafts was read."""
        flag = self._chooser.drafts_nan
        return flag is not None and flag.item()

    def read(self) -> HostRound:
        """Wait for the oldest round in flight and read it."""
        block_size, news, logprobs = self._flight.popleft()
        rows = news.tolist()
        accepted = [row[-1] for row in rows]
        tokens = [row[: n + 1] for row, n in zip(rows, accepted, strict=True)]
        self._lengths = [x + n + 1 for x, n in zip(self._lengths, accepted, strict=True)]
        return HostRound(tokens, accepted, block_size, logprobs)

    def write_anchor(self) -> None:
        """Make sure that the anchor itself is in the caches and the context K/V.

        A round in flight has written it already. Its tokens are not read: the state then stands
        past the positions that :attr:`lengths` counts, and those are all valid.
        """
        write_pending(self._drafter, self.state)
        if not self._flight:
            self.state.reserve(max(self._lengths) + 1)
            _, features = self._target.forward(self.state.anchor[:, None], self.state.caches)
            if self.state.context is not None:
                self._drafter.write_context(features, self.state.context)
            for buffer in self.state.caches:
                buffer.commit(self.state.offset + 1, mx.zeros_like(self.state.offset))
        self._flight.clear()
