"""What a round asks of the buffers that keep each layer's state: all, the target's, the drafter's.

An offset lives on the device, so nothing is ever rolled back: a forward of ``n`` positions writes
them at the offset and leaves the offset alone; a commit moves it. What lies past the offset is
masked out, and overwritten by the next forward.
"""

from collections.abc import Sequence
from typing import Protocol, Self

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, QuantizedKVCache, RotatingKVCache

StockKVCache = KVCache | QuantizedKVCache | RotatingKVCache
StockCache = StockKVCache | ArraysCache | CacheList


class Buffer(Protocol):
    """One layer's state in a round."""

    def reserve(self, length: int) -> None:
        """Make room for positions below ``length``, and let attention see that many."""
        ...

    def commit(self, offset: mx.array, accepted: mx.array) -> None:
        """Move on to ``offset [B]``, past the anchor and ``accepted [B]`` drafts of a round."""
        ...

    def arrays(self) -> list[mx.array]:
        """What the last forward wrote, whatever is accepted of it, to be evaluated."""
        ...

    def put(self, slot: int, other: Self, length: int) -> None:
        """Write the only row of ``other``, of the same kind, into batch row ``slot``, in place.

        Args:
            slot: the batch row, whose own contents nobody needs any more.
            other: a buffer of one batch row.
            length: its committed positions.
        """
        ...

    def select(self, rows: Sequence[int]) -> None:
        """Be the batch of these rows in this order; a row may come several times, or not at all."""
        ...


class TargetBuffer(Buffer, Protocol):
    """What takes over one layer's stock caches of the target, one a batch row.

    Beyond this it answers whatever calls mlx-lm's layer makes of its cache.
    """

    @property
    def kind(self) -> object:
        """Equal for buffers of which one can :meth:`put` the other's row."""
        return type(self)

    def settled(self, length: int) -> "TargetBuffer":
        """What takes this buffer's place when ``length`` positions are committed."""
        return self

    def replayed(self) -> list[mx.array]:
        """What the last commit made of the acceptance, to be evaluated."""
        return []

    def hand_back(self, row: int, length: int, cache: StockCache) -> StockCache:
        """Leave ``length`` positions of batch row ``row`` in a stock cache.

        Returns:
            ``cache``, or what takes its place if the buffer is of another kind by now.
        """
        ...


class ContextBuffer(Buffer, Protocol):
    """The context K/V of one drafter layer.

    Attributes:
        offset: ``[B]`` int32, one past the last committed position.
        start: ``[B]`` int32, the first position that may be attended to.
    """

    offset: mx.array
    start: mx.array

    def write(self, keys: mx.array, values: mx.array) -> None:
        """Write ``[B, kv_heads, n, head_dim]`` at the offset, without committing them."""
        ...

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write at the offset, and return the keys and values that attention reads."""
        ...

    def positions(self, n: int) -> mx.array:
        """The positions ``[1 or B, view]`` of what is read once the next ``n`` are written.

        Where nothing was written it is below ``start``, or past what the next ``n`` reach.
        """
        ...

    def rewind(self, length: int) -> None:
        """Go back to ``length`` committed positions."""
        ...
