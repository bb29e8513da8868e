"""A ring of keys and values for sliding-window layers, with a device-side offset."""

from collections.abc import Sequence

import mlx.core as mx
from mlx_lm.models.cache import RotatingKVCache

from .linear import VIEW, round_up

# Slots beyond the window. Two rounds may be in flight, and none of their rows may take the place of
# one that is still in the window at the last round that was read.
SLACK = 64
LARGEST_BLOCK = SLACK // 2


class RingCache:
    """One sliding layer's keys and values: position ``p`` lives in slot ``p mod slots``.

    As in :class:`~.linear.LinearCache`, a forward writes its rows at ``offset`` and a commit only
    moves the offset. A slot's position follows from the last one written; a row that was rejected
    is either overwritten or takes a position that has left the window.

    Attributes:
        keys: ``[B, kv_heads, slots, head_dim]``, or None before the first write.
        values: like ``keys``.
        offset: ``[B]`` int32, the number of committed rows.
        view: how many leading slots attention reads; all of them once the ring has wrapped.
    """

    def __init__(
        self, keys: mx.array | None, values: mx.array | None, offset: mx.array, window: int
    ):
        self.keys = keys
        self.values = values
        self.offset = offset
        self.view = 0
        self._window = window
        self._slots = window + SLACK

    @classmethod
    def adopt(cls, rows: Sequence[RotatingKVCache]) -> "RingCache":
        """Take over the same layer's stock caches, one a batch row; they stay as they are."""
        offset = mx.array([c.offset for c in rows], mx.int32)
        ring = cls(None, None, offset, rows[0].max_size)
        ring.keys = ring._laid_out([c.keys for c in rows], rows)
        ring.values = ring._laid_out([c.values for c in rows], rows)
        return ring

    def _laid_out(
        self, parts: Sequence[mx.array | None], rows: Sequence[RotatingKVCache]
    ) -> mx.array | None:
        present = [p for p in parts if p is not None]
        if not present:
            return None
        shape = (1, present[0].shape[1], self._slots, present[0].shape[3])
        laid_out = []
        for part, cache in zip(parts, rows, strict=True):
            empty = mx.zeros(shape, present[0].dtype)
            if part is not None:
                recent = cache._temporal_order(part)[:, :, -self._window :]
                first = cache.offset - recent.shape[2]
                slots = mx.arange(first, cache.offset)[:, None] % self._slots
                empty = mx.put_along_axis(
                    empty, mx.broadcast_to(slots, recent.shape), recent, axis=2
                )
            laid_out.append(empty)
        return mx.concatenate(laid_out)

    def commit(self, offset: mx.array, accepted: mx.array) -> None:
        """Move on to ``offset [B]``, past the anchor and ``accepted [B]`` drafts of a round."""
        self.offset = offset

    def arrays(self) -> list[mx.array]:
        """What the next forward reads, to be evaluated."""
        return [self.keys, self.values]

    def hand_back(self, row: int, length: int, cache: RotatingKVCache) -> None:
        """Make ``cache`` a stock cache of this ring's ``row`` with ``length`` committed rows."""
        if self.keys is not None:
            kept = min(length, self._window)
            slots = mx.arange(length - kept, length) % self._slots
            cache.keys = mx.take(self.keys[row : row + 1], slots, axis=2)
            cache.values = mx.take(self.values[row : row + 1], slots, axis=2)
            cache.offset, cache._idx = length, kept

    def reserve(self, rows: int) -> None:
        """Let attention see slots of positions below ``rows``; the ring itself never grows."""
        self.view = min(round_up(rows, VIEW), self._slots)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write rows at the offset and return the keys and values that attention reads.

        Raises:
            ValueError: more rows than a round may have.
        """
        n = keys.shape[2]
        if n > LARGEST_BLOCK:
            raise ValueError(f"A ring takes at most {LARGEST_BLOCK} rows at a time, not {n}.")
        if self.keys is None:
            shape = (*keys.shape[:2], self._slots)
            self.keys = mx.zeros((*shape, keys.shape[3]), keys.dtype)
            self.values = mx.zeros((*shape, values.shape[3]), values.dtype)
        slots = (self.offset[:, None] + mx.arange(n))[:, None, :, None] % self._slots
        self.keys, self.values = (
            mx.put_along_axis(buffer, mx.broadcast_to(slots, rows.shape), rows, axis=2)
            for buffer, rows in ((self.keys, keys), (self.values, values))
        )
        return self.keys[:, :, : self.view], self.values[:, :, : self.view]

    def make_mask(
        self, n: int, window_size: int | None = None, return_array: bool = False
    ) -> mx.array:
        """Causal mask of the next ``n`` rows within the window, ``[B, 1, n, view]`` bool."""
        last = self.offset[:, None] + (n - 1)
        position = last - (last - mx.arange(self.view)) % self._slots
        position = position[:, None, None, :]
        query = (self.offset[:, None] + mx.arange(n))[:, None, :, None]
        window = window_size or self._window
        return (position >= 0) & (position <= query) & (query < position + window)
