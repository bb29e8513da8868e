"""Which buffer takes over which of mlx-lm's caches, and how they are given back."""

from collections.abc import Iterable, Sequence

from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, QuantizedKVCache, RotatingKVCache

from .linear import LinearCache
from .list import ListCache
from .protocol import StockCache, StockKVCache, TargetBuffer
from .quantized import KVQuantization, QuantizedCache, QuantizingCache
from .recurrent import RecurrentCache
from .ring import RingCache

_BUFFERS = {
    KVCache: LinearCache,
    QuantizedKVCache: QuantizedCache,
    RotatingKVCache: RingCache,
    ArraysCache: RecurrentCache,
}


def adopt(caches: Sequence[StockCache], quantization: KVQuantization | None = None) -> TargetBuffer:
    """Take over the same layer's stock caches, one a batch row; they stay as they are.

    Args:
        caches: all of one kind.
        quantization: what is still to be done to those that are not quantized yet.

    Raises:
        ValueError: the kinds differ.
    """
    kind, *others = {type(c) for c in caches}
    if others:
        raise ValueError(f"One layer's caches differ in kind: {', '.join(map(describe, caches))}.")
    if kind is CacheList:
        parts = zip(*(c.caches for c in caches), strict=True)
        return ListCache([adopt(part) for part in parts])
    if kind is KVCache and quantization is not None:
        return QuantizingCache.adopt(caches, quantization)
    return _BUFFERS[kind].adopt(caches)


def kind_of(buffers: Sequence[TargetBuffer]) -> list[object]:
    """Equal for buffers whose rows can be in one batch, layer by layer."""
    return [buffer.kind for buffer in buffers]


def release(caches: Sequence[StockCache]) -> None:
    """Drop what adopted ``caches`` hold, so that nothing is held twice.

    Their lengths stay: a cache that has a length and holds nothing is one that is in use.
    """
    for cache in leaves(caches):
        if isinstance(cache, ArraysCache):
            cache.cache = [None] * len(cache.cache)
        else:
            cache.keys = cache.values = None


def hand_back(
    buffers: Sequence[TargetBuffer],
    row: int,
    length: int,
    caches: list[StockCache],
    quantization: KVQuantization | None = None,
) -> None:
    """Leave the first ``length`` tokens of batch row ``row`` in ``caches``, which were released.

    As mlx-lm does, a cache that was quantized meanwhile takes the place of the one that it was.
    """
    for i, buffer in enumerate(buffers):
        caches[i] = buffer.hand_back(row, length, caches[i])
    if quantization is not None:
        quantization.apply(caches)


def leaves(caches: Iterable[StockCache]) -> list[StockKVCache | ArraysCache]:
    """The ``caches``, with the contents of a ``CacheList`` in its place."""
    found = []
    for cache in caches:
        found += leaves(cache.caches) if isinstance(cache, CacheList) else [cache]
    return found


def kv_caches(caches: Sequence[StockCache]) -> list[StockKVCache]:
    """Those of the ``caches`` that keep something of each position, and so know their length."""
    return [c for c in leaves(caches) if isinstance(c, StockKVCache)]


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
