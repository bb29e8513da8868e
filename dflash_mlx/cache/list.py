"""Several buffers of one layer, as mlx-lm's ``CacheList`` holds several caches."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import mlx.core as mx
from mlx_lm.models.cache import CacheList

if TYPE_CHECKING:
    from .adopt import Buffer


class ListCache:
    """A layer's buffers, each of which the layer addresses by its place.

    Args:
        buffers: what took over the caches of the list, in their order.
    """

    def __init__(self, buffers: Sequence["Buffer"]):
        self._buffers = tuple(buffers)

    def __getitem__(self, index: int) -> "Buffer":
        return self._buffers[index]

    def reserve(self, rows: int) -> None:
        """Make room for ``rows`` rows everywhere."""
        for buffer in self._buffers:
            buffer.reserve(rows)

    def commit(self, offset: mx.array, accepted: mx.array) -> None:
        """Move on to ``offset [B]``, past the anchor and ``accepted [B]`` drafts of a round."""
        for buffer in self._buffers:
            buffer.commit(offset, accepted)

    def arrays(self) -> list[mx.array]:
        """What the next forward reads, to be evaluated."""
        return [array for buffer in self._buffers for array in buffer.arrays()]

    def hand_back(self, row: int, length: int, cache: CacheList) -> None:
        """Make ``cache`` a stock list of this one's ``row`` with ``length`` committed rows."""
        for buffer, part in zip(self._buffers, cache.caches, strict=True):
            buffer.hand_back(row, length, part)
