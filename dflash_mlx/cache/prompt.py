"""A prompt cache that also remembers the drafter's context."""

import weakref
from collections.abc import Iterable, Sequence

import mlx.core as mx
from mlx_lm.models.cache import KVCache, QuantizedKVCache

from .adopt import leaves
from .protocol import ContextBuffer, StockCache

# How much of each position is compared to tell whether it is still the same token's.
MARK = 8


class PromptCache(list):
    """mlx-lm's list of caches, and the context K/V of the same tokens.

    Between generations it can be used, trimmed and saved as mlx-lm's own list. The context is only
    about speed: after a prompt cache that has none, a drafter knows the new tokens alone.

    Args:
        caches: stock caches, one a layer.
    """

    def __init__(self, caches: Iterable[StockCache]):
        super().__init__(caches)
        self._context: Sequence[ContextBuffer] | None = None
        self._end = 0
        self._mark: mx.array | None = None
        # Weak, so that a copy of the cache does not copy the drafter.
        self._drafter: weakref.ref[object] | None = None

    def take_context(self, length: int, drafter: object) -> Sequence[ContextBuffer] | None:
        """The context of the first ``length`` positions, which the caller now owns.

        Returns:
            None if there is none, if it is another drafter's, if the caches went further without
            it or hold other tokens by now, or if they were trimmed to before its first position.
        """
        context, self._context = self._context, None
        if context is None or self._drafter() is not drafter:
            return None
        if not context[0].start.item() <= length <= self._end:
            return None
        if self._mark is not None:
            mark = _mark(self, length)
            if mark is None or not mx.array_equal(mark, self._mark[:length]):
                return None
        for cache in context:
            cache.rewind(length)
        return context

    def keep_context(
        self, context: Sequence[ContextBuffer] | None, length: int, drafter: object
    ) -> None:
        """Remember the context of the first ``length`` positions, which ``drafter`` made.

        Without a context, as after plain decoding, the one that was there is forgotten.
        """
        self._context, self._end = context, length
        self._drafter = None if context is None else weakref.ref(drafter)
        self._mark = _mark(self, length)
        # Whoever continues may be in another thread, where nothing of this one can be evaluated.
        mx.eval([(*cache.arrays(), cache.offset) for cache in context or ()])


def _mark(caches: Iterable[StockCache], length: int) -> mx.array | None:
    """A little of each of the first ``length`` positions; None if all caches rotate.

    A cache that was trimmed and then continued with other tokens has the old ones' length.
    """
    for cache in leaves(caches):
        if isinstance(cache, KVCache | QuantizedKVCache) and cache.keys is not None:
            keys = cache.keys[0] if isinstance(cache, QuantizedKVCache) else cache.keys
            mark = mx.contiguous(keys[0, 0, :length, :MARK])
            mx.eval(mark)
            return mark
    return None
