"""Times of every kernel variant on a Metal GPU, at the sizes of the drafter of Qwen3-4B."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from common import seconds

from dflash_mlx.kernels.block_heads import BlockHeads
from dflash_mlx.kernels.context_kv import ContextKV
from dflash_mlx.kernels.norm_rope import NormRope

LAYERS, KV_HEADS, HEADS, HEAD_DIM, HIDDEN = 5, 8, 32, 128, 2560
NORM_ROPE = NormRope(mx.ones(HEAD_DIM // 2), eps=1e-6)
POSITIONS = (1, 4, 8, 16, 32, 2048)
DTYPES = (mx.bfloat16, mx.float16, mx.float32)
BITS = (None, 4, 8)
GROUP_SIZE = 64
CALLS = 16
"""Calls in one evaluation: so many that what an evaluation costs by itself is spread thin."""

Call = Callable[[int], tuple[mx.array, ...]]


def bandwidth(megabytes: int = 512, repeats: int = 7) -> dict[str, Any]:
    """What this machine reads and writes when it only copies, in GB/s."""
    x = mx.zeros(megabytes * 2**20 // 4, mx.float32)
    mx.eval(x)
    taken = seconds(lambda: x + 1, repeats)
    return {"megabytes": megabytes, "gb_per_s": 2 * x.nbytes / taken / 1e9}


def kernels(
    cache_bytes: int = 256 * 2**20, repeats: int = 7, hidden: int = HIDDEN
) -> list[dict[str, Any]]:
    """One entry a route, dtype, kind of weights and number of positions.

    Args:
        cache_bytes: weights are cycled through copies of so many bytes in all, so that none of
            them is found in a cache.
        repeats: evaluations, of which the median is taken.
        hidden: width of what is projected.
    """
    entries = []
    for dtype in DTYPES:
        for bits in BITS:
            entries += _context_entries(dtype, bits, cache_bytes, repeats, hidden)
        entries += _block_entries(dtype, repeats)
    return entries


def projection(dtype: mx.Dtype, bits: int | None, hidden: int) -> nn.Module:
    """A random stacked context projection."""
    linear = nn.Linear(hidden, LAYERS * 2 * KV_HEADS * HEAD_DIM, bias=False)
    linear.set_dtype(dtype)
    if bits:
        linear = nn.QuantizedLinear.from_linear(linear, GROUP_SIZE, bits)
    mx.eval(linear.parameters())
    return linear


def _context_entries(
    dtype: mx.Dtype, bits: int | None, cache_bytes: int, repeats: int, hidden: int
) -> list[dict[str, Any]]:
    first = projection(dtype, bits, hidden)
    weights = sum(w.nbytes for _, w in first.parameters().items())
    copies = min(CALLS, max(1, -(-cache_bytes // weights)))
    projections = [first, *(projection(dtype, bits, hidden) for _ in range(copies - 1))]
    k_norm, offset = mx.ones((LAYERS, HEAD_DIM)), mx.array([1000], mx.int32)
    layers = [ContextKV(p, k_norm, NORM_ROPE) for p in projections]
    entries = []
    for positions in POSITIONS:
        c = mx.random.normal((1, positions, hidden)).astype(dtype)
        mx.eval(c, k_norm, offset, NORM_ROPE.periods)
        chosen = layers[0].route(positions, dtype).name

        for route in dict.fromkeys((chosen, "plain")):

            def call(i: int, route: str = route, c: mx.array = c) -> tuple[mx.array, ...]:
                return layers[i % copies](c, offset, route)

            moved = weights + c.nbytes + sum(x.nbytes for x in call(0))
            entry = {"kernel": f"context_kv {route}", "dtype": str(dtype).removeprefix("mlx.core.")}
            entry |= {"bits": bits, "positions": positions, "bytes": moved}
            entries.append(entry | _timed(call, moved, repeats))
    return entries


def _block_entries(dtype: mx.Dtype, repeats: int, n: int = 16) -> list[dict[str, Any]]:
    q = mx.random.normal((1, n, HEADS * HEAD_DIM)).astype(dtype)
    kv = mx.random.normal((1, n, 2 * KV_HEADS * HEAD_DIM)).astype(dtype)
    norms, offset = mx.ones((2, HEAD_DIM)), mx.array([1000], mx.int32)
    mx.eval(q, kv, norms, offset, NORM_ROPE.periods)
    heads = BlockHeads(norms, NORM_ROPE)
    entries = []
    for route in dict.fromkeys((heads.route(dtype).name, "plain")):

        def call(_: int, route: str = route) -> tuple[mx.array, ...]:
            return heads(q, kv, offset, route)

        moved = 2 * (q.nbytes + kv.nbytes)
        entry = {"kernel": f"block_heads {route}", "dtype": str(dtype).removeprefix("mlx.core.")}
        entry |= {"bits": None, "positions": n, "bytes": moved}
        entries.append(entry | _timed(call, moved, repeats))
    return entries


def _timed(call: Call, moved: int, repeats: int) -> dict[str, float]:
    """Microseconds of one call among many and of one call alone, and the bandwidth among many."""

    many = seconds(lambda: [call(i) for i in range(CALLS)], repeats) / CALLS
    alone = seconds(lambda: call(0), repeats)
    return {"us": 1e6 * many, "us_alone": 1e6 * alone, "gb_per_s": moved / many / 1e9}
