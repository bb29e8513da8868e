"""Models with the sizes of real ones and without their weights.

Sizes are those of the config.json of Qwen/Qwen3-1.7B and Qwen/Qwen3-4B.
"""

from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map
from mlx_lm.models import qwen3

from dflash_mlx import Pair
from dflash_mlx.drafter.model import Drafter
from dflash_mlx.loading.loader import make_pair
from dflash_mlx.target.target import Target
from dflash_mlx.train.design import design
from dflash_mlx.train.recipe import Recipe

COMMON = {
    "model_type": "qwen3",
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
    "rope_theta": 1_000_000.0,
}
SIZES = {
    "1.7B": {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
    },
    "4B": {
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_attention_heads": 32,
        "num_hidden_layers": 36,
    },
}
# Which token is the mask takes no time, so no tokenizer is asked for one.
RECIPE = Recipe(output=Path(), mask_token=151669)


def qwen3_pair(size: str, bits: int | None) -> Pair:
    """A pair as large as Qwen3-``size`` and its DFlash drafter, to take graphs from.

    Every weight is one zero, broadcast: it has a shape, a dtype and no memory.

    Args:
        size: ``"1.7B"`` or ``"4B"``.
        bits: of both models' weights, in groups of 64, with bfloat16 scales; None is bfloat16.
    """
    model = weightless(qwen3.Model(_args(size)), bits)
    config = design(Target(model), None, None, RECIPE)
    return make_pair(model, weightless(Drafter(config), bits))


def random_qwen3(size: str) -> nn.Module:
    """A target as large as Qwen3-``size`` in float32, whose layers share one layer's weights."""
    model = qwen3.Model(_args(size))
    for layer in model.layers[1:]:
        layer.update(model.layers[0].parameters())
    mx.eval(model.parameters())
    return model


def _args(size: str) -> qwen3.ModelArgs:
    return qwen3.ModelArgs(**COMMON, **SIZES[size])


def weightless(model: nn.Module, bits: int | None) -> nn.Module:
    """``model`` in bfloat16, quantized to ``bits``, each weight one zero."""
    model.set_dtype(mx.bfloat16)
    if bits:
        nn.quantize(model, 64, bits)
    model.update(
        tree_map(lambda w: mx.broadcast_to(mx.zeros((), w.dtype), w.shape), model.parameters())
    )
    mx.eval(model.parameters())
    return model
