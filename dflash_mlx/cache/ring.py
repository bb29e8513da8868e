"""A ring of keys and values, whose memory does not grow with the text."""

from collections.abc import Sequence

import mlx.core as mx
from mlx_lm.models.cache import RotatingKVCache

from .linear import VIEW, KVBuffer, padded, round_up, stacked
from .protocol import TargetBuffer

# Slots beyond the window. Two rounds may be in flight, and none of what they write may take the
# place of a position that is still in the window at the last round that was read.
SLACK = 64
LARGEST_BLOCK = SLACK // 2


class RingBuffer(KVBuffer):
    """Keys and values of the first ``keep`` positions and of as many of the last as there is room.

    The first ``keep`` slots are pinned to their positions; position ``p`` beyond them lives in slot
    ``keep + (p - keep) mod (slots - keep)``. A slot's position follows from the last one written:
    what was written and not committed is either overwritten or takes a position that has left the
    window.

    Attributes:
        view: how many leading slots attention reads; all of them once the ring may have wrapped.
    """

    def __init__(self, offset: mx.array, slots: int, keep: int = 0):
        super().__init__(offset)
        self._slots = slots
        self._keep = keep

    def reserve(self, length: int) -> None:
        self.view = min(round_up(length, VIEW), self._slots)

    def write(self, keys: mx.array, values: mx.array) -> None:
        """Write ``[B, kv_heads, n, width]`` at the offset, without committing them.

        More positions than slots must be committed whole; the last ones stay.
        """
        if self.keys is None:
            self.keys, self.values = (padded(x[:, :, :0], self._slots) for x in (keys, values))
        n = keys.shape[2]
        first = max(n - self._slots, 0)
        slots = self._slot((self.offset[:, None] + mx.arange(first, n))[:, None, :, None])
        self.keys = _put(self.keys, slots, keys[:, :, first:])
        self.values = _put(self.values, slots, values[:, :, first:])

    def _slot(self, position: mx.array) -> mx.array:
        """Where positions live."""
        if not self._keep:
            return position % self._slots
        turned = self._keep + (position - self._keep) % (self._slots - self._keep)
        return mx.where(position < self._keep, position, turned)

    def _position(self, slot: mx.array, n: int) -> mx.array:
        """The positions ``[B, …]`` of slots that are not pinned, once the next ``n`` are written.

        A slot that nothing was written to gets one below the first.
        """
        last = self.offset[:, None] + (n - 1)
        return last - (last - slot) % (self._slots - self._keep)


class RingCache(RingBuffer, TargetBuffer):
    """What takes over ``RotatingKVCache``.

    A row of attention sees the ``keep`` first positions and the last ``max_size - keep``, itself
    included, which is what a step of mlx-lm's rotating cache sees.
    """

    def __init__(self, offset: mx.array, max_size: int, keep: int = 0):
        super().__init__(offset, max_size + SLACK, keep)
        self._window = max_size - keep

    @property
    def kind(self) -> object:
        return type(self), self._slots, self._keep

    @classmethod
    def adopt(cls, caches: Sequence[RotatingKVCache]) -> "RingCache":
        """Take over the same layer's stock caches, one a batch row; they stay as they are."""
        offset = mx.array([c.offset for c in caches], mx.int32)
        ring = cls(offset, caches[0].max_size, caches[0].keep)
        ring.keys = stacked([ring._laid_out(c, c.keys) for c in caches])
        ring.values = stacked([ring._laid_out(c, c.values) for c in caches])
        return ring

    def _laid_out(self, cache: RotatingKVCache, stored: mx.array | None) -> mx.array | None:
        if stored is None:
            return None
        pinned, recent = self._kept(cache.offset)
        ordered = cache._temporal_order(stored)
        held = [ordered[:, :, : pinned.size], ordered[:, :, ordered.shape[2] - recent.size :]]
        slots = self._slot(mx.concatenate([pinned, recent]))[:, None]
        return _put(padded(stored[:, :, :0], self._slots), slots, mx.concatenate(held, axis=2))

    def _kept(self, length: int) -> tuple[mx.array, mx.array]:
        """The pinned positions and the recent ones that ``length`` committed ones leave."""
        pinned = min(length, self._keep)
        return mx.arange(pinned), mx.arange(max(pinned, length - self._window), length)

    def hand_back(self, row: int, length: int, cache: RotatingKVCache) -> RotatingKVCache:
        if self.keys is not None:
            slots = self._slot(mx.concatenate(self._kept(length)))
            cache.keys = mx.take(self.keys[row : row + 1], slots, axis=2)
            cache.values = mx.take(self.values[row : row + 1], slots, axis=2)
            cache.offset, cache._idx = length, slots.size
        return cache

    def write(self, keys: mx.array, values: mx.array) -> None:
        """Write ``[B, kv_heads, n, width]`` at the offset, without committing them.

        Raises:
            ValueError: more positions than a round may have.
        """
        if (n := keys.shape[2]) > LARGEST_BLOCK:
            raise ValueError(f"A ring takes at most {LARGEST_BLOCK} positions at a time, not {n}.")
        super().write(keys, values)

    def make_mask(
        self, n: int, window_size: int | None = None, return_array: bool = False
    ) -> mx.array:
        """Causal mask of the next ``n`` positions within the window, ``[B, 1, n, view]`` bool."""
        query = (self.offset[:, None] + mx.arange(n))[:, None, :, None]
        window = min(window_size or self._window, self._window)
        slot = mx.arange(self.view)
        key = self._position(slot, n)[:, None, None, :]
        recent = (key >= self._keep) & (key <= query) & (query < key + window)
        return mx.where(slot < self._keep, slot <= query, recent)


def _put(buffer: mx.array, slots: mx.array, new: mx.array) -> mx.array:
    new = new.astype(buffer.dtype)
    return mx.put_along_axis(buffer, mx.broadcast_to(slots, new.shape), new, axis=2)
