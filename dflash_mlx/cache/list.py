"""Several buffers of one layer, as mlx-lm's ``CacheList`` holds several caches."""

from collections.abc import Sequence

import mlx.core as mx
from mlx_lm.models.cache import CacheList

from .protocol import TargetBuffer


class ListCache(TargetBuffer):
    """A layer's buffers, each of which the layer addresses by its place.

    Args:
        buffers: what took over the caches of the list, in their order.
    """

    def __init__(self, buffers: Sequence[TargetBuffer]):
        self._buffers = list(buffers)

    @property
    def kind(self) -> object:
        return [buffer.kind for buffer in self._buffers]

    def __getitem__(self, index: int) -> TargetBuffer:
        return self._buffers[index]

    def reserve(self, length: int) -> None:
        for buffer in self._buffers:
            buffer.reserve(length)

    def commit(self, offset: mx.array, accepted: mx.array) -> None:
        for buffer in self._buffers:
            buffer.commit(offset, accepted)

    def arrays(self) -> list[mx.array]:
        return [array for buffer in self._buffers for array in buffer.arrays()]

    def replayed(self) -> list[mx.array]:
        return [array for buffer in self._buffers for array in buffer.replayed()]

    def put(self, slot: int, other: "ListCache", length: int) -> None:
        for buffer, part in zip(self._buffers, other._buffers, strict=True):
            buffer.put(slot, part, length)

    def select(self, rows: Sequence[int]) -> None:
        for buffer in self._buffers:
            buffer.select(rows)

    def hand_back(self, row: int, length: int, cache: CacheList) -> CacheList:
        for buffer, part in zip(self._buffers, cache.caches, strict=True):
            buffer.hand_back(row, length, part)
        return cache
