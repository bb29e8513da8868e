"""The MLX format's config.json: read strictly, written completely."""

import dataclasses
import json
from typing import Any

import pytest

from dflash_mlx.drafter.config import DrafterConfig
from dflash_mlx.drafter.rope_config import RopeConfig
from dflash_mlx.errors import UserError

ROPE = {"rope_type": "default", "theta": 1e6, "factor": 1.0, "attention_factor": 1.0}
YARN = {
    "rope_type": "yarn",
    "theta": 5e4,
    "factor": 64.0,
    "attention_factor": 1.5,
    "traditional": False,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}


def example(**changes: Any) -> DrafterConfig:
    fields = {
        "hidden_size": 64,
        "target_hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-6,
        "vocab_size": 100,
        "block_size": 8,
        "mask_token_id": 99,
        "target_layer_ids": (1, 5, 9),
        "num_target_layers": 12,
        "rope": RopeConfig(**ROPE, traditional=False),
        "attention_bias": False,
        "max_position_embeddings": None,
        "has_mask_embedding": False,
    }
    return DrafterConfig(**fields | changes)


@pytest.mark.parametrize("rope", [RopeConfig(**ROPE, traditional=True), RopeConfig(**YARN)])
def test_round_trip_through_json(rope: RopeConfig) -> None:
    config = example(rope=rope)
    written = json.loads(json.dumps(config.to_dict()))
    assert (written["model_type"], written["format_version"]) == ("dflash", 1)
    companions = {"source": {}, "quantization": {}, "quantization_config": {}}
    assert DrafterConfig.from_dict(written | companions) == config


@pytest.mark.parametrize("field", dataclasses.fields(DrafterConfig), ids=lambda f: f.name)
def test_missing_key(field: dataclasses.Field) -> None:
    written = example().to_dict()
    del written[field.name]
    if field.default is not dataclasses.MISSING:
        assert DrafterConfig.from_dict(written) == example()
        return
    with pytest.raises(UserError, match=f"lacks {field.name}"):
        DrafterConfig.from_dict(written)


REQUIRED_ROPE = [f.name for f in dataclasses.fields(RopeConfig) if f.default is dataclasses.MISSING]


@pytest.mark.parametrize("key", REQUIRED_ROPE)
def test_missing_rope_key(key: str) -> None:
    written = example().to_dict()
    del written["rope"][key]
    with pytest.raises(UserError, match=f"rope .* lacks {key}"):
        DrafterConfig.from_dict(written)


def test_unknown_keys() -> None:
    with pytest.raises(UserError, match="does not know: attention_sinks"):
        DrafterConfig.from_dict(example().to_dict() | {"attention_sinks": True})
    written = example().to_dict()
    written["rope"]["mscale"] = 1.0
    with pytest.raises(UserError, match="does not know: mscale"):
        DrafterConfig.from_dict(written)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "qwen3"},
        {"format_version": 2},
        {"format_version": None},
        {"model_type": None},
    ],
)
def test_other_format(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"model_type .* format_version"):
        DrafterConfig.from_dict(example().to_dict() | changes)


OUT_OF_RANGE = {
    "hidden_size": [0, -64, "64", True, 64.0],
    "intermediate_size": [10**12],
    "num_hidden_layers": [0],
    "num_attention_heads": [3],
    "num_key_value_heads": [3],
    "head_dim": [15],
    "rms_norm_eps": [0, 1.0, float("nan"), 1e-40],
    "block_size": [1, 10_000, None],
    "mask_token_id": [-1, 100, "<|MASK|>"],
    "target_layer_ids": [None, (1, 1), (5, 1), (-1, 1), (1, 12), (1.0, 2)],
    "layer_types": [("full_attention",), ("full_attention", "linear_attention")],
    "sliding_window": [2048],
    "window_rule": ["none"],
    "causal_layers": [(True,), (True, 1)],
    "embed_scale": ["scaled"],
    "has_embed_tokens": [1],
    # Neither nothing nor infinity in float16.
    "input_embedding_scale": [0.0, -1, 1e39, 65505, 1e-6, float("inf"), 10**400],
    "output_multiplier": [True, 1e39, 1e-39, "1"],
    "final_logit_softcapping": [0, 1e39, 1e-39],
    "draft_vocab_size": [40],
    "conv_group_size": [16],
    "conv_kernel_size": [2],
    "selector_top_k": [16],
    "selector_rank": [16],
    "num_target_layers": [0],
    "attention_bias": [0],
    "has_mask_embedding": [None],
    "max_position_embeddings": [-1],
    "rope": [None],
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in OUT_OF_RANGE.items() for value in values]
)
def test_out_of_range(key: str, value: Any) -> None:
    # The message names the key, except that one of a pair may be blamed on its partner.
    partners = {
        "num_attention_heads": "num_key_value_heads",
        "conv_kernel_size": "conv_group_size",
        "conv_group_size": "conv_kernel_size",
        "selector_rank": "selector_top_k",
        "selector_top_k": "selector_rank",
    }
    named = partners.get(key, key)
    with pytest.raises(UserError, match=named):
        example(**{key: value})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"draft_passes": 3}, "draft_passes"),
        ({"draft_passes": 2}, "draft_prefix"),
        ({"draft_passes": 2, "draft_prefix": 1}, "draft_prefix"),
        ({"draft_passes": 2, "draft_prefix": 8}, "draft_prefix"),
        ({"draft_prefix": 3}, "draft_prefix"),
        ({"draft_passes": 2, "draft_prefix": 3, "sample_from_anchor": True}, "sample_from_anchor"),
    ],
)
def test_draft_passes(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        example(**changes)


def test_without_taps_the_feature_must_fit() -> None:
    bare = {"target_layer_ids": (), "target_hidden_size": 48}
    with pytest.raises(UserError, match=r"hidden_size is 64 .* target_hidden_size \(48\)"):
        example(**bare)
    assert example(**bare, has_hidden_dim_adapter=True).target_layer_ids == ()
    assert example(target_layer_ids=(), target_hidden_size=64).target_layer_ids == ()


def test_mask_token_outside_the_vocabulary_needs_its_own_embedding() -> None:
    assert example(mask_token_id=100, has_mask_embedding=True).mask_token_id == 100


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_type": "longrope"},
        {"theta": 0},
        {"theta": None},
        {"theta": 1e39},
        {"theta": 1 + 1e-15},
        {"factor": 0.5},
        {"factor": float("inf")},
        {"factor": 10**400},
        {"attention_factor": 0.0},
        {"attention_factor": 1e39},
        {"beta_fast": 1e308},
        {"beta_slow": 1e-320},
        {"traditional": None},
        {"beta_slow": 40.0},
        {"beta_fast": None},
        {"original_max_position_embeddings": 4096.5},
        {"low_freq_factor": 1.0},
    ],
)
def test_rope_out_of_range(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(changes))):
        RopeConfig(**YARN | changes)


def test_default_rope_takes_no_scaling() -> None:
    for changes in ({"factor": 2.0}, {"attention_factor": 1.5}, {"beta_fast": 32.0}):
        with pytest.raises(UserError, match=next(iter(changes))):
            RopeConfig(**ROPE | changes, traditional=False)
