"""Prefill projects each chunk's features and drops them."""

import mlx.core as mx
from support.folders import drafter_config
from support.tiny import tiny_model

from dflash_mlx.drafter.model import Drafter
from dflash_mlx.engine.prefill import prefill
from dflash_mlx.loading.loader import make_pair

HIDDEN, LAYERS, CHUNK = 256, 8, 64


def peak(length, taps):
    """Peak bytes of a prefill above what was held before it."""
    model = tiny_model("llama", hidden_size=HIDDEN, num_hidden_layers=LAYERS)
    drafter = None
    if taps:
        config = drafter_config(
            hidden_size=HIDDEN,
            target_hidden_size=HIDDEN,
            num_target_layers=LAYERS,
            target_layer_ids=tuple(range(taps)),
            vocab_size=97,
            mask_token_id=96,
        )
        drafter = Drafter(config)
    with make_pair(model, drafter) as pair:
        caches = pair.target.make_cache()
        context = pair.drafter.make_context(mx.array([0], mx.int32)) if taps else None
        mx.clear_cache()
        held = mx.get_active_memory()
        mx.reset_peak_memory()
        tokens = [i % 97 for i in range(length)]
        prefill(pair.target, pair.drafter, tokens, caches, context, 0, CHUNK, lambda *_: None)
        return mx.get_peak_memory() - held


def test_features_of_the_whole_prompt_are_never_held():
    length = 4096
    all_features = LAYERS * HIDDEN * 4 * length
    chunk_features = LAYERS * HIDDEN * 4 * CHUNK
    more = peak(length, LAYERS) - peak(length, 0)
    # Context K/V is two layers of 2 x 2 heads of 8; a step of growth holds it twice for a moment.
    context = 2 * (2 * 2 * 2 * 8 * 4 * length)
    assert more < context + 4 * chunk_features < all_features / 4


def test_more_taps_cost_no_more_on_a_longer_prompt():
    short, long = 512, 2048
    growth = {taps: peak(long, taps) - peak(short, taps) for taps in (1, LAYERS)}
    assert abs(growth[LAYERS] - growth[1]) < HIDDEN * 4 * (long - short) / 4
