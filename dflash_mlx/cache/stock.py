"""A stock cache as it is, for targets that decode plainly alone."""

import mlx.core as mx
from mlx.utils import tree_flatten

from .protocol import StockCache, TargetBuffer
from .quantized import KVQuantization


class StockBuffer(TargetBuffer):
    """Moves on with every forward: there is no going back, so each must be of committed tokens.

    Args:
        cache: mlx-lm's.
        quantization: what is still to be done to it.
    """

    def __init__(self, cache: StockCache, quantization: KVQuantization | None = None):
        self.cache = cache
        self._quantization = quantization

    def reserve(self, length: int) -> None:
        pass

    def commit(self, offset: mx.array, accepted: mx.array) -> None:
        pass

    def settled(self, length: int) -> TargetBuffer:
        if self._quantization is not None:
            caches = [self.cache]
            self._quantization.apply(caches)
            (self.cache,) = caches
        return self

    def arrays(self) -> list[mx.array]:
        return [x for _, x in tree_flatten(self.cache.state) if isinstance(x, mx.array)]
