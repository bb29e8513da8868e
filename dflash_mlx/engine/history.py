"""The tokens so far, on the device, for penalties that look back from each place of a block."""

import copy

import mlx.core as mx

from ..cache.linear import GROWTH, put_row, round_up


class History:
    """Committed tokens ``[B, capacity]`` int32; what lies past the offset is overwritten.

    Args:
        prompts: the tokens that the penalties may see, one list a batch row.
        start: ``[B]`` int32, the position of each row's first token.
    """

    def __init__(self, prompts: list[list[int]], start: mx.array):
        width = round_up(max(map(len, prompts)), GROWTH)
        self._tokens = mx.array([p + [0] * (width - len(p)) for p in prompts], mx.int32)
        self._start = start

    def reserve(self, length: int) -> None:
        """Make room for tokens at positions below ``length``."""
        missing = length - self._tokens.shape[1]
        if missing > 0:
            self._tokens = mx.pad(self._tokens, [(0, 0), (0, round_up(missing, GROWTH))])

    def rows(self, index: mx.array) -> "History":
        """That of the batch rows ``index``."""
        some = copy.copy(self)
        some._tokens, some._start = self._tokens[index], self._start[index]
        return some

    def put(self, slot: int, other: "History") -> None:
        """Write the only row of ``other`` into batch row ``slot``."""
        self.reserve(other._tokens.shape[1])
        self._tokens = put_row(self._tokens, slot, other._tokens)
        self._start = put_row(self._start, slot, other._start)

    def write(self, tokens: mx.array, offset: mx.array) -> None:
        """Write ``tokens [B, n]`` at positions ``offset [B]`` and on."""
        index = (offset - self._start)[:, None] + mx.arange(tokens.shape[1])
        self._tokens = mx.put_along_axis(self._tokens, index, tokens.astype(mx.int32), axis=1)

    def window(self, last: mx.array, size: int) -> tuple[mx.array, mx.array]:
        """The ``size`` tokens that end at ``last``.

        Args:
            last: positions ``[B, n]``.

        Returns:
            Tokens ``[B, n, size]``, and which of them there are: a text may be shorter.
        """
        index = (last - self._start[:, None])[..., None] - mx.arange(size)
        tokens = mx.take_along_axis(
            self._tokens, mx.maximum(index, 0).reshape(index.shape[0], -1), axis=1
        )
        return tokens.reshape(index.shape), index >= 0
