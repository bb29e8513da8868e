"""Raw configs in z-lab's layout: every spelling, and every way in which one can be wrong."""

from typing import Any

import pytest
from tiny_checkpoint import parsed_config, tiny_config

from dflash_mlx.convert.tensors import model_parameters
from dflash_mlx.errors import UserError

NESTED_8, THETA = {"dflash_config": {"block_size": 8}}, {"rope_theta": 5000.0}


@pytest.mark.parametrize(
    "changes",
    [
        {"block_size": 8} | THETA,
        NESTED_8 | THETA,
        {"block_size": 8} | NESTED_8 | THETA,
        NESTED_8 | {"rope_parameters": THETA | {"rope_type": "default"}},
        NESTED_8 | {"rope_scaling": THETA | {"type": "default"}},
        NESTED_8 | {"rope_theta": 5000, "rope_parameters": THETA},
    ],
)
def test_block_size_and_theta_wherever_they_are(changes: dict[str, Any]) -> None:
    parsed = parsed_config(tiny_config(**{"block_size": None, "rope_theta": None} | changes))
    assert (parsed.block_size, parsed.rope.theta) == (8, 5000.0)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"dflash_config": {"block_size": 16}}, "block_size is 8 .* but 16"),
        ({"rope_parameters": THETA}, "rope_theta as 10000 .*5000.0"),
        ({"rope_theta": None, "rope_scaling": None}, "no rope_theta"),
        ({"mask_token_id": 62}, "mask_token_id is 62 .* but 63"),
        ({"target_layer_ids": [1, 5, 8]}, r"target_layer_ids is \[1, 5, 8\]"),
        ({"dflash_config": {"num_target_layers": 13}}, "num_target_layers is 12 .* but 13"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 5, 9]}, r"\[1, 5, 9\].*target_layer_ids"),
        ({"draft_vocab_size": 32, "has_lm_head": False}, "draft_vocab_size is 32"),
        ({"v_head_dim": 16}, "v_head_dim 16 .*head_dim 32"),
        ({"conv_kernel_size": 2}, "DFlash 2's conv_kernel_size .*'DFlashDraftModel'"),
        ({"dflash_config": {"target_layer_ids": [1, 5, 5]}}, "strictly increasing"),
        ({"dflash_config": {"target_layer_ids": [-1, 5, 9]}}, "the target's embeddings"),
        ({"dflash_config": {"target_layer_ids": []}}, "target_layer_ids"),
        ({"use_aux_hidden_state": False}, r"use_aux_hidden_state is False .*\[1, 5, 9\]"),
        ({"input_embedding_scale": -1.0}, "input_embedding_scale"),
        ({"final_logit_softcapping": 0}, "final_logit_softcapping"),
        ({"num_target_layers": 3}, "below num_target_layers"),
        ({"head_dim": None, "num_attention_heads": 6}, "no head_dim"),
        ({"dflash_config": {"mask_token_id": "<mask>"}}, "mask_token_id is '<mask>'"),
        ({"dflash_config": {"target_layer_ids": 3}}, "target_layer_ids"),
        ({"open_spec_config_version": "0.0.0"}, "a None drafter"),
    ],
)
def test_contradictions_and_unknown_keys(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        parsed_config(tiny_config(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"eagle_aux_hidden_state_layer_ids": [2, 6, 10], "num_aux_layers": 3},
        {"mask_token_id": 63, "pard_token": 63, "draft_vocab_size": 64},
        {"num_target_layers": None, "dflash_config": {"num_target_layers": 12}},
        {"is_causal": False, "dflash_config": {"causal": False, "use_swa": False}},
        {"layer_types": None, "sliding_window": 4096, "use_sliding_window": False},
        {"layer_types": None},
        {"sliding_window": 4096, "use_sliding_window": True},
        {"rope_scaling": {"type": "default"}},
        {"dflash_config": {"num_anchors": 512, "output_multiplier": 1.0}},
    ],
)
def test_harmless_copies_and_switches(changes: dict[str, Any]) -> None:
    null = {"dspark_markov_rank": None, "unknown": None}
    assert parsed_config(tiny_config(**changes) | null) == parsed_config(tiny_config())


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("key", "value", "name"),
    [
        ("markov_rank", 256, "DSpark's heads"),
        ("enable_hidden_correction", True, "hidden correction"),
        ("fusion_type", "gated_sum", "gated tap fusion"),
        ("partial_rotary_factor", 0.5, "partial rotary"),
        ("backbone_rotary_base", 5e6, "second rotary base"),
        ("attention_sink_bias", True, "sinks"),
        ("attention_value_scale", 0.612, "value scale"),
        ("gating", "per-head", "gated"),
        ("attention_mode", "mla", "MLA"),
        ("sliding_windows", [4096, 2048], "a window for each layer"),
        ("hc_mult", 4, "hyper-connection"),
        ("num_experts", 8, "mixture-of-experts"),
        ("mlp_bias", True, "biases in the MLP"),
        ("hidden_act", "gelu", "activation other than silu"),
        # What is off for other features means something else here.
        ("hidden_act", False, "activation other than silu"),
        ("fusion_type", False, "gated tap fusion"),
        ("partial_rotary_factor", 0, "partial rotary"),
        ("attention_value_scale", 0, "value scale"),
        ("projector_type", False, "another projector"),
        ("model_arch", 0, "another projector"),
        ("quantization", {"bits": 4}, "weights quantized otherwise"),
    ],
)
def test_feature(key: str, value: Any, name: str, nested: bool) -> None:
    changes = {"dflash_config": {key: value}} if nested else {key: value}
    with pytest.raises(UserError, match=name) as error:
        parsed_config(tiny_config(**{"hidden_act": None} | changes))
    where = "in dflash_config" if nested else "at the top level"
    assert f"{key} {where}: " in str(error.value)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("final_logit_softcapping", 30.0),
        ("output_multiplier", 0.196),
        ("input_embedding_scale", 8.0),
        ("has_embed_tokens", True),
        ("has_lm_head", True),
    ],
)
def test_settings_of_embeddings_and_logits(key: str, value: Any, nested: bool) -> None:
    changes = {"dflash_config": {key: value}} if nested else {key: value}
    assert getattr(parsed_config(tiny_config(**changes)), key) == value
    with pytest.raises(UserError, match=f"{key} is"):
        parsed_config(tiny_config(**{key: 77.0, "dflash_config": {key: value}}))


