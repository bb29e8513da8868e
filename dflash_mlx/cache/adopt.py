"""Which buffer takes over which of mlx-lm's caches, and how they are given back."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, QuantizedKVCache, RotatingKVCache

from .linear import LinearCache
from .list import ListCache
from .quantized import KVQuantization, QuantizedCache, QuantizingCache
from .recurrent import RecurrentCache
from .ring import RingCache

RowCache = KVCache | QuantizedKVCache | RotatingKVCache
StockCache = RowCache | ArraysCache | CacheList

_BUFFERS = {
    KVCache: LinearCache,
    QuantizedKVCache: QuantizedCache,
    RotatingKVCache: RingCache,
    ArraysCache: RecurrentCache,
}


class Buffer(Protocol):
    """What takes over one layer's stock caches, and what a round asks of it.

    Beyond this it answers whatever calls mlx-lm's layer makes of its cache.
    """

    def reserve(self, rows: int) -> None: ...

    def commit(self, offset: mx.array, accepted: mx.array) -> None: ...

    def arrays(self) -> list[mx.array]: ...

    def hand_back(self, row: int, length: int, cache: StockCache) -> None: ...


def adopt(rows: Sequence[StockCache], quantization: KVQuantization | None = None) -> Buffer:
    """Take over the same layer's stock caches, one a batch row; they stay as they are.

    Args:
        rows: all of one kind.
        quantization: what is still to be done to those that are not quantized yet.

    Raises:
        ValueError: the kinds differ.
    """
    kind, *others = {type(c) for c in rows}
    if others:
        raise ValueError(f"One layer's caches differ in kind: {', '.join(map(describe, rows))}.")
    if kind is CacheList:
        parts = zip(*(c.caches for c in rows), strict=True)
        return ListCache([adopt(part) for part in parts])
    if kind is KVCache and quantization is not None:
        return QuantizingCache.adopt(rows, quantization)
    return _BUFFERS[kind].adopt(rows)


def release(caches: Sequence[StockCache]) -> None:
    """Drop what adopted ``caches`` hold, so that nothing is held twice.

    Their lengths stay: a cache that has a length and no rows is one that is in use.
    """
    for cache in leaves(caches):
        if isinstance(cache, ArraysCache):
            cache.cache = [None] * len(cache.cache)
        else:
            cache.keys = cache.values = None


def hand_back(
    buffers: Sequence[Buffer],
    length: int,
    caches: list[StockCache],
    quantization: KVQuantization | None = None,
) -> None:
    """Leave the first ``length`` rows of a single sequence in ``caches``, which were released.

    As mlx-lm does, a cache that was quantized meanwhile takes the place of the one that it was.
    """
    for i, buffer in enumerate(buffers):
        if isinstance(buffer, QuantizedCache) and not isinstance(caches[i], QuantizedKVCache):
            caches[i] = QuantizedKVCache(buffer.group_size, buffer.bits)
        buffer.hand_back(0, length, caches[i])
    if quantization is not None:
        quantization.apply(caches)


def leaves(caches: Iterable[StockCache]) -> list[RowCache | ArraysCache]:
    """The ``caches``, with the contents of a ``CacheList`` in its place."""
    found = []
    for cache in caches:
        found += leaves(cache.caches) if isinstance(cache, CacheList) else [cache]
    return found


def row_caches(caches: Sequence[StockCache]) -> list[RowCache]:
    """Those of the ``caches`` that keep a row a position."""
    return [c for c in leaves(caches) if isinstance(c, RowCache)]


def describe(cache: object) -> str:
    """A cache's kind, with its sizes, and what it forgets or rounds."""
    if isinstance(cache, RotatingKVCache):
        return f"RotatingKVCache(max_size={cache.max_size}, keep={cache.keep})"
    if isinstance(cache, QuantizedKVCache):
        return f"QuantizedKVCache(group_size={cache.group_size}, bits={cache.bits})"
    if isinstance(cache, ArraysCache):
        return f"ArraysCache(size={len(cache.cache)})"
    if isinstance(cache, CacheList):
        return f"CacheList({', '.join(map(describe, cache.caches))})"
    return type(cache).__name__


def unsupported(caches: Sequence[object]) -> list[str]:
    """Descriptions of those ``caches`` that no buffer takes over."""
    return sorted({describe(c) for c in caches if not _supported(c)})


def _supported(cache: object) -> bool:
    if type(cache) is CacheList:
        return all(map(_supported, cache.caches))
    return type(cache) in _BUFFERS
