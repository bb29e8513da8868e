"""Models with the sizes of real ones and without their weights.

Sizes are those of the config.json of Qwen/Qwen3-1.7B, Qwen/Qwen3-4B and of z-lab's DFlash drafter
for the latter.
"""

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map
from mlx_lm.models import qwen3

from dflash_mlx import Pair
from dflash_mlx.drafter.config import DrafterConfig
from dflash_mlx.drafter.model import Drafter
from dflash_mlx.drafter.rope_config import RopeConfig
from dflash_mlx.loading.loader import make_pair

GROUP_SIZE = 64
BLOCK_SIZE = 16
COMMON = {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
}
SIZES = {
    "1.7B": {"hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 16},
    "4B": {"hidden_size": 2560, "intermediate_size": 9728, "num_attention_heads": 32},
}
TARGET_LAYERS = {"1.7B": 28, "4B": 36}
DRAFTER_LAYERS = 5
TAPS = (1, 9, 17, 25, 33)
THETA = 1_000_000.0


def qwen3_pair(size: str, bits: int | None) -> Pair:
    """A pair as large as Qwen3-``size`` and its drafter, to take graphs from.

    Every weight is one zero, broadcast: it has a shape, a dtype and no memory.

    Args:
        size: ``"1.7B"`` or ``"4B"``.
        bits: of both models' weights, in groups of 64, with bfloat16 scales; None is bfloat16.
    """
    sizes = COMMON | SIZES[size]
    config = DrafterConfig(
        target_hidden_size=sizes["hidden_size"],
        num_hidden_layers=DRAFTER_LAYERS,
        block_size=BLOCK_SIZE,
        mask_token_id=151669,
        target_layer_ids=TAPS,
        num_target_layers=TARGET_LAYERS[size],
        rope=RopeConfig(
            rope_type="default", theta=THETA, factor=1.0, attention_factor=1.0, traditional=False
        ),
        attention_bias=False,
        has_mask_embedding=False,
        **sizes,
    )
    return make_pair(weightless(qwen3.Model(_args(size)), bits), weightless(Drafter(config), bits))


def random_qwen3(size: str) -> nn.Module:
    """A target as large as Qwen3-``size`` in float32, whose layers share one layer's weights."""
    model = qwen3.Model(_args(size))
    for layer in model.layers[1:]:
        layer.update(model.layers[0].parameters())
    mx.eval(model.parameters())
    return model


def _args(size: str) -> qwen3.ModelArgs:
    return qwen3.ModelArgs(
        model_type="qwen3",
        num_hidden_layers=TARGET_LAYERS[size],
        tie_word_embeddings=True,
        rope_theta=THETA,
        **COMMON,
        **SIZES[size],
    )


def weightless(model: nn.Module, bits: int | None) -> nn.Module:
    """``model`` in bfloat16, quantized to ``bits``, each weight one zero."""
    model.set_dtype(mx.bfloat16)
    if bits:
        nn.quantize(model, GROUP_SIZE, bits)
    model.update(
        tree_map(lambda w: mx.broadcast_to(mx.zeros((), w.dtype), w.shape), model.parameters())
    )
    mx.eval(model.parameters())
    return model
