"""Random numbers as a function of (seed, batch row, position, purpose), computed on the device.

A token's randomness then does not depend on how the token was reached: not on the drafter, nor the
block size, nor on which round emits it.
"""

import mlx.core as mx

# Purposes: independent streams at one position.
TARGET, DRAFT, ACCEPT, EXCLUDE = range(4)


def row_seeds(seed: int | None, batch: int) -> mx.array:
    """One uint32 seed a batch row and purpose, ``[B, 4]``, from one seed; None stands for 0."""
    base = mx.random.split(mx.random.key(seed or 0))[0, 0]
    index = mx.arange(batch * 4, dtype=mx.uint32)
    keys = mx.stack([mx.broadcast_to(base, index.shape), index], axis=-1)
    return mx.vmap(lambda key: mx.random.split(key)[0, 0])(keys).reshape(batch, 4)


def _keys(seeds: mx.array, positions: mx.array) -> mx.array:
    seeds = mx.broadcast_to(seeds[:, None], positions.shape)
    return mx.stack([seeds, positions.astype(mx.uint32)], axis=-1).reshape(-1, 2)


def gumbel(seeds: mx.array, positions: mx.array, vocab: int) -> mx.array:
    """Gumbel noise ``[B, n, vocab]`` of the tokens at ``positions [B, n]``, one seed a row."""
    draw = mx.vmap(lambda key: mx.random.gumbel((vocab,), key=key))
    noise = draw(_keys(seeds, positions)).reshape(*positions.shape, vocab)
    # A uniform number of exactly 0 gives -inf, which would hide the only token that filters left.
    # The least other value is -log(log(2**32)), above -4.
    return mx.maximum(noise, -4.0)


def uniform(seeds: mx.array, positions: mx.array) -> mx.array:
    """Uniform numbers in [0, 1), ``[B, n]``."""
    draw = mx.vmap(lambda key: mx.random.uniform(shape=(), key=key))
    return draw(_keys(seeds, positions)).reshape(positions.shape)
