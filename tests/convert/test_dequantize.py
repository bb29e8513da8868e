"""Dequantization against NumPy decoders made from the formats' bit patterns, bit for bit."""

import mlx.core as mx
import numpy as np
import pytest
from raw_tensors import E2M1, E4M3, codes, nibbles, scales, spread

from dflash_mlx.convert import dequantize
from dflash_mlx.errors import UserError

RANDOM = np.random.RandomState(0)


def same(found: mx.array, expected: np.ndarray) -> None:
    assert found.dtype == mx.float32
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(np.array(found), expected.astype(np.float32))


def test_every_fp8_code() -> None:
    weight = np.arange(256, dtype=np.uint8).reshape(2, 128)
    same(dequantize.fp8(mx.array(weight), mx.array(1.0), (128, 128)), E4M3[weight])


def test_every_fp4_code() -> None:
    # Every pair of codes, so that the order of the nibbles counts.
    packed = np.arange(256, dtype=np.uint8).reshape(2, 128)
    one = mx.array(np.full((2, 16), 0x38, np.uint8))  # 1.0 in e4m3
    same(dequantize.nvfp4(mx.array(packed), one, mx.array(1.0), divide=True), E2M1[nibbles(packed)])
    exponents = mx.array(np.full((2, 8), 127, np.uint8))  # 2 to the power of 0
    same(dequantize.mxfp4(mx.array(packed), exponents), E2M1[nibbles(packed)])


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (5,), (5, 1), (3, 4), (3, 1, 4, 1)])
def test_fp8_scales(shape: tuple[int, ...]) -> None:
    """For all, by row, and in blocks of 2 by 3 whose last row and column are cut."""
    weight, scale = codes(RANDOM, 5, 10), scales(RANDOM, *shape)
    if scale.size == 12:
        grid = scale.reshape(3, 4)
        each = np.array([[grid[r // 2, c // 3] for c in range(10)] for r in range(5)])
    else:
        each = np.broadcast_to(scale.reshape(-1, 1), (5, 1))
    expected = E4M3[weight].astype(np.float32) * each
    same(dequantize.fp8(mx.array(weight), mx.array(scale), (2, 3)), expected)


def test_every_mx_scale() -> None:
    """All powers of two, the smallest of which is not a normal float32."""
    exponents = np.arange(255, dtype=np.uint8).reshape(-1, 1)
    power = 2.0 ** (exponents.astype(np.float64) - 127)
    packed = RANDOM.randint(0, 256, (255, 16)).astype(np.uint8)
    found = dequantize.mxfp4(mx.array(packed), mx.array(exponents))
    same(found, E2M1[nibbles(packed)] * power)
    weight = codes(RANDOM, 255, 32)
    same(dequantize.mxfp8(mx.array(weight), mx.array(exponents)), E4M3[weight] * power)


def test_the_mx_scale_that_is_no_number() -> None:
    packed = mx.array(RANDOM.randint(0, 256, (1, 16)).astype(np.uint8))
    found = dequantize.mxfp4(packed, mx.array(np.array([[255]], np.uint8)))
    assert not mx.isfinite(found).any().item()


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_int4(groups: int) -> None:
    values = RANDOM.randint(-8, 8, (5, 64))
    assert values.min() == -8 and values.max() == 7
    packed = np.zeros((5, 8), np.uint32)
    for i in range(8):
        packed |= (values[:, i::8] + 8).astype(np.uint32) << (4 * i)
    scale = scales(RANDOM, 5, groups)
    found = dequantize.int4(
        "w", mx.array(packed.view(np.int32)), mx.array(scale), mx.array([5, 64])
    )
    same(found, values.astype(np.float32) * spread(scale, 5, 64))


def test_padded_int4_is_refused() -> None:
    packed, scale = mx.zeros((5, 8), mx.int32), mx.ones((5, 1))
    with pytest.raises(UserError, match=r"layers.0.fc has weight_shape \[5, 61\]"):
        dequantize.int4("layers.0.fc", packed, scale, mx.array([5, 61]))
