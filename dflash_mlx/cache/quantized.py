"""Key/value buffers that are quantized as mlx-lm's ``QuantizedKVCache`` is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import mlx.core as mx
from mlx_lm.generate import maybe_quantize_kv_cache
from mlx_lm.models.cache import KVCache, QuantizedKVCache

from .linear import LinearCache, Packed, each


@dataclass(frozen=True)
class KVQuantization:
    """How keys and values are quantized, and from when on.

    Attributes:
        bits: of a code.
        group_size: head dimensions that share a scale and a bias.
        start: a cache is quantized after the first forward that leaves it with so many positions.
    """

    bits: int
    group_size: int
    start: int

    def apply(self, caches: list[object]) -> None:
        """Replace those stock ``caches`` whose time has come, as mlx-lm does after each forward."""
        maybe_quantize_kv_cache(caches, self.start, self.group_size, self.bits)


class QuantizedCache(LinearCache):
    """A linear buffer of packed keys and values.

    mlx-lm's attention takes its quantized path for a cache that has ``bits``.

    Attributes:
        keys: packed ``[B, kv_heads, capacity, …]``, or None before the first write.
        values: like ``keys``.
        group_size, bits: of ``mx.quantize``.
    """

    def __init__(
        self,
        offset: mx.array,
        keys: Packed | None,
        values: Packed | None,
        group_size: int,
        bits: int,
    ):
        super().__init__(offset, keys, values)
        self.group_size = group_size
        self.bits = bits

    @property
    def kind(self) -> object:
        return type(self), self.group_size, self.bits

    @classmethod
    def adopt(cls, caches: Sequence[QuantizedKVCache]) -> Self:
        """Take over the same layer's stock caches, one a batch row; they stay as they are."""
        return super().adopt(caches, caches[0].group_size, caches[0].bits)

    def write(self, keys: mx.array, values: mx.array) -> None:
        """Quantize keys and values and write them at the offset, without committing them."""
        super().write(*(mx.quantize(x, self.group_size, self.bits) for x in (keys, values)))

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Packed, Packed]:
        """Write at the offset, and return the keys and values that attention reads."""
        self.write(keys, values)
        return each(lambda x: x[:, :, : self.view], (self.keys, self.values))

    def hand_back(
        self, row: int, length: int, cache: KVCache | QuantizedKVCache
    ) -> QuantizedKVCache:
        if not isinstance(cache, QuantizedKVCache):
            cache = QuantizedKVCache(self.group_size, self.bits)
        return super().hand_back(row, length, cache)


class QuantizingCache(LinearCache):
    """A linear buffer that is quantized in the middle of what is generated.

    In plain decoding a query before position ``begin`` attends to keys and values as they are, and
    a later one to all of them quantized. A block may hold queries of both kinds, and the host does
    not know which. While that can be so, attention reads both forms side by side, and the mask
    leaves each query its own; once all positions before ``begin`` are committed, :meth:`settled`
    packs them.

    Args:
        offset, keys, values: as of :class:`LinearCache`.
        begin: of each batch row.
        quantization: bits and group size.
    """

    def __init__(
        self,
        offset: mx.array,
        keys: mx.array | None,
        values: mx.array | None,
        begin: Sequence[int],
        quantization: KVQuantization,
    ):
        super().__init__(offset, keys, values)
        self._begin = begin
        self._settings = quantization.group_size, quantization.bits
        self._mixed = False

    @property
    def kind(self) -> object:
        return type(self), self._settings

    @classmethod
    def adopt(cls, caches: Sequence[KVCache], quantization: KVQuantization) -> Self:
        """Take over the same layer's stock caches, one a batch row; they stay as they are."""
        # The next query still finds the cache as it is, whatever its length: mlx-lm looks after it.
        begin = [max(quantization.start, c.offset + 1) for c in caches]
        return super().adopt(caches, begin, quantization)

    def reserve(self, length: int) -> None:
        super().reserve(length)
        self._mixed = length > min(self._begin)

    def put(self, slot: int, other: Self, length: int) -> None:
        super().put(slot, other, length)
        self._begin = [*self._begin[:slot], *other._begin, *self._begin[slot + 1 :]]

    def select(self, rows: Sequence[int]) -> None:
        super().select(rows)
        self._begin = [self._begin[row] for row in rows]

    def settled(self, length: int) -> LinearCache:
        """The packed buffer, if with ``length`` committed positions none needs the other form."""
        if length < max(self._begin):
            return self
        packed = (mx.quantize(x, *self._settings) for x in (self.keys, self.values))
        return QuantizedCache(self.offset, *packed, *self._settings)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write at the offset, and return the keys and values that attention reads."""
        seen = super().update_and_fetch(keys, values)
        return tuple(map(self._both, seen)) if self._mixed else seen

    def _both(self, x: mx.array) -> mx.array:
        """Keys or values as they are, and behind them what quantization leaves of them."""
        coarse = mx.dequantize(*mx.quantize(x, *self._settings), *self._settings)
        return mx.concatenate([x, coarse], axis=2)

    def make_mask(
        self, n: int, window_size: int | None = None, return_array: bool = False
    ) -> mx.array:
        """Causal mask of the next ``n`` positions over the view, or over both forms of it."""
        mask = super().make_mask(n, window_size, return_array)
        if not self._mixed:
            return mask
        query = (self.offset[:, None] + mx.arange(n))[:, None, :, None]
        early = query < mx.array(self._begin)[:, None, None, None]
        return mx.concatenate([mask & early, mask & ~early], axis=-1)
