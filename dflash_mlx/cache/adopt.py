"""Which buffer takes over which of mlx-lm's caches."""

from collections.abc import Sequence
from typing import Protocol, Self

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from .linear import LinearCache
from .recurrent import RecurrentCache
from .ring import RingCache

StockCache = KVCache | RotatingKVCache | ArraysCache


class Buffer(Protocol):
    """What takes over one layer's stock caches, and what a round asks of it.

    Beyond this it answers whatever calls mlx-lm's layer makes of its cache.
    """

    @classmethod
    def adopt(cls, rows: Sequence[StockCache]) -> Self: ...

    def reserve(self, rows: int) -> None: ...

    def commit(self, offset: mx.array, accepted: mx.array) -> None: ...

    def arrays(self) -> list[mx.array]: ...

    def hand_back(self, row: int, length: int, cache: StockCache) -> None: ...


def adopt(rows: Sequence[StockCache]) -> Buffer:
    """Take over the same layer's stock caches, one a batch row; they stay as they are."""
    kinds = {KVCache: LinearCache, RotatingKVCache: RingCache, ArraysCache: RecurrentCache}
    return kinds[type(rows[0])].adopt(rows)


def describe(cache: object) -> str:
    """A cache's kind, with its sizes."""
    if isinstance(cache, RotatingKVCache):
        return f"RotatingKVCache(max_size={cache.max_size}, keep={cache.keep})"
    if isinstance(cache, ArraysCache):
        return f"ArraysCache(size={len(cache.cache)})"
    return type(cache).__name__


def unsupported(caches: Sequence[object]) -> list[str]:
    """Descriptions of those ``caches`` that no buffer takes over."""
    ours = (KVCache, RotatingKVCache, ArraysCache)
    return sorted(
        {describe(c) for c in caches if type(c) not in ours or (type(c) is ours[1] and c.keep)}
    )
