"""The drafter fixtures: published checkpoints, and what the official package answered for them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx

from dflash_mlx.drafter.config import DrafterConfig
from dflash_mlx.drafter.model import Drafter
from dflash_mlx.drafter.rope_config import RopeConfig

FIXTURES = Path(__file__).parent.parent / "fixtures" / "drafter"
CODEBOOKS = ("predecessor_codebook", "successor_codebook")
# Fields whose names and meanings are also ours.
SAME = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "vocab_size",
    "num_target_layers",
    "attention_bias",
    "sliding_window",
    "max_position_embeddings",
)
OPTIONAL = (
    "input_embedding_scale",
    "output_multiplier",
    "final_logit_softcapping",
    "conv_kernel_size",
    "conv_group_size",
    "selector_rank",
    "selector_top_k",
)


def cases() -> list[str]:
    """Names of all cases."""
    return sorted(f.name for f in FIXTURES.iterdir() if (f / "config.json").exists())


def answers(case: str) -> dict[str, mx.array]:
    """What the official package said."""
    return mx.load(str(FIXTURES / case / "reference.safetensors"))


def borrows(case: str) -> bool:
    """Whether the case is also asked for logits, by a target's table and head."""
    return "table" in answers(case)


def published(case: str) -> Drafter:
    """The drafter of a case that borrows, read without the converter."""
    source = json.loads((FIXTURES / case / "config.json").read_text())
    drafter = Drafter(_config(source, source["dflash_config"]))
    weights = mx.load(str(FIXTURES / case / "model.safetensors"))
    renamed = {f"candidate_selector.{name}": name for name in CODEBOOKS}
    drafter.load_weights(
        [(f"{name}.weight" if name in renamed else name, w) for name, w in weights.items()]
    )
    drafter.stack_context()
    return drafter


def _config(source: Mapping[str, Any], nested: Mapping[str, Any]) -> DrafterConfig:
    both = {**source, **nested}
    sliding = [kind == "sliding_attention" for kind in source["layer_types"]]
    causal = [source.get("is_causal", s) for s in sliding]
    return DrafterConfig(
        **{name: source[name] for name in SAME},
        **{name: both[name] for name in OPTIONAL if name in both},
        target_hidden_size=source["hidden_size"],
        block_size=both["block_size"],
        mask_token_id=nested["mask_token_id"],
        target_layer_ids=tuple(nested["target_layer_ids"]),
        rope=RopeConfig(
            rope_type="default",
            theta=float(source["rope_theta"]),
            factor=1.0,
            attention_factor=1.0,
            traditional=False,
        ),
        has_mask_embedding=False,
        layer_types=tuple(source["layer_types"]),
        causal_layers=tuple(causal),
        # The package reads the target's table itself, whatever its module does beyond.
        embed_scale="raw",
    )
