"""Rounds of several sequences at once, each with its own length."""

from collections.abc import Sequence

import mlx.core as mx

from dflash_mlx.cache.adopt import adopt
from dflash_mlx.cache.context import stack
from dflash_mlx.cache.quantized import KVQuantization
from dflash_mlx.drafter.proposal import Drafting
from dflash_mlx.engine.choose import Chooser
from dflash_mlx.engine.prefill import prefill
from dflash_mlx.engine.queue import RoundQueue
from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.engine.state import State
from dflash_mlx.target.target import Target

# Prompt rows a chunk.
STEP = 64


def start(
    target: Target,
    drafter: Drafting | None,
    prompts: Sequence[Sequence[int]],
    max_kv_size: int | None = None,
    quantization: KVQuantization | None = None,
) -> tuple[State, list[int]]:
    """Prefill each row by itself and adopt the rows as one batch."""
    rows, contexts = [], []
    for prompt in prompts:
        caches = target.make_cache(max_kv_size)
        context = drafter.make_context(mx.array([0], mx.int32)) if drafter else None
        prefill(
            target, drafter, prompt[:-1], caches, context, 0, STEP, lambda *_: None, quantization
        )
        rows.append(caches)
        contexts.append(context)
    lengths = [len(p) - 1 for p in prompts]
    offset = mx.array(lengths, mx.int32)
    context = None
    if drafter:
        context = [stack(layer) for layer in zip(*contexts, strict=True)]
    return State(
        anchor=mx.array([p[-1] for p in prompts], mx.int32),
        offset=offset,
        caches=[adopt(layer, quantization) for layer in zip(*rows, strict=True)],
        context=context,
    ), lengths


def run(
    target: Target,
    drafter: Drafting | None,
    prompts: Sequence[Sequence[int]],
    n: int,
    block_size: int,
    sampling: Sampling,
    **caches: object,
) -> tuple[list[list[int]], list[list[int]], RoundQueue]:
    """Emit at least ``n`` tokens a row, with one round queued ahead.

    ``caches`` are the options of :func:`start`.

    Returns:
        The tokens of each row, the accepted drafts of each round and row, and the queue.
    """
    state, lengths = start(target, drafter, prompts, **caches)
    chooser = Chooser(sampling, batch=len(prompts))
    queue = RoundQueue(target, drafter, chooser, state, lengths)
    emitted, accepted = [[] for _ in prompts], []
    queue.submit(block_size)
    while min(map(len, emitted)) < n:
        queue.submit(block_size)
        news = queue.read()
        accepted.append(news.accepted)
        for row, tokens in zip(emitted, news.tokens, strict=True):
            row += tokens
    return emitted, accepted, queue
