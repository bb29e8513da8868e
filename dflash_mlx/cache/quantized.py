"""Key/value buffers that are quantized as mlx-lm's ``QuantizedKVCache`` is."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.generate import maybe_quantize_kv_cache
from mlx_lm.models.cache import KVCache, QuantizedKVCache

from .linear import GROWTH, VIEW, LinearCache, padded, round_up, stacked, write_rows

# Codes, scales and biases of ``mx.quantize``, each with a row a position.
Packed = tuple[mx.array, mx.array, mx.array]


@dataclass(frozen=True)
class KVQuantization:
    """How keys and values are quantized, and from when on.

    Attributes:
        bits: of a code.
        group_size: head dimensions that share a scale and a bias.
        start: a cache is quantized after the first forward that leaves it with so many rows.
    """

    bits: int
    group_size: int
    start: int

    def apply(self, caches: list[object]) -> None:
        """Replace those stock ``caches`` whose time has come, as mlx-lm does after each forward."""
        maybe_quantize_kv_cache(caches, self.start, self.group_size, self.bits)


class QuantizedCache(LinearCache):
    """A linear buffer of packed rows.

    mlx-lm's attention takes its quantized path for a cache that has ``bits``.

    Attributes:
        keys: packed ``[B, kv_heads, capacity, …]``, or None before the first write.
        values: like ``keys``.
        group_size, bits: of ``mx.quantize``.
    """

    def __init__(
        self,
        keys: Packed | None,
        values: Packed | None,
        offset: mx.array,
        group_size: int,
        bits: int,
    ):
        super().__init__(keys, values, offset)
        self.group_size = group_size
        self.bits = bits

    @classmethod
    def adopt(cls, rows: Sequence[QuantizedKVCache]) -> "QuantizedCache":
        """Take over the same layer's stock caches, one a batch row; they stay as they are."""
        offset = mx.array([c.offset for c in rows], mx.int32)
        keys, values = _stacked([c.keys for c in rows]), _stacked([c.values for c in rows])
        return cls(keys, values, offset, rows[0].group_size, rows[0].bits)

    def arrays(self) -> list[mx.array]:
        """What the next forward reads, to be evaluated."""
        return [*self.keys, *self.values]

    def hand_back(self, row: int, length: int, cache: QuantizedKVCache) -> None:
        """Make ``cache`` a stock cache of this buffer's ``row`` with ``length`` committed rows."""
        if self.keys is not None:
            cache.keys, cache.values = tree_map(
                lambda x: x[row : row + 1], (self.keys, self.values)
            )
            cache.offset = length

    def reserve(self, rows: int) -> None:
        """Make room for ``rows`` rows, and let attention see that many."""
        self.view = round_up(rows, VIEW)
        capacity = round_up(rows, GROWTH)
        if self.keys is not None and capacity > self.keys[0].shape[2]:
            self.keys, self.values = tree_map(
                lambda x: padded(x, capacity), (self.keys, self.values)
            )

    def write(self, keys: mx.array, values: mx.array) -> None:
        """Quantize rows and write them at the offset, without committing them."""
        packed = [mx.quantize(x, self.group_size, self.bits) for x in (keys, values)]
        if self.keys is None:
            capacity = round_up(self.view, GROWTH)
            self.keys, self.values = tree_map(lambda x: padded(x[:, :, :0], capacity), packed)
        self.keys, self.values = (
            tuple(write_rows(b, r, self.offset) for b, r in zip(buffer, rows, strict=True))
            for buffer, rows in zip((self.keys, self.values), packed, strict=True)
        )

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Packed, Packed]:
        """Write rows at the offset and return the keys and values that attention reads."""
        self.write(keys, values)
        return tree_map(lambda x: x[:, :, : self.view], (self.keys, self.values))


class QuantizingCache(LinearCache):
    """A linear buffer that is quantized in the middle of what is generated.

    In plain decoding a row before position ``begin`` attends to keys and values as they are, and a
    later one to all of them quantized. A block may hold rows of both kinds, and the host does not
    know which. While that can be so, attention reads both forms side by side, and the mask leaves
    each row its own; once all rows before ``begin`` are committed, :meth:`settled` packs them.

    Args:
        keys: as of :class:`LinearCache`.
        values: as of :class:`LinearCache`.
        offset: ``[B]`` int32, the number of committed rows.
        begin: of each batch row.
        quantization: bits and group size.
    """

    def __init__(
        self,
        keys: mx.array | None,
        values: mx.array | None,
        offset: mx.array,
        begin: Sequence[int],
        quantization: KVQuantization,
    ):
        super().__init__(keys, values, offset)
        self._begin = begin
        self._quantization = quantization
        self._mixed = False

    @classmethod
    def adopt(cls, rows: Sequence[KVCache], quantization: KVQuantization) -> "QuantizingCache":
        """Take over the same layer's stock caches, one a batch row; they stay as they are."""
        plain = LinearCache.adopt(rows)
        # The next row still finds the cache as it is, whatever its length: mlx-lm looks after it.
        begin = [max(quantization.start, c.offset + 1) for c in rows]
        return cls(plain.keys, plain.values, plain.offset, begin, quantization)

    def reserve(self, rows: int) -> None:
        """Make room for ``rows`` rows, and let attention see that many."""
        super().reserve(rows)
        self._mixed = rows > min(self._begin)

    def settled(self, length: int) -> LinearCache:
        """The packed buffer, if with ``length`` committed rows no row needs the other form."""
        if length < max(self._begin):
            return self
        group_size, bits = self._quantization.group_size, self._quantization.bits
        packed = [mx.quantize(x, group_size, bits) for x in (self.keys, self.values)]
        return QuantizedCache(*map(tuple, packed), self.offset, group_size, bits)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write rows at the offset and return the keys and values that attention reads."""
        seen = super().update_and_fetch(keys, values)
        return tuple(map(self._both, seen)) if self._mixed else seen

    def _both(self, x: mx.array) -> mx.array:
        """Rows as they are, and behind them what is left of them when they are quantized."""
        group_size, bits = self._quantization.group_size, self._quantization.bits
        coarse = mx.dequantize(*mx.quantize(x, group_size, bits), group_size, bits)
        return mx.concatenate([x, coarse], axis=2)

    def make_mask(
        self, n: int, window_size: int | None = None, return_array: bool = False
    ) -> mx.array:
        """Causal mask of the next ``n`` rows over the view, or over both forms of it."""
        mask = super().make_mask(n, window_size, return_array)
        if not self._mixed:
            return mask
        query = (self.offset[:, None] + mx.arange(n))[:, None, :, None]
        early = query < mx.array(self._begin)[:, None, None, None]
        return mx.concatenate([mask & early, mask & ~early], axis=-1)


def _stacked(parts: Sequence[Packed | None]) -> Packed | None:
    """Packed buffers of one row each as one batch."""
    present = [p for p in parts if p is not None]
    if not present:
        return None
    return tuple(
        stacked([None if p is None else p[i] for p in parts]) for i in range(len(present[0]))
    )
