"""What a prompt cache holds, seen from mlx-lm alone."""

import copy
from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import ArraysCache, KVCache, make_prompt_cache

from dflash_mlx import Pair
from dflash_mlx.cache.adopt import StockCache, leaves
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
    if type(cache) is ArraysCache:
        return cache.cache
    if type(cache) is KVCache:
        return cache.keys_and_values()
    parts = [cache._temporal_order(part) for part in (cache.keys, cache.values)]
    return [part[:, :, -min(cache.offset, cache.max_size) :] for part in parts]


def assert_holds(model: nn.Module, cache: Sequence[StockCache], tokens: Sequence[int]) -> None:
    """The cache is mlx-lm's, and holds what ``tokens`` leave in it and no more."""
    expected = leaves(filled(model, tokens))
    for ours, stock in zip(leaves(cache), expected, strict=True):
        assert type(ours) is type(stock)
        if type(stock) is not ArraysCache:
            assert ours.offset == len(tokens)
        for a, b in zip(recent(ours), recent(stock), strict=True):
            assert a.shape == b.shape
            assert mx.allclose(a, b, rtol=1e-4, atol=1e-4)


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