@pytest.mark.parametrize("key", ["sample_from_anchor", "shift_label", "draft_shift"])
def test_rows_that_predict_the_next_token(key: str) -> None:
    """Such a block has as many predictions as rows; ours counts the anchor too."""
    config = parsed_config(tiny_config(**{key: True}))
    assert (config.sample_from_anchor, config.block_size) == (True, 9)
    config = parsed_config(tiny_config(**{key: False}))
    assert (config.sample_from_anchor, config.block_size) == (False, 8)


def test_taps_counted_from_one_alone() -> None:
    ids = {"dflash_config": {"target_layer_ids": None}}
    config = tiny_config(eagle_aux_hidden_state_layer_ids=[2, 6, 10], **ids)
    assert parsed_config(config).target_layer_ids == (1, 5, 9)
    config = tiny_config(eagle_aux_hidden_state_layer_ids=[0, 6, 10], **ids)
    with pytest.raises(UserError, match="the target's embeddings"):
        parsed_config(config)


def test_what_follows_from_other_keys() -> None:
    config = tiny_config(use_aux_hidden_state=False, dflash_config={"target_layer_ids": None})
    assert parsed_config(config).target_layer_ids == ()
    assert "fc.weight" not in model_parameters(parsed_config(config))
    wide = model_parameters(parsed_config(tiny_config(target_hidden_size=80)))
    assert wide["fc.weight"].shape == (64, 3 * 80)
    # A projection makes one tap of any width.
    adapted = {"causal_head": True, "target_hidden_size": 128}
    assert parsed_config(tiny_config(dflash_config=adapted)).has_hidden_dim_adapter
    assert parsed_config(tiny_config(head_dim=None)).head_dim == 16
    assert parsed_config(tiny_config()).embed_scale == "target"
    assert parsed_config(tiny_config(has_embed_tokens=True)).embed_scale == "raw"


def test_final_tap_only_if_allowed() -> None:
    config = tiny_config(num_target_layers=10)
    with pytest.raises(UserError, match="--allow-final-tap"):
        parsed_config(config)
    assert parsed_config(config, allow_final_tap=True).target_layer_ids == (1, 5, 9)


@pytest.mark.parametrize(("key", "value"), [("block_size", 4), ("mask_token_id", 7)])
def test_values_that_the_user_adds(key: str, value: int) -> None:
    """They fill a gap, or repeat what the config says."""
    absent = {"block_size": None, "dflash_config": {"mask_token_id": None}}
    rest = {"block_size": 4, "mask_token_id": 7}
    assert getattr(parsed_config(tiny_config(**absent), **rest), key) == value
    equal = tiny_config(block_size=4, dflash_config={"mask_token_id": 7})
    assert getattr(parsed_config(equal, **{key: value}), key) == value
    with pytest.raises(UserError, match=f"{key} is .* but {value} on the command line; an option"):
        parsed_config(tiny_config(), **{key: value})
