"""A drafter on Metal: through warm-up, choice and commit, context and drafts are plain MLX's."""

import mlx.core as mx
import pytest
from support.launches import as_on_metal
from support.pairs import tiny_drafter

pytestmark = pytest.mark.metal

SIZES = {"hidden_size": 64, "target_hidden_size": 64, "head_dim": 64, "num_attention_heads": 2}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "layer_types": ("sliding_attention", "full_attention"),
            "sliding_window": 40,
            "causal_layers": (False, True),
            "conv_kernel_size": 2,
            "conv_group_size": 16,
        },
    ],
)
def test_context_and_drafts_of_a_ragged_batch(metal, monkeypatch, changes):
    features = [mx.random.normal((3, n, 128)) for n in (40, 5, 1)]
    x = mx.random.normal((3, 7, 64))

    def drafted(on_metal: bool) -> list[mx.array]:
        """The context after all features, committed in turn, and the hidden states of a block."""
        as_on_metal(monkeypatch, on_metal)
        drafter = tiny_drafter(**SIZES | changes)
        drafter.stack_context()
        routes = [drafter.context_kv.route(3 * f.shape[1], drafter.dtype).name for f in features]
        assert routes == (["epilogue", "fragments", "rows"] if on_metal else ["plain"] * 3)
        assert f"block {'fused' if on_metal else 'plain'}" in drafter.kernels(8)
        context = drafter.make_context(mx.array([0, 3, 700]))
        for chunk in features:
            for cache in context:
                cache.reserve(1024)
            drafter.write_context(chunk, context)
            for cache in context:
                cache.offset = cache.offset + chunk.shape[1]
        kv = [array for cache in context for array in cache.arrays()]
        return [drafter(x, context), *kv]

    for fused, plain in zip(metal.run(lambda: drafted(True)), drafted(False), strict=True):
        assert mx.allclose(fused, plain, rtol=1e-3, atol=1e-3)
    # The warm-up has compiled every pipeline that a round needs: three chunks, two layers.
    warm, rounds = metal.launches[:-5], metal.launches[-5:]
    assert {launch.source for launch in rounds} <= {launch.source for launch in warm}
