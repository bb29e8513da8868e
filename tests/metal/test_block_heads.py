"""The block heads kernel's own source, run and compared with float64 and with unfused MLX."""

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
from support.pairs import tiny_drafter

from dflash_mlx.drafter.model import Drafter
from dflash_mlx.kernels import block_heads as module
from dflash_mlx.kernels.block_heads import block_heads

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
    freqs = periods(head_dim)
    for batch, n, first in shapes:
        q = random_heads(dtype, batch, n, heads, head_dim)
        kv = random_heads(dtype, batch, n, 2 * kv_heads, head_dim)
        offset = offsets(first, batch)
        arguments = (q, kv, norms, freqs, offset)
        run = lambda a=arguments: block_heads(*a, eps=EPS, path="fused")  # noqa: E731
        *found, values = metal.run(run)
        keys, expected_values = mx.split(apart(kv, head_dim), 2, axis=1)
        assert mx.array_equal(values, expected_values)
        for ours, x, norm in zip(found, (apart(q, head_dim), keys), norms, strict=True):
            right = exact_norm_rope(double(x), double(norm), freqs, offset)
            assert_as_exact(ours, unfused_norm_rope(x, norm.astype(dtype), freqs, offset), right)


def test_sanitizers_and_lint(metal):
    q, kv = (random_heads(mx.bfloat16, 3, 2, heads, 64) for heads in (3, 2))
    arguments = (q, kv, mx.ones((2, 64)), periods(64), offsets(9, 3))
    metal.check(lambda: block_heads(*arguments, eps=EPS, path="fused"))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "layer_types": ("sliding_attention", "full_attention"),
            "sliding_window": 4,
            "causal_layers": (False, True),
            "conv_kernel_size": 2,
            "conv_group_size": 16,
        },
    ],
)
def test_whole_drafter(metal, monkeypatch, changes):
    """Drafts of a ragged batch are those of plain MLX."""
    sizes = {"hidden_size": 64, "target_hidden_size": 64, "head_dim": 64, "num_attention_heads": 2}
    sizes |= changes
    x, features = mx.random.normal((3, 7, 64)), mx.random.normal((3, 5, 128))

    def hidden(on_metal: bool) -> mx.array:
        monkeypatch.setattr(module, "on_metal", lambda: on_metal)
        drafter = tiny_drafter(**sizes)
        drafter.stack_context()
        assert drafter.block_path().name == ("fused" if on_metal else "plain")
        return drafted(drafter, x, features)

    fused = metal.run(lambda: hidden(True))
    assert mx.allclose(fused, hidden(False), rtol=1e-3, atol=1e-3)
    # The warm-up has compiled the pipeline that a draft needs; each of two layers launches once.
    warm, drafts = metal.launches[:-2], metal.launches[-2:]
    assert {launch.source for launch in drafts} <= {launch.source for launch in warm}


def drafted(drafter: Drafter, x: mx.array, features: mx.array) -> mx.array:
    """Hidden states of block ``x`` after a context of ``features``."""
    context = drafter.make_context(mx.array([0, 3, 700]))
    for cache in context:
        cache.reserve(1024)
    drafter.write_context(features, context)
    for cache in context:
        cache.offset = cache.offset + features.shape[1]
    return drafter(x, context)
