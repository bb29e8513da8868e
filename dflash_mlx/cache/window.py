"""A ring of context keys and values for a drafter's sliding layers, with a device-side offset."""

from collections.abc import Sequence

import mlx.core as mx

from .linear import VIEW, round_up


class WindowCache:
    """One sliding drafter layer's context: position ``p`` lives in slot ``p mod slots``.

    Memory and the rows that attention reads do not grow with the context. As in
    :class:`~.linear.LinearCache`, rows are written at the offset and committed by moving it. A
    slot's position follows from the last one written: what was written and not committed is either
    overwritten or takes a position that has left the window.

    Args:
        window: committed rows that must stay.
        block_size: the most rows that are written and not all committed.
        start: ``[B]`` int32, the position of the first row, and the offset to begin with.

    Attributes:
        keys: ``[B, kv_heads, slots, head_dim]``, or None before the first write.
        values: like ``keys``.
        offset: ``[B]`` int32, one past the last committed position.
        start: ``[B]`` int32, the first position that may be attended to.
        view: how many leading slots attention reads; all of them once the ring may have wrapped.
    """

    def __init__(self, window: int, block_size: int, start: mx.array):
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self.offset = start
        self.start = start
        self.view = 0
        self._window = window
        self._block_size = block_size
        # A block beyond the offset, and two rounds that were in flight when a generation stopped.
        self._slots = round_up(window + 3 * block_size, VIEW)

    @classmethod
    def stack(cls, rows: Sequence["WindowCache"]) -> "WindowCache":
        """Several buffers of the same layer as one, a batch row each; they stay as they are."""
        first = rows[0]
        start = mx.concatenate([r.start for r in rows])
        stacked = cls(first._window, first._block_size, start)
        stacked.offset = mx.concatenate([r.offset for r in rows])
        written = [r for r in rows if r.keys is not None]
        if written:
            empty = mx.zeros_like(written[0].keys)
            stacked.keys = mx.concatenate([empty if r.keys is None else r.keys for r in rows])
            stacked.values = mx.concatenate([empty if r.keys is None else r.values for r in rows])
        return stacked

    def rewind(self, length: int) -> None:
        """Go back to ``length`` committed positions. Rows that were overwritten are missing."""
        # A block beyond the offset may have taken the slots of the rows before this one.
        oldest = self.offset + (self._block_size - self._slots)
        self.start = mx.minimum(mx.maximum(self.start, oldest), length)
        self.offset = mx.full(self.offset.shape, length, mx.int32)

    def commit(self, offset: mx.array, accepted: mx.array) -> None:
        """Move on to ``offset [B]``, past the anchor and ``accepted [B]`` drafts of a round."""
        self.offset = offset

    def arrays(self) -> list[mx.array]:
        """What the next forward reads, to be evaluated."""
        return [self.keys, self.values]

    def reserve(self, rows: int) -> None:
        """Let attention see slots of positions below ``rows``; the ring itself never grows."""
        self.view = min(round_up(rows, VIEW), self._slots)

    def write(self, keys: mx.array, values: mx.array) -> None:
        """Write ``[B, kv_heads, n, head_dim]`` rows at the offset, without committing them.

        More rows than a block must be committed whole; those that have left the window by then
        are not kept.
        """
        if self.keys is None:
            shape = (*keys.shape[:2], self._slots, keys.shape[3])
            self.keys, self.values = mx.zeros(shape, keys.dtype), mx.zeros(shape, values.dtype)
        n = keys.shape[2]
        first = max(n - self._slots, 0)
        slots = (self.offset[:, None] + mx.arange(first, n))[:, None, :, None] % self._slots
        self.keys, self.values = (
            mx.put_along_axis(
                buffer,
                mx.broadcast_to(slots, rows[:, :, first:].shape),
                rows[:, :, first:].astype(buffer.dtype),
                axis=2,
            )
            for buffer, rows in ((self.keys, keys), (self.values, values))
        )

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write rows at the offset and return the keys and values that attention reads."""
        self.write(keys, values)
        return self.keys[:, :, : self.view], self.values[:, :, : self.view]

    def positions(self, n: int) -> mx.array:
        """Positions ``[B, view]`` of the slots once the next ``n`` rows are written.

        A slot that nothing was written to gets one below ``start``.
        """
        last = self.offset[:, None] + (n - 1)
        return last - (last - mx.arange(self.view)) % self._slots
