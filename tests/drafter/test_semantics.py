"""What each field of a drafter's config does, against the drafter written out in numpy."""

import mlx.core as mx
import numpy as np
import pytest
from support.pairs import tiny_drafter
from support.plain_drafter import PlainDrafter

from dflash_mlx.drafter.rope_config import RopeConfig

SLIDING = ("sliding_attention", "sliding_attention")
MIXED = ("full_attention", "sliding_attention")
NEIGHBOURS = RopeConfig(
    rope_type="default", theta=1e4, factor=1.0, attention_factor=1.0, traditional=True
)
# A ring has 64 slots or a multiple: 40 and three blocks of 8 fill it to the last.
CASES = {
    "full": {},
    "causal": {"causal_layers": (True, True)},
    "causal in one layer": {"causal_layers": (True, False)},
    "row": {"layer_types": SLIDING, "sliding_window": 12},
    "row, shorter than the block": {"layer_types": MIXED, "sliding_window": 3},
    "row, causal": {"layer_types": SLIDING, "sliding_window": 5, "causal_layers": (True, True)},
    "row, full ring": {"layer_types": SLIDING, "sliding_window": 40},
    "row, one": {"layer_types": SLIDING, "sliding_window": 1},
    "anchor": {"layer_types": MIXED, "sliding_window": 12, "window_rule": "anchor"},
    "anchor, shorter than the block": {
        "layer_types": SLIDING,
        "sliding_window": 3,
        "window_rule": "anchor",
    },
    "anchor, causal": {
        "layer_types": SLIDING,
        "sliding_window": 5,
        "window_rule": "anchor",
        "causal_layers": (True, False),
    },
    "anchor, full ring": {"layer_types": SLIDING, "sliding_window": 40, "window_rule": "anchor"},
    "adapter": {"has_hidden_dim_adapter": True, "target_hidden_size": 24},
    "adapter of as many": {"has_hidden_dim_adapter": True},
    "narrow taps": {"target_hidden_size": 24},
    "last hidden state": {"target_layer_ids": ()},
    "last hidden state through the adapter": {
        "target_layer_ids": (),
        "has_hidden_dim_adapter": True,
        "target_hidden_size": 24,
    },
    "more taps than layers": {"target_layer_ids": (0, 1, 2)},
    "bias": {"attention_bias": True},
    "neighbours rotated": {"rope": NEIGHBOURS},
    "convolutions": {"conv_kernel_size": 2, "conv_group_size": 8},
    "wide convolutions": {"conv_kernel_size": 8, "conv_group_size": 32},
    "pointwise convolutions": {"conv_kernel_size": 1, "conv_group_size": 1},
}


def made(changes: dict[str, object]) -> tuple[object, PlainDrafter]:
    drafter = tiny_drafter(**changes)
    # Their default would hide a bias that is left out, and a norm that is taken for another.
    mx.random.seed(1)
    for layer in drafter.layers:
        for name, module in layer.self_attn.named_modules():
            if "bias" in module:
                module.bias = mx.random.normal(module.bias.shape)
            if name in ("q_norm", "k_norm"):
                module.weight = mx.random.uniform(0.5, 1.5, module.weight.shape)
    plain = PlainDrafter(drafter)
    drafter.stack_context()
    return drafter, plain


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
@pytest.mark.parametrize("first", [0, 150])
def test_rounds_with_rejected_rows(changes, first):
    drafter, plain = made(changes)
    config = drafter.config
    width = max(len(config.target_layer_ids), 1) * config.target_hidden_size
    context = drafter.make_context(mx.array([first], mx.int32))
    committed = np.zeros((0, width))
    random = np.random.RandomState(2)
    # A prompt in chunks, then rounds that keep one row, some rows, or all of a block.
    chunks = [(40, 40), (70, 70), (8, 1), (8, 8), (8, 5), (3, 2), (1, 1), (8, 8), (8, 3), (8, 8)]
    for written, kept in chunks:
        features = random.standard_normal((written, width))
        for cache in context:
            cache.reserve(first + len(committed) + written + 8)
        drafter.write_context(mx.array(features.astype(np.float32))[None], context)
        committed = np.concatenate([committed, features[:kept]])
        for cache in context:
            cache.offset = cache.offset + kept
        for rows in (8, 2, 1) if kept > 4 else (8,):
            block = random.standard_normal((rows, config.hidden_size)).astype(np.float32)
            hidden = np.array(drafter(mx.array(block)[None], context))[0]
            expected = plain(committed, block, first)
            assert np.abs(hidden - expected).max() < 1e-4


@pytest.mark.parametrize("changes", [{}, CASES["bias"], CASES["convolutions"]])
def test_a_float16_residual_may_be_larger_than_float16(changes):
    hidden = {}
    for dtype in (mx.float32, mx.float16):
        drafter, _ = made(changes)
        # Finite numbers, whose products are beyond 65504.
        drafter.layers[0].mlp.down_proj.weight[0] *= 30_000
        drafter.set_dtype(dtype)
        drafter.stack_context()
        context = drafter.make_context(mx.array([0], mx.int32))
        for cache in context:
            cache.reserve(16)
        features = mx.random.normal((1, 6, 64), key=mx.random.key(1))
        drafter.write_context(features, context)
        for cache in context:
            cache.offset = cache.offset + 6
        x = mx.random.normal((1, 8, 32), key=mx.random.key(2))
        hidden[dtype] = drafter(x, context)
        assert hidden[dtype].dtype == dtype
    assert mx.allclose(hidden[mx.float16].astype(mx.float32), hidden[mx.float32], atol=0.05)


def test_the_rings_memory_does_not_grow():
    drafter, _ = made(CASES["row"])
    context = drafter.make_context(mx.array([0], mx.int32))
    sizes = set()
    for done in range(0, 4000, 500):
        for cache in context:
            cache.reserve(done + 500)
        drafter.write_context(mx.zeros((1, 500, 64)), context)
        for cache in context:
            cache.offset = cache.offset + 500
        sizes |= {(cache.keys.shape, cache.view) for cache in context}
    assert sizes == {((1, 2, 64, 8), 64)}
