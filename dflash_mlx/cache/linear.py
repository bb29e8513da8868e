"""A key/value buffer whose offset lives on the device, so that nothing is ever rolled back."""

from collections.abc import Sequence

import mlx.core as mx
from mlx_lm.models.cache import KVCache

GROWTH = 256
VIEW = 64


def round_up(n: int, step: int) -> int:
    """The least multiple of ``step`` that is not below ``n``."""
    return -(-n // step) * step


class LinearCache:
    """One layer's keys and values, preallocated, one offset a batch row.

    It answers the three calls that mlx-lm's attention makes (``offset``, ``make_mask``,
    ``update_and_fetch``). A forward of ``n`` rows writes them at ``offset`` and leaves the offset
    alone; the caller commits by assigning a larger one. What lies past the offset is masked out
    and overwritten by the next forward.

    Attributes:
        keys: ``[B, kv_heads, capacity, key_dim]``, or None before the first write.
        values: ``[B, kv_heads, capacity, value_dim]``, or None before the first write.
        offset: ``[B]`` int32, the number of committed rows.
        start: ``[B]`` int32 or None, the first row that may be attended to.
        view: how many leading rows attention reads; the host raises it with :meth:`reserve`.
    """

    def __init__(
        self,
        keys: mx.array | None,
        values: mx.array | None,
        offset: mx.array,
        start: mx.array | None = None,
    ):
        self.keys = keys
        self.values = values
        self.offset = offset
        self.start = start
        self.view = 0

    @classmethod
    def adopt(cls, rows: Sequence[KVCache]) -> "LinearCache":
        """Take over the same layer's stock caches, one a batch row.

        The rows may differ in length. The stock caches stay as they are; whoever needs them no
        longer drops them, so that nothing is held twice.
        """
        offset = mx.array([c.offset for c in rows], mx.int32)
        keys, values = stacked([c.keys for c in rows]), stacked([c.values for c in rows])
        return cls(keys, values, offset)

    @classmethod
    def stack(cls, rows: Sequence["LinearCache"]) -> "LinearCache":
        """Several buffers of the same layer as one, a batch row each; they stay as they are."""
        keys, values = stacked([r.keys for r in rows]), stacked([r.values for r in rows])
        starts = [mx.zeros_like(r.offset) if r.start is None else r.start for r in rows]
        return cls(keys, values, mx.concatenate([r.offset for r in rows]), mx.concatenate(starts))

    def rewind(self, length: int) -> None:
        """Go back to ``length`` committed rows."""
        self.offset = mx.full(self.offset.shape, length, mx.int32)

    def commit(self, offset: mx.array, accepted: mx.array) -> None:
        """Move on to ``offset [B]``, past the anchor and ``accepted [B]`` drafts of a round."""
        self.offset = offset

    def arrays(self) -> list[mx.array]:
        """What the next forward reads, to be evaluated."""
        return [self.keys, self.values]

    def hand_back(self, row: int, length: int, cache: KVCache) -> None:
        """Make ``cache`` a stock cache of this buffer's ``row`` with ``length`` committed rows."""
        if self.keys is not None:
            cache.keys = self.keys[row : row + 1]
            cache.values = self.values[row : row + 1]
            cache.offset = length

    def reserve(self, rows: int) -> None:
        """Make room for ``rows`` rows, and let attention see that many."""
        self.view = round_up(rows, VIEW)
        capacity = round_up(rows, GROWTH)
        if self.keys is not None and capacity > self.keys.shape[2]:
            self.keys = padded(self.keys, capacity)
            self.values = padded(self.values, capacity)

    def write(self, keys: mx.array, values: mx.array) -> None:
        """Write ``[B, kv_heads, n, head_dim]`` rows at the offset, without committing them."""
        if self.keys is None:
            self.keys, self.values = (
                padded(mx.zeros_like(x[:, :, :0]), round_up(self.view, GROWTH))
                for x in (keys, values)
            )
        self.keys = write_rows(self.keys, keys, self.offset)
        self.values = write_rows(self.values, values, self.offset)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write rows at the offset and return the keys and values that attention reads."""
        self.write(keys, values)
        return self.keys[:, :, : self.view], self.values[:, :, : self.view]

    def make_mask(
        self, n: int, window_size: int | None = None, return_array: bool = False
    ) -> mx.array:
        """Causal mask of the next ``n`` rows over the view, ``[B, 1, n, view]`` bool.

        ``return_array`` is part of mlx-lm's call; a device-side offset always needs an array.
        """
        query = (self.offset[:, None] + mx.arange(n))[:, None, :, None]
        key = mx.arange(self.view)
        mask = key <= query
        if window_size is not None:
            mask = mask & (query < key + window_size)
        return mask

    def positions(self, n: int) -> mx.array:
        """The position of each row of the view, ``[1, view]``, whatever is written next."""
        return mx.arange(self.view)[None]


def stacked(parts: Sequence[mx.array | None]) -> mx.array | None:
    """Buffers of one row each as one batch, padded to the longest; None marks an empty one."""
    present = [p for p in parts if p is not None]
    if not present:
        return None
    capacity = max(p.shape[2] for p in present)
    rows = [mx.zeros_like(present[0][:, :, :0]) if p is None else p for p in parts]
    return mx.concatenate([padded(r, capacity) for r in rows])


def padded(buffer: mx.array, capacity: int) -> mx.array:
    """The buffer with zero rows appended up to ``capacity``."""
    if buffer.shape[2] == capacity:
        return buffer
    return mx.pad(buffer, [(0, 0), (0, 0), (0, capacity - buffer.shape[2]), (0, 0)])


def write_rows(buffer: mx.array, rows: mx.array, offset: mx.array) -> mx.array:
    """The buffer with ``rows [B, kv_heads, n, width]`` written at ``offset [B]``."""
    rows = rows.astype(buffer.dtype)
    if rows.shape[0] == 1:
        return mx.slice_update(buffer, rows, offset, (2,))
    index = (offset[:, None] + mx.arange(rows.shape[2]))[:, None, :, None]
    return mx.put_along_axis(buffer, mx.broadcast_to(index, rows.shape), rows, axis=2)
