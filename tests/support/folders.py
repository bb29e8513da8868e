"""Tiny models on disk, as a user has them."""

import json
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.utils import save_model

from dflash_mlx.drafter.config import DrafterConfig, RopeConfig
from dflash_mlx.drafter.model import Drafter

from .tiny import SIZES, tiny_model
from .tokenizer import byte_tokenizer

VOCAB = 260


def save_target(folder: Path, **changes: object) -> nn.Module:
    """A tiny llama with a byte tokenizer and a chat template, in mlx-lm's format."""
    model = tiny_model("llama", vocab_size=VOCAB, **changes)
    save_model(folder, model)
    config = SIZES | {"model_type": "llama", "vocab_size": VOCAB} | changes
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(folder)
    return model


def drafter_config(**changes: object) -> DrafterConfig:
    """A drafter for the tiny target, of two layers and two taps."""
    fields = {
        "hidden_size": SIZES["hidden_size"],
        "target_hidden_size": SIZES["hidden_size"],
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-6,
        "vocab_size": VOCAB,
        "block_size": 8,
        "mask_token_id": 259,
        "target_layer_ids": (0, 2),
        "num_target_layers": SIZES["num_hidden_layers"],
        "rope": RopeConfig(
            rope_type="default", theta=10000.0, factor=1.0, attention_factor=1.0, traditional=False
        ),
        "attention_bias": False,
        "max_position_embeddings": 4096,
        "has_mask_embedding": False,
    }
    return DrafterConfig(**(fields | changes))


def save_drafter(folder: Path, **changes: object) -> None:
    """A tiny random drafter in MLX format."""
    config = drafter_config(**changes)
    mx.random.seed(5)
    save_model(folder, Drafter(config))
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
