"""What a round starts from and leaves behind, all of it on the device."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx

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
        committed: all tokens up to the anchor ``[t]``, set by the host for user's processors.
    """

    anchor: mx.array
    offset: mx.array
    caches: Sequence[TargetBuffer]
    context: Sequence[ContextBuffer] | None = None
    pending: list[mx.array] = field(default_factory=list)
    history: History | None = None
    committed: mx.array | None = None

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
        for buffer in self.caches if self.pending else self.buffers:
            buffer.commit(self.offset, accepted)

    def arrays(self) -> list[mx.array]:
        """What the buffers got in the last round, whatever was accepted of it."""
        written = [array for buffer in self.buffers for array in buffer.arrays()]
        return [*written, *self.pending]

    def replayed(self) -> list[mx.array]:
        """What the last commit made of the acceptance, such as recurrent states."""
        return [array for cache in self.caches for array in cache.replayed()]
