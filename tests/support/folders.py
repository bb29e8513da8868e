"""Tiny models on disk, as a user has them."""

import json
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.utils import save_model

from dflash_mlx.drafter.config import DrafterConfig
from dflash_mlx.drafter.model import Drafter
from dflash_mlx.measure.given_pair import Given

from .pairs import tiny_config
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
    """A drafter's config that fits the saved target."""
    return tiny_config(**({"vocab_size": VOCAB, "mask_token_id": VOCAB - 1} | changes))


def save_drafter(folder: Path, **changes: object) -> None:
    """A tiny random drafter in MLX format."""
    config = drafter_config(**changes)
    mx.random.seed(5)
    save_model(folder, Drafter(config))
    (folder / "config.json").write_text(json.dumps(config.to_dict()))


def given(**folders: Path) -> dict[str, Given]:
    """A target, a drafter or both, as the doctor is given them."""
    return {what: Given(str(folder), folder) for what, folder in folders.items()}
