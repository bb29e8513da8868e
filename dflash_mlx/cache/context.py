"""The buffers that a drafter keeps its context K/V in: of all positions, or of a window."""

import copy
from collections.abc import Sequence
from typing import Self

import mlx.core as mx

from .linear import VIEW, LinearBuffer, put_row, round_up, stacked
from .protocol import ContextBuffer
from .ring import RingBuffer


class _FromStart:
    """What the rows of a context have beside their keys and values."""

    def put(self, slot: int, other: Self, length: int) -> None:
        super().put(slot, other, length)
        self.start = put_row(self.start, slot, other.start)

    def select(self, rows: Sequence[int]) -> None:
        super().select(rows)
        self.start = self.start[mx.array(rows)]


class LinearContext(_FromStart, LinearBuffer, ContextBuffer):
    """The context of a layer that sees all of it.

    Args:
        start: ``[B]`` int32, the first position, and the offset to begin with.
    """

    def __init__(self, start: mx.array):
        super().__init__(start)
        self.start = start

    def positions(self, n: int) -> mx.array:
        return mx.arange(self.view)[None]

    def rewind(self, length: int) -> None:
        self.offset = mx.full(self.offset.shape, length, mx.int32)


class WindowContext(_FromStart, RingBuffer, ContextBuffer):
    """The context of a sliding layer, a ring.

    Args:
        start: ``[B]`` int32, the first position, and the offset to begin with.
        window: committed positions that must stay.
        block_size: the most positions that are written and not all committed.
    """

    def __init__(self, start: mx.array, window: int, block_size: int):
        # A block beyond the offset, and two rounds that were in flight when a generation stopped.
        super().__init__(start, round_up(window + 3 * block_size, VIEW))
        self.start = start
        self._block_size = block_size

    def positions(self, n: int) -> mx.array:
        return self._position(mx.arange(self.view), n)

    def rewind(self, length: int) -> None:
        """Go back to ``length`` committed positions. Those that were overwritten are missing."""
        # A block beyond the offset may have taken the slots of the positions before this one.
        oldest = self.offset + (self._block_size - self._slots)
        self.start = mx.minimum(mx.maximum(self.start, oldest), length)
        self.offset = mx.full(self.offset.shape, length, mx.int32)


def stack(contexts: Sequence[ContextBuffer]) -> ContextBuffer:
    """Several sequences' buffers of the same layer as one, a batch row each; they stay."""
    whole = copy.copy(contexts[0])
    whole.keys, whole.values = (
        stacked([getattr(c, name) for c in contexts]) for name in ("keys", "values")
    )
    whole.offset = mx.concatenate([c.offset for c in contexts])
    whole.start = mx.concatenate([c.start for c in contexts])
    return whole
