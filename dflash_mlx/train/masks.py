"""What a row of a block may attend to, by the drafter's configuration."""

import mlx.core as mx

from ..drafter.config import DrafterConfig


def visible(config: DrafterConfig, layer: int, anchors: mx.array, rows: int, keys: int) -> mx.array:
    """Whether each row of each block sees each key, ``[N, rows, keys + rows]``.

    The keys are ``keys`` context rows, from position 0, and then the block's own rows. Context is
    visible strictly before the anchor: the target's features at the anchor do not exist yet when
    the block is drafted. Other blocks are no keys at all.

    Args:
        config: the drafter's.
        layer: the drafter layer.
        anchors: ``[N]`` int32.
        rows: rows of a block.
        keys: context rows.
    """
    row, key = mx.arange(rows), mx.arange(keys)
    before = key < anchors[:, None, None]
    own = mx.ones((rows, rows), mx.bool_)
    if config.sliding[layer]:
        window = config.sliding_window
        if config.window_rule == "row":
            positions = anchors[:, None, None] + row[:, None]
            before = before & (positions - key < window)
            own = mx.abs(row[:, None] - row) < window
        else:
            before = before & (anchors[:, None, None] - key <= window)
    if config.causal[layer]:
        own = own & (row <= row[:, None])
    shape = (len(anchors), rows)
    return mx.concatenate(
        [mx.broadcast_to(before, (*shape, keys)), mx.broadcast_to(own, (*shape, rows))], axis=-1
    )
