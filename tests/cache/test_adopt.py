"""Which caches are taken over, and what they refuse."""

import itertools

import mlx.core as mx
import pytest
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from dflash_mlx.cache.adopt import adopt, describe, kv_caches, release, unsupported
from dflash_mlx.cache.linear import LinearCache
from dflash_mlx.cache.ring import LARGEST_BLOCK, SLACK


def filled(cache, rows, dims=32):
    cache.update_and_fetch(*(mx.random.normal((1, 2, rows, dims)) for _ in range(2)))
    return cache


def test_unsupported_caches_are_described_from_inside_a_list():
    fine = [KVCache(), QuantizedKVCache(), RotatingKVCache(8, keep=4), CacheList(KVCache())]
    assert unsupported(fine) == []
    bad = [ChunkedKVCache(8), CacheList(KVCache(), ChunkedKVCache(8))]
    assert unsupported(fine + bad) == ["CacheList(KVCache, ChunkedKVCache)", "ChunkedKVCache"]


def test_descriptions_tell_sizes_and_bits():
    assert describe(RotatingKVCache(8, keep=4)) == "RotatingKVCache(max_size=8, keep=4)"
    caches = CacheList(KVCache(), QuantizedKVCache(32, 4))
    assert describe(caches) == "CacheList(KVCache, QuantizedKVCache(group_size=32, bits=4))"


def test_kv_caches_are_found_in_lists_and_others_left_out():
    first, second, third = KVCache(), RotatingKVCache(8), QuantizedKVCache()
    assert kv_caches([first, ArraysCache(2), CacheList(second, CacheList(third))]) == [
        first,
        second,
        third,
    ]


def test_one_layers_caches_must_be_of_one_kind():
    with pytest.raises(ValueError, match="differ in kind: KVCache, QuantizedKVCache"):
        adopt([filled(KVCache(), 3), filled(QuantizedKVCache(32, 8), 3)])


@pytest.mark.parametrize("keep", [0, 4])
def test_ring_refuses_more_rows_than_a_round_may_have(keep):
    ring = adopt([filled(RotatingKVCache(8, keep), 3)])
    ring.reserve(3 + LARGEST_BLOCK + 1)
    rows = mx.zeros((1, 2, LARGEST_BLOCK + 1, 32))
    with pytest.raises(ValueError, match=f"at most {LARGEST_BLOCK} positions at a time, not"):
        ring.update_and_fetch(rows, rows)


@pytest.mark.parametrize("keep", [0, 4])
@pytest.mark.parametrize("length", [3, 8, 9, 30])
def test_two_rounds_in_flight_leave_the_ring_that_was_read(keep, length):
    stock = RotatingKVCache(8, keep)
    for _ in range(length):
        filled(stock, 1)
    before = [mx.array(stock._temporal_order(x)) for x in (stock.keys, stock.values)]
    ring = adopt([stock])
    for start in (length, length + LARGEST_BLOCK):
        ring.reserve(start + LARGEST_BLOCK)
        ring.offset = mx.array([start])
        ring.update_and_fetch(*(mx.random.normal((1, 2, LARGEST_BLOCK, 32)) for _ in range(2)))
    assert 2 * LARGEST_BLOCK == SLACK
    back = RotatingKVCache(8, keep)
    ring.hand_back(0, length, back)
    assert (back.offset, back._idx) == (length, min(length, 8))
    assert mx.array_equal(back.keys, before[0]) and mx.array_equal(back.values, before[1])


@pytest.mark.parametrize(
    "kind", [KVCache, lambda: QuantizedKVCache(32, 8), lambda: RotatingKVCache(8)]
)
def test_released_rows_come_back(kind):
    stock = CacheList(filled(kind(), 5), filled(kind(), 5))
    before = stock.state
    buffer = adopt([stock])
    release([stock])
    assert all(c.keys is None and c.values is None and c.offset == 5 for c in stock.caches)
    buffer.hand_back(0, 5, stock)
    assert [c.offset for c in stock.caches] == [5, 5]
    for (state, _), cache in zip(before, stock.caches, strict=True):
        first, *_ = state[0] if isinstance(cache, QuantizedKVCache) else state[:1]
        back = cache.keys[0] if isinstance(cache, QuantizedKVCache) else cache.keys
        assert mx.array_equal(back[:, :, :5], first[:, :, :5])


@pytest.mark.parametrize("window", [None, 1, 3, 8, 100])
def test_the_mask_of_a_linear_buffer_is_the_stock_caches(window):
    # mlx-lm gives a window to caches of every kind, though its families pair it with rings.
    for n, offset in itertools.product((1, 2, 5), (0, 1, 7, 30)):
        buffer = LinearCache(mx.array([offset, offset + 2], mx.int32))
        buffer.reserve(offset + 2 + n)
        masks = buffer.make_mask(n, window_size=window, return_array=True)
        for row, at in enumerate((offset, offset + 2)):
            expected = create_causal_mask(n, at, window_size=window)
            assert mx.array_equal(masks[row, 0, :, : at + n], expected)
            assert not masks[row, 0, :, at + n :].any()
