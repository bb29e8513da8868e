"""Prefill: the prompt through mlx-lm's own caches, and its features into the context K/V."""

from collections.abc import Callable, Iterator, Sequence

import mlx.core as mx

from ..cache.protocol import ContextBuffer, StockCache
from ..cache.quantized import KVQuantization
from ..drafter.proposal import Drafting
from ..target.stock import PlainTarget
from ..target.target import Target
from .interrupt import uninterrupted


def prefill(
    target: Target | PlainTarget,
    drafter: Drafting | None,
    tokens: Sequence[int],
    caches: list[StockCache],
    context: list[ContextBuffer] | None,
    begin: int,
    step_size: int,
    progress: Callable[[int, int], None],
    quantization: KVQuantization | None = None,
) -> None:
    """Run all of ``tokens`` through the target; the arguments are those of :func:`chunks`."""
    for _ in chunks(
        target, drafter, tokens, caches, context, begin, lambda: step_size, progress, quantization
    ):
        pass


def chunks(
    target: Target,
    drafter: Drafting | None,
    tokens: Sequence[int],
    caches: list[StockCache],
    context: list[ContextBuffer] | None,
    begin: int,
    step_size: Callable[[], int],
    progress: Callable[[int, int], None],
    quantization: KVQuantization | None = None,
) -> Iterator[int]:
    """Run all of ``tokens`` through the target, a chunk for each item that is asked for.

    Each chunk's features are projected at once and dropped, so memory does not grow with
    ``taps * hidden * prompt``; and no chunk's logits are ever computed.

    Args:
        target: the target.
        drafter: projects the features; None without a drafter.
        tokens: prompt tokens, without the anchor.
        caches: stock caches of one sequence, filled in place.
        context: context K/V of the same sequence, filled and committed in place.
        begin: how many tokens the caches hold already.
        step_size: tokens of a chunk, asked before each.
        progress: called with the tokens done and all tokens, the anchor included, as in mlx-lm.
        quantization: of the caches, when they have come far enough.

    Yields:
        The tokens done, after each chunk.
    """
    done, total = 0, len(tokens) + 1
    progress(0, total)
    while done < len(tokens):
        chunk = mx.array([tokens[done : done + step_size()]])
        # A prompt cache has all of a chunk or nothing of it.
        with uninterrupted():
            _, features = target.forward(chunk, caches)
            if quantization is not None:
                quantization.apply(caches)
            arrays = [c.state for c in caches]
            if context is not None:
                written = begin + done + chunk.shape[1]
                for cache in context:
                    cache.reserve(written)
                drafter.write_context(features, context)
                for cache in context:
                    cache.offset = mx.array([written], mx.int32)
                arrays += [(c.keys, c.values) for c in context]
            del features
            mx.eval(arrays)
        mx.clear_cache()
        done += chunk.shape[1]
        progress(done, total)
        yield done
