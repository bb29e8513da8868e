"""What the rows of many blocks may attend to."""

import mlx.core as mx

from ..drafter.masks import Visibility


def visible(sees: Visibility, anchors: mx.array, rows: int, keys: int) -> mx.array:
    """Whether each row of each block sees each key, ``[N, rows, keys + rows]``.

    The keys are ``keys`` context rows, from position 0, and then the block's own rows. Context is
    visible strictly before the anchor: the target's features at the anchor do not exist yet when
    the block is drafted. Other blocks are no keys at all.

    Args:
        sees: what the layer's rows see.
        anchors: ``[N]`` int32.
        rows: rows of a block.
        keys: context rows.
    """
    row, key = mx.arange(rows), mx.arange(keys)
    anchor = anchors[:, None, None]
    before = key < anchor
    own = mx.ones((rows, rows), mx.bool_)
    if sees.causal:
        own = own & (row <= row[:, None])
    if sees.window is not None and sees.rule == "anchor":
        before = before & (key >= anchor - sees.window)
    elif sees.window is not None:
        before = before & (key > anchor + row[:, None] - sees.window)
        own = own & (mx.abs(row[:, None] - row) < sees.window)
    shape = (len(anchors), rows)
    return mx.concatenate(
        [mx.broadcast_to(before, (*shape, keys)), mx.broadcast_to(own, (*shape, rows))], axis=-1
    )
