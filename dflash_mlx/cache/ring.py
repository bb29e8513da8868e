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
    """One layer's keys and values of the first ``keep`` positions and of a window of the last ones.

    The first ``keep`` slots are pinned to their positions; position ``p`` beyond them lives in slot
    ``keep + (p - keep) mod ring``. As in :class:`~.linear.LinearCache`, a forward writes its rows
    at ``offset`` and a commit only moves the offset. A slot's position follows from the last one
    written; a row that was rejected is either overwritten or takes a position that has left the
    window. A row sees the ``keep`` first positions and the last ``max_size - keep``, itself
    included, which is what a step of mlx-lm's rotating cache sees.

    Attributes:
        keys: ``[B, kv_heads, slots, key_dim]``, or None before the first write.
        values: ``[B, kv_heads, slots, value_dim]``, or None before the first write.
        offset: ``[B]`` int32, the number of committed rows.
        view: how many leading slots attention reads; all of them once the ring has wrapped.
    """

    def __init__(
        self,
        keys: mx.array | None,
        values: mx.array | None,
        offset: mx.array,
        max_size: int,
        keep: int = 0,
    ):
        self.keys = keys
        self.values = values
        self.offset = offset
        self.view = 0
        self._keep = keep
        self._window = max_size - keep
        self._slots = max_size + SLACK

    @classmethod
    def adopt(cls, rows: Sequence[RotatingKVCache]) -> "RingCache":
        """Take over the same layer's stock caches, one a batch row; they stay as they are."""
        offset = mx.array([c.offset for c in rows], mx.int32)
        ring = cls(None, None, offset, rows[0].max_size, rows[0].keep)
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
                pinned, recent = self._kept(cache.offset)
                ordered = cache._temporal_order(part)
                held = mx.concatenate(
                    [
                        ordered[:, :, : pinned.size],
                        ordered[:, :, ordered.shape[2] - recent.size :],
                    ],
                    axis=2,
                )
                slots = self._slot(mx.concatenate([pinned, recent]))[:, None]
                empty = mx.put_along_axis(empty, mx.broadcast_to(slots, held.shape), held, axis=2)
            laid_out.append(empty)
        return mx.concatenate(laid_out)

    def _kept(self, length: int) -> tuple[mx.array, mx.array]:
        """The pinned positions and the recent ones that ``length`` committed rows leave."""
        pinned = min(length, self._keep)
        return mx.arange(pinned), mx.arange(max(pinned, length - self._window), length)

    def _slot(self, position: mx.array) -> mx.array:
        """Where positions live."""
        if not self._keep:
            return position % self._slots
        turned = self._keep + (position - self._keep) % (self._slots - self._keep)
        return mx.where(position < self._keep, position, turned)

    def commit(self, offset: mx.array, accepted: mx.array) -> None:
        """Move on to ``offset [B]``, past the anchor and ``accepted [B]`` drafts of a round."""
        self.offset = offset

    def arrays(self) -> list[mx.array]:
        """What the next forward reads, to be evaluated."""
        return [self.keys, self.values]

    def hand_back(self, row: int, length: int, cache: RotatingKVCache) -> None:
        """Make ``cache`` a stock cache of this ring's ``row`` with ``length`` committed rows."""
        if self.keys is not None:
            slots = self._slot(mx.concatenate(self._kept(length)))
            cache.keys = mx.take(self.keys[row : row + 1], slots, axis=2)
            cache.values = mx.take(self.values[row : row + 1], slots, axis=2)
            cache.offset, cache._idx = length, slots.size

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
        slots = self._slot((self.offset[:, None] + mx.arange(n))[:, None, :, None])
        self.keys, self.values = (
            mx.put_along_axis(buffer, mx.broadcast_to(slots, rows.shape), rows, axis=2)
            for buffer, rows in ((self.keys, keys), (self.values, values))
        )
        return self.keys[:, :, : self.view], self.values[:, :, : self.view]

    def make_mask(
        self, n: int, window_size: int | None = None, return_array: bool = False
    ) -> mx.array:
        """Causal mask of the next ``n`` rows within the window, ``[B, 1, n, view]`` bool."""
        query = (self.offset[:, None] + mx.arange(n))[:, None, :, None]
        window = min(window_size or self._window, self._window)
        slot, last = mx.arange(self.view), self.offset[:, None] + (n - 1)
        turned = (last - (last - slot) % (self._slots - self._keep))[:, None, None, :]
        recent = (turned >= self._keep) & (turned <= query) & (query < turned + window)
        return mx.where(slot < self._keep, slot <= query, recent)
