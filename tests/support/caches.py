"""What a prompt cache holds, seen from mlx-lm alone."""

import copy
from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    KVCache,
    QuantizedKVCache,
    make_prompt_cache,
)

from dflash_mlx import Pair
from dflash_mlx.cache.adopt import describe, kv_caches
from dflash_mlx.cache.protocol import StockCache
from support.pairs import respond, tokens_of
from support.plain import plain_greedy
from support.tokenizer import byte_tokenizer

MAKERS = {
    "ours": lambda pair: pair.make_prompt_cache(),
    "stock": lambda pair: make_prompt_cache(pair.model),
}


def filled(model: nn.Module, tokens: Sequence[int]) -> list[StockCache]:
    """A stock prompt cache with ``tokens``."""
    cache = make_prompt_cache(model)
    model(mx.array([tokens]), cache=cache)
    return cache


def recent(cache: StockCache) -> list[mx.array]:
    """A cache's states, or keys and values in the order of their tokens, as many as it keeps."""
    if isinstance(cache, ArraysCache):
        return cache.cache
    if isinstance(cache, CacheList):
        return [part for inner in cache.caches for part in recent(inner)]
    if isinstance(cache, QuantizedKVCache):
        packed = cache.keys_and_values()
        return [mx.dequantize(*p, cache.group_size, cache.bits) for p in packed]
    if isinstance(cache, KVCache):
        return list(cache.keys_and_values())
    parts = [cache._temporal_order(part) for part in (cache.keys, cache.values)]
    last = min(cache.offset, cache.max_size) - cache.keep
    return [
        mx.concatenate([x[:, :, : cache.keep], x[:, :, x.shape[2] - last :]], axis=2)
        if last > 0
        else x
        for x in parts
    ]


def assert_same(cache: Sequence[StockCache], stock: Sequence[StockCache]) -> None:
    """Both are mlx-lm's, of the same kinds, and hold the same."""
    for ours, theirs in zip(cache, stock, strict=True):
        assert describe(ours) == describe(theirs)
        assert [c.offset for c in kv_caches([ours])] == [c.offset for c in kv_caches([theirs])]
        # What is rounded differently by a hair may be quantized a step apart.
        step = 0
        if isinstance(theirs, QuantizedKVCache):
            step = max(mx.abs(scales).max().item() for _, scales, _ in theirs.keys_and_values())
        for a, b in zip(recent(ours), recent(theirs), strict=True):
            assert a.shape == b.shape
            assert mx.allclose(a, b, rtol=1e-4, atol=1e-4 + 2 * step)


def assert_holds(model: nn.Module, cache: Sequence[StockCache], tokens: Sequence[int]) -> None:
    """The cache is mlx-lm's, and holds what ``tokens`` leave in it and no more."""
    assert kv_caches(cache)[0].offset == len(tokens)
    assert_same(cache, filled(model, tokens))


def assert_continues(
    pair: Pair, cache: Sequence[StockCache], tokens: Sequence[int], truth: Sequence[int]
) -> None:
    """``cache`` holds ``tokens``, and ``truth`` follows: with mlx-lm on a copy, and with us."""
    assert_holds(pair.model, cache, tokens)
    stock = [copy.deepcopy(c) for c in cache]
    assert plain_greedy(pair.model, truth[:1], len(truth) - 1, prompt_cache=stock) == truth[1:]
    responses = respond(pair, byte_tokenizer(), truth[:1], len(truth) - 1, prompt_cache=cache)
    assert tokens_of(responses) == truth[1:]
    assert_holds(pair.model, cache, [*tokens, *truth])
