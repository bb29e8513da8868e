"""Why the drafter's context has a buffer for each layer, and not one for all of them.

    python benchmarks/buffers.py [--layers 5] [--capacity 4096] [--repeats 5]

One buffer for all layers would take one write for K and one for V at a commit, instead of two for
each layer. But a draft writes a layer's block rows and reads them before the next layer writes its
own, and MLX writes in place only into an array that nothing else holds: the earlier layer's read
still does. Both layouts go through the same draft here, and the copies show in the time.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import mlx.core as mx
from common import machine

KV_HEADS, HEAD_DIM, ROWS = 8, 128, 16
Write = Callable[[list[mx.array], int, mx.array, mx.array], mx.array]


def main() -> None:
    """Measure both and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--capacity", type=int, default=4096, help="rows that a buffer holds")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()

    shape = (1, KV_HEADS, args.capacity, HEAD_DIM)
    layouts: dict[str, tuple[list[mx.array], Write]] = {
        "a buffer for each layer": ([mx.zeros(shape) for _ in range(args.layers)], write_own),
        "one buffer for all": ([mx.zeros((args.layers, *shape))], write_shared),
    }
    timings: dict[str, list[float]] = {name: [] for name in layouts}
    for repeat in range(args.repeats + 1):
        for name, (buffers, write) in layouts.items():
            begun = time.perf_counter()
            draft(buffers, write, args.layers)
            # The first pass also touches the memory for the first time.
            if repeat:
                timings[name].append(time.perf_counter() - begun)
    print(f"{machine()}; {args.layers} layers, {args.capacity} rows, median of {args.repeats}\n")
    print("| layout | ms a draft | bytes of K |\n|---|---|---|")
    for name, (buffers, _) in layouts.items():
        size = sum(buffer.nbytes for buffer in buffers) / 1e6
        print(f"| {name} | {median(timings[name]) * 1e3:.1f} | {size:.0f} MB |")


def draft(buffers: list[mx.array], write: Write, layers: int) -> None:
    """Every layer writes its rows at a position known to the device alone, then reads them all."""
    rows, offset = mx.ones((1, KV_HEADS, ROWS, HEAD_DIM)), mx.array([256])
    for layer in range(layers):
        keys = write(buffers, layer, rows, offset)
        near = keys[:, :, : 256 + ROWS]
        rows = mx.fast.scaled_dot_product_attention(rows, near, near, scale=HEAD_DIM**-0.5)
    mx.eval(rows, buffers)


def write_own(buffers: list[mx.array], layer: int, rows: mx.array, offset: mx.array) -> mx.array:
    """Into the layer's buffer."""
    buffers[layer] = mx.slice_update(buffers[layer], rows, offset, axes=[2])
    return buffers[layer]


def write_shared(buffers: list[mx.array], layer: int, rows: mx.array, offset: mx.array) -> mx.array:
    """Into the layer's part of the one buffer."""
    start = mx.concatenate([mx.array([layer]), offset])
    buffers[0] = mx.slice_update(buffers[0], rows[None], start, axes=[0, 3])
    return buffers[0][layer]


if __name__ == "__main__":
    main()
