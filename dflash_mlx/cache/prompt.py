"""A prompt cache that also remembers the drafter's context."""

from collections.abc import Iterable, Sequence

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from .linear import LinearCache


class PromptCache(list):
    """mlx-lm's list of caches, and the context K/V of the same tokens.

    It can be used, trimmed and saved as mlx-lm's own list. The context is only about speed: after
    a prompt cache that has none, a drafter knows the new tokens alone.

    Args:
        caches: stock caches, one a layer.
    """

    def __init__(self, caches: Iterable[KVCache]):
        super().__init__(caches)
        self._context: Sequence[LinearCache] | None = None
        self._end = 0

    def take_context(self, length: int) -> Sequence[LinearCache] | None:
        """The context of the first ``length`` positions, which the caller now owns.

        Returns:
            None if there is none, or if the caches went further without it.
        """
        context, self._context = self._context, None
        if context is None or self._end < length:
            return None
        for cache in context:
            cache.offset = mx.array([length], mx.int32)
        return context

    def keep_context(self, context: Sequence[LinearCache] | None, length: int) -> None:
        """Remember the context of the first ``length`` positions."""
        self._context, self._end = context, length
