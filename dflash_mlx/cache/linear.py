"""A preallocated buffer of keys and values, where position ``p`` lives in place ``p``."""

from collections.abc import Callable, Sequence
from typing import Self

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from .protocol import Buffer, TargetBuffer

GROWTH = 256
VIEW = 64

# Keys or values ``[B, kv_heads, capacity, width]``, or codes, scales and biases of that shape each.
Packed = tuple[mx.array, mx.array, mx.array]
Stored = mx.array | Packed


class KVBuffer(Buffer):
    """One layer's keys and values, one offset a batch row.

    Attributes:
        keys: ``[B, kv_heads, capacity, key_dim]``, or None before the first write.
        values: ``[B, kv_heads, capacity, value_dim]``, or None before the first write.
        offset: ``[B]`` int32, the number of committed positions.
        view: how many leading places attention reads; the host raises it with :meth:`reserve`.
    """

    def __init__(self, offset: mx.array, keys: Stored | None = None, values: Stored | None = None):
        self.keys = keys
        self.values = values
        self.offset = offset
        self.view = 0

    def commit(self, offset: mx.array, accepted: mx.array) -> None:
        self.offset = offset

    def arrays(self) -> list[mx.array]:
        return [self.keys, self.values]

    def put(self, slot: int, other: Self, length: int) -> None:
        self.offset = put_row(self.offset, slot, mx.array([length]))
        if other.keys is None:
            return
        if self.keys is None:
            batch, stored = self.offset.shape[0], (other.keys, other.values)
            self.keys, self.values = each(lambda x: mx.repeat(x[:, :, :0], batch, axis=0), stored)
        capacity = max(positions(self.keys), positions(other.keys))
        self.keys, self.values = each(
            lambda x, new: put_row(padded(x, capacity), slot, new),
            (self.keys, self.values),
            (other.keys, other.values),
        )

    def select(self, rows: Sequence[int]) -> None:
        index = mx.array(rows)
        self.offset = self.offset[index]
        if self.keys is not None:
            self.keys, self.values = each(lambda x: x[index], (self.keys, self.values))

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Stored, Stored]:
        """Write at the offset, and return the keys and values that attention reads."""
        self.write(keys, values)
        return self.keys[:, :, : self.view], self.values[:, :, : self.view]


class LinearBuffer(KVBuffer):
    """Keys and values of all positions; the capacity grows in steps."""

    def reserve(self, length: int) -> None:
        self.view = round_up(length, VIEW)
        capacity = round_up(length, GROWTH)
        if self.keys is not None and capacity > positions(self.keys):
            self.keys, self.values = each(lambda x: padded(x, capacity), (self.keys, self.values))

    def write(self, keys: Stored, values: Stored) -> None:
        """Write ``[B, kv_heads, n, width]`` at the offset, without committing them."""
        if self.keys is None:
            capacity = round_up(self.view, GROWTH)
            self.keys, self.values = each(lambda x: padded(x[:, :, :0], capacity), (keys, values))
        self.keys = each(self._written, self.keys, keys)
        self.values = each(self._written, self.values, values)

    def _written(self, buffer: mx.array, new: mx.array) -> mx.array:
        """The buffer with ``new [B, kv_heads, n, width]`` at the offset."""
        new = new.astype(buffer.dtype)
        if new.shape[0] == 1:
            return mx.slice_update(buffer, new, self.offset, (2,))
        place = (self.offset[:, None] + mx.arange(new.shape[2]))[:, None, :, None]
        return mx.put_along_axis(buffer, mx.broadcast_to(place, new.shape), new, axis=2)


class LinearCache(LinearBuffer, TargetBuffer):
    """What takes over ``KVCache``: it answers the three calls that mlx-lm's attention makes.

    These are ``offset``, ``make_mask`` and ``update_and_fetch``.
    """

    @classmethod
    def adopt(cls, caches: Sequence[KVCache], *settings: object) -> Self:
        """Take over the same layer's stock caches, one a batch row; they stay as they are.

        They may differ in length. Whoever needs them no longer drops them, so that nothing is held
        twice.
        """
        offset = mx.array([c.offset for c in caches], mx.int32)
        keys, values = stacked([c.keys for c in caches]), stacked([c.values for c in caches])
        return cls(offset, keys, values, *settings)

    def hand_back(self, row: int, length: int, cache: KVCache) -> KVCache:
        if self.keys is not None:
            # Of several rows, a copy: a view of one would keep the buffer of all from being reused.
            index = slice(row, row + 1) if self.offset.shape[0] == 1 else mx.array([row])
            cache.keys, cache.values = each(lambda x: x[index], (self.keys, self.values))
            cache.offset = length
        return cache

    def make_mask(
        self, n: int, window_size: int | None = None, return_array: bool = False
    ) -> mx.array:
        """Causal mask of the next ``n`` positions over the view, ``[B, 1, n, view]`` bool.

        ``return_array`` is part of mlx-lm's call; a device-side offset always needs an array.
        """
        query = (self.offset[:, None] + mx.arange(n))[:, None, :, None]
        key = mx.arange(self.view)
        mask = key <= query
        if window_size is not None:
            mask = mask & (query < key + window_size)
        return mask


def round_up(n: int, step: int) -> int:
    """The least multiple of ``step`` that is not below ``n``."""
    return -(-n // step) * step


def each(function: Callable[..., mx.array], *stored: Stored | tuple[Stored, ...]) -> Stored:
    """The ``function`` of arrays, or of each array in tuples of the same form.

    As MLX's ``tree_map``, in less time: attention calls for every layer.
    """
    if isinstance(stored[0], mx.array):
        return function(*stored)
    return tuple(each(function, *parts) for parts in zip(*stored, strict=True))


def positions(stored: Stored) -> int:
    """Positions that keys or values have room for."""
    return (stored if isinstance(stored, mx.array) else stored[0]).shape[2]


def put_row(batch: mx.array, slot: int, row: mx.array) -> mx.array:
    """The ``batch`` with ``row [1, …]`` at ``slot``; what the row is too short for stays."""
    start = mx.array([slot], mx.int32)
    return mx.slice_update(batch, row.astype(batch.dtype), start, (0,))


def padded(buffer: mx.array, capacity: int) -> mx.array:
    """The buffer with zeros appended up to ``capacity`` positions, if it has fewer."""
    missing = capacity - buffer.shape[2]
    return mx.pad(buffer, [(0, 0), (0, 0), (0, missing), (0, 0)]) if missing > 0 else buffer


def stacked(parts: Sequence[Stored | None]) -> Stored | None:
    """Buffers of one batch row each as one, padded to the longest; None marks an empty one."""
    present = [p for p in parts if p is not None]
    if not present:
        return None
    empty = each(lambda x: x[:, :, :0], present[0])
    return each(_concatenated, *[empty if p is None else p for p in parts])


def _concatenated(*parts: mx.array) -> mx.array:
    capacity = max(p.shape[2] for p in parts)
    return mx.concatenate([padded(p, capacity) for p in parts])
