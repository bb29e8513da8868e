"""The block heads kernel's own source, run and compared with float64 and with unfused MLX."""

from functools import partial

import mlx.core as mx
import numpy as np
import pytest
from support.heads import (
    EPS,
    assert_as_exact,
    double,
    exact_norm_rope,
    offsets,
    periods,
    unfused_norm_rope,
)

from dflash_mlx.kernels.block_heads import BlockHeads
from dflash_mlx.kernels.norm_rope import NormRope

pytestmark = pytest.mark.metal


def random_heads(dtype: mx.Dtype, batch: int, n: int, heads: int, head_dim: int) -> mx.array:
    """Products, ``[B, n, heads * head_dim]``."""
    values = np.random.default_rng(n).standard_normal((batch, n, heads * head_dim), np.float32)
    return mx.array(values).astype(dtype)


def apart(products: mx.array, head_dim: int) -> mx.array:
    """Products as heads, ``[B, heads, n, head_dim]``."""
    B, n, _ = products.shape
    return products.reshape(B, n, -1, head_dim).transpose(0, 2, 1, 3)


@pytest.mark.parametrize(
    ("dtype", "head_dim", "heads", "kv_heads", "shapes"),
    [
        (mx.float32, 128, 4, 2, [(1, 5, 0), (3, 2, 131_072), (8, 1, 2000)]),
        (mx.float16, 64, 9, 3, [(1, 8, 0), (3, 3, 131_072)]),
        (mx.bfloat16, 128, 32, 8, [(1, 16, 2000), (3, 4, 131_072)]),
        (mx.bfloat16, 64, 3, 1, [(1, 1, 0), (1, 7, 50_000)]),
    ],
)
def test_error(metal, dtype, head_dim, heads, kv_heads, shapes):
    norms = mx.array([[1.0], [9.0]]) * (0.2 + mx.random.uniform(shape=(2, head_dim)))
    norms = norms.astype(dtype).astype(mx.float32)
    norm_rope = NormRope(periods(head_dim), EPS)
    block_heads = BlockHeads(norms, norm_rope)
    for batch, n, first in shapes:
        q = random_heads(dtype, batch, n, heads, head_dim)
        kv = random_heads(dtype, batch, n, 2 * kv_heads, head_dim)
        offset = offsets(first, batch)
        *found, values = metal.run(partial(block_heads, q, kv, offset, "fused"))
        keys, expected_values = mx.split(apart(kv, head_dim), 2, axis=1)
        assert mx.array_equal(values, expected_values)
        for ours, x, norm in zip(found, (apart(q, head_dim), keys), norms, strict=True):
            right = exact_norm_rope(double(x), double(norm), norm_rope, offset)
            unfused = unfused_norm_rope(x, norm.astype(dtype), norm_rope.periods, offset)
            assert_as_exact(ours, unfused, right)


def test_sanitizers_and_lint(metal):
    q, kv = (random_heads(mx.bfloat16, 3, 2, heads, 64) for heads in (3, 2))
    block_heads = BlockHeads(mx.ones((2, 64)), NormRope(periods(64), EPS))
    metal.check(lambda: block_heads(q, kv, offsets(9, 3), "fused"))
