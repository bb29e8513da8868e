"""What a round starts from and leaves behind, all of it on the device."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from ..cache.linear import put_row
from ..cache.protocol import Buffer, ContextBuffer, TargetBuffer
from .history import History


@dataclass
class State:
    """The state of ``B`` sequences between two rounds.

    Attributes:
        anchor: ``[B]`` int32, the last committed token of each row, not yet in the caches.
        offset: ``[B]`` int32, the anchor's position, and the number of committed positions.
        caches: the target's, one a layer.
        context: the drafter's context K/V, one a drafter layer, or None to decode plainly. Its
            offset is the state's, less one for each of ``pending``.
        pending: features ``[B, 1, taps * hidden]`` of plain rounds, not yet in the context K/V.
        history: the tokens so far, when penalties look back.
        live: ``[B]`` bool, which batch rows hold a sequence, or None if all do. The others write
            the first positions of their buffers over and over.
        committed: all tokens up to the anchor ``[t]`` of each batch row, by number; set by the host
            for user's processors.
    """

    anchor: mx.array
    offset: mx.array
    caches: Sequence[TargetBuffer]
    context: Sequence[ContextBuffer] | None = None
    pending: list[mx.array] = field(default_factory=list)
    history: History | None = None
    live: mx.array | None = None
    committed: dict[int, mx.array] = field(default_factory=dict)

    @property
    def buffers(self) -> list[Buffer]:
        return [*self.caches, *(self.context or ())]

    def reserve(self, length: int) -> None:
        """Make room for positions below ``length`` everywhere."""
        for buffer in self.buffers:
            buffer.reserve(length)
        if self.history is not None:
            self.history.reserve(length)

    def settle(self, length: int) -> None:
        """Let the caches change their form when ``length`` positions are committed."""
        self.caches = [c.settled(length) for c in self.caches]

    def advance(self, tokens: mx.array, accepted: mx.array) -> None:
        """Commit the anchor and ``accepted [B]`` drafts; the bonus becomes the anchor.

        Args:
            tokens: ``[B, n]``, whose entry ``accepted`` is the bonus.
        """
        self.anchor = mx.take_along_axis(tokens, accepted[:, None], axis=1)[:, 0]
        self.offset = self.offset + accepted + 1
        if self.live is not None:
            self.offset = mx.where(self.live, self.offset, 0)
        for buffer in self.caches if self.pending else self.buffers:
            buffer.commit(self.offset, accepted)

    def put(self, slot: int, other: "State", length: int) -> None:
        """Write a state of one sequence into batch row ``slot``; the other rows stay in place.

        Both have no features pending, and both a context or none.

        Args:
            slot: a free batch row.
            other: the sequence's state, which is not used any more.
            length: its committed positions.
        """
        self.anchor = put_row(self.anchor, slot, other.anchor)
        self.offset = put_row(self.offset, slot, other.offset)
        for buffer, new in zip(self.buffers, other.buffers, strict=True):
            buffer.put(slot, new, length)
        if self.history is None and other.history is not None:
            self.history = History([[]] * self.anchor.shape[0], mx.zeros_like(self.offset))
        if other.history is not None:
            self.history.put(slot, other.history)

    def select(self, rows: Sequence[int]) -> None:
        """Be the state of these batch rows; a row may come several times."""
        index = mx.array(rows)
        self.anchor, self.offset = self.anchor[index], self.offset[index]
        for buffer in self.buffers:
            buffer.select(rows)
        if self.history is not None:
            self.history = self.history.rows(index)

    def arrays(self) -> list[mx.array]:
        """What the buffers got in the last round, whatever was accepted of it."""
        written = [array for buffer in self.buffers for array in buffer.arrays()]
        return [*written, *self.pending]

    def replayed(self) -> list[mx.array]:
        """What the last commit made of the acceptance, such as recurrent states."""
        return [array for cache in self.caches for array in cache.replayed()]
