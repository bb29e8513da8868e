"""Which context and which of its own block each row of a block attends to."""

from dataclasses import dataclass
from typing import Literal

import mlx.core as mx

from .config import DrafterConfig


@dataclass(frozen=True)
class Visibility:
    """What a layer's rows see; layers of the same kind share a mask.

    Attributes:
        window: positions that a sliding layer sees, or None for a full one.
        rule: how the window falls; see :class:`~.config.DrafterConfig`.
        causal: whether a row sees only itself and what precedes it in its block.
    """

    window: int | None
    rule: Literal["row", "anchor"]
    causal: bool

    def mask(self, anchor: mx.array, n: int, positions: mx.array, start: mx.array) -> mx.array:
        """Mask of a block of ``n`` over keys, ``[B, 1, 1 or n, keys]`` bool.

        One row stands for all of them where they see the same.

        Args:
            anchor: ``[B]`` int32, where the block begins.
            n: its size.
            positions: ``[B, keys]`` int32, those of the keys.
            start: ``[B]`` int32, the first position that is one.
        """
        anchor, start = anchor[:, None, None, None], start[:, None, None, None]
        key = positions[:, None, None]
        mask = (key < anchor + n) & (key >= start)
        row = anchor + mx.arange(n)[:, None]
        if self.causal:
            mask = mask & (key <= row)
        if self.window is None:
            return mask
        if self.rule == "anchor":
            return mask & (key >= anchor - self.window)
        mask = mask & (key > row - self.window)
        # Within a block this can only tell when the window is shorter than the block.
        if self.window < n and not self.causal:
            mask = mask & (key < row + self.window)
        return mask


def layer_visibility(config: DrafterConfig) -> list[Visibility]:
    """What each of the drafter's layers sees."""
    return [
        Visibility(config.sliding_window if sliding else None, config.window_rule, causal)
        for sliding, causal in zip(config.sliding, config.causal, strict=True)
    ]
