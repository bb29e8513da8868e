"""Raw z-lab configs: the published ones, and every way in which one can be wrong."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from tiny_checkpoint import tiny_config

from dflash_mlx.convert.plan import expected_tensors
from dflash_mlx.convert.zlab import parse
from dflash_mlx.drafter.rope_config import RopeConfig
from dflash_mlx.errors import UserError

FIXTURES = Path(__file__).parent.parent / "fixtures"
PLANS = json.loads((FIXTURES / "tensor_plans.json").read_text())

# Heads, block size, mask token and taps of published checkpoints, from their model cards' configs.
PUBLISHED = {
    "z-lab__Qwen3-4B-DFlash-b16": (32, 8, 128, 16, 151669, (1, 9, 17, 25, 33), 36, 1e6),
    "z-lab__Qwen3-8B-DFlash-b16": (32, 8, 128, 16, 151669, (1, 9, 17, 25, 33), 36, 1e6),
    "z-lab__Qwen3.5-4B-DFlash@v1": (32, 8, 128, 16, 248070, (1, 8, 15, 22, 29), 32, 1e7),
    "z-lab__Qwen3.5-9B-DFlash@v1": (32, 8, 128, 16, 248070, (1, 8, 15, 22, 29), 32, 1e7),
    "z-lab__Qwen3.5-27B-DFlash@v1": (32, 8, 128, 16, 248070, (1, 16, 31, 46, 61), 64, 1e7),
    "z-lab__Qwen3.5-35B-A3B-DFlash@v1": (32, 4, 128, 16, 248070, (1, 10, 19, 28, 37), 40, 1e7),
    "z-lab__Qwen3.6-35B-A3B-DFlash@v1": (32, 4, 128, 16, 248070, (1, 10, 19, 28, 37), 40, 1e7),
    "z-lab__Kimi-K2.6-DFlash": (64, 8, 128, 8, 163838, (1, 12, 24, 35, 47, 58), 61, 5e4),
}

# These copies were collected without the keys named; the rest of them is complete.
INCOMPLETE = {
    "z-lab__gpt-oss-120b-DFlash": {"rope_theta": 150000},
    "nvidia__Kimi-K2.7-Code-DFlash": {"rope_theta": 50000},
    "z-lab__LLaMA3.1-8B-Instruct-DFlash-UltraChat": {"mask_token_id": 5, "rope_theta": 500000},
    "z-lab__Qwen3-Coder-30B-A3B-DFlash": {"mask_token_id": 151669, "rope_theta": 1e7},
    "z-lab__Qwen3-Coder-Next-DFlash": {"mask_token_id": 151669, "rope_theta": 1e7},
}

REFUSED = {
    "AngelSlim__Qwen3-8B-DFly-Block8": "DFly",
    "JetSpec__jetspec-Qwen3.6-35B-A3B": "causal block .*causal_head",
    "RadixArk__Qwen3.8-27B-DSpark": "DSpark",
    "RedHatAI__Qwen3-8B-speculator.dflash": "speculators format",
    "XiaomiMiMo__MiMo-V2.5-Pro-FP4-DFlash": "sliding.*partial rotary.*sinks.*value scale",
    "deepseek-ai__dflash_gemma4_12b_block7": "DSpark",
    "deepseek-ai__dflash_qwen3_4b_block7": "DSpark",
    "lightseekorg__kimi-k3-dflash2": "DFlash 2",
    "meta-models__Muse-Glimmer-30B-assistant": "Muse assistant",
    "modal-labs__Kimi-K3-DFlash": "sliding-window attention .*4096.* without layer_types",
    "nvidia__NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4-DFlash": "its own embedding table",
    "nvidia__NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4-DSpark": "DSpark",
    "poolside__Laguna-XS-2.1-DFlash": "Laguna",
    "poolside__Laguna-XS.2-speculator.dflash": "speculators format",
    "z-lab__Muse-Glimmer-30B-DFlash2": "DFlash 2",
    "z-lab__Qwen3.5-4B-DFlash@v2": "sliding-window attention",
    "z-lab__Qwen3.6-27B-DFlash": "sliding-window attention",
    "z-lab__gemma-4-31B-it-DFlash": "softcapping .*30.0.*sliding-window attention",
}


def published(name: str) -> dict[str, Any]:
    return json.loads((FIXTURES / "configs" / f"{name}.json").read_text())


def check_plan(name: str, config: dict[str, Any]) -> None:
    plan = PLANS[name]
    shapes = dict(plan["top"])
    for i in range(plan["layers"]):
        shapes |= {f"layers.{i}.{key}": shape for key, shape in plan["layer"].items()}
    expected = expected_tensors(parse(config))
    assert {key: list(tensor.shape) for key, tensor in expected.items()} == shapes


def test_every_published_config_is_tested() -> None:
    names = {path.stem for path in (FIXTURES / "configs").iterdir()}
    assert names == set(PUBLISHED) | set(INCOMPLETE) | set(REFUSED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published(name: str) -> None:
    config = parse(published(name))
    assert PUBLISHED[name] == (
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
        config.block_size,
        config.mask_token_id,
        config.target_layer_ids,
        config.num_target_layers,
        config.rope.theta,
    )
    assert config.target_hidden_size == config.hidden_size
    check_plan(name, published(name))


def test_published_yarn() -> None:
    """mscale equals mscale_all_dim, so the amplitude is 1, and not 0.1 ln 64 + 1."""
    assert parse(published("z-lab__Kimi-K2.6-DFlash")).rope == RopeConfig(
        rope_type="yarn",
        theta=50000.0,
        factor=64.0,
        attention_factor=1.0,
        traditional=False,
        original_max_position_embeddings=4096,
        beta_fast=32.0,
        beta_slow=1.0,
    )


@pytest.mark.parametrize("name", INCOMPLETE)
def test_incomplete(name: str) -> None:
    config, absent = published(name), dict(INCOMPLETE[name])
    while absent:
        with pytest.raises(UserError, match=f"has no {next(iter(absent))}"):
            parse(config)
        key = next(iter(absent))
        config[key] = absent.pop(key)
    check_plan(name, config)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    with pytest.raises(UserError, match=REFUSED[name]) as error:
        parse(published(name))
    assert "\n" not in str(error.value)


BLOCK = {
    "top": ({"block_size": 8}, {}),
    "nested": ({}, {"block_size": 8}),
    "equal": ({"block_size": 8}, {"block_size": 8}),
    "different": ({"block_size": 8}, {"block_size": 16}),
    "absent": ({}, {}),
}
THETA = {
    "top": {"rope_theta": 5000.0},
    "parameters": {"rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"}},
    "scaling": {"rope_scaling": {"rope_theta": 5000.0, "type": "default"}},
    "equal": {"rope_theta": 5000, "rope_parameters": {"rope_theta": 5000.0}},
    "different": {"rope_theta": 5000.0, "rope_parameters": {"rope_theta": 7000.0}},
    "absent": {},
    "null": {"rope_theta": None, "rope_parameters": None, "rope_scaling": None},
}


@pytest.mark.parametrize(("block", "theta"), [*itertools.product(BLOCK, THETA)])
def test_block_size_and_theta_wherever_they_are(block: str, theta: str) -> None:
    top, nested = BLOCK[block]
    config = tiny_config(**{"block_size": None, "rope_theta": None} | top | THETA[theta])
    config["dflash_config"] |= nested
    problem = {"different": "block_size is 8 .* but 16", "absent": "no block_size"}.get(block)
    problem = problem or {
        "different": "rope_theta as 5000.0 .*7000.0",
        "absent": "no rope_theta",
        "null": "no rope_theta",
    }.get(theta)
    if problem is None:
        parsed = parse(config)
        assert (parsed.block_size, parsed.rope.theta) == (8, 5000.0)
    else:
        with pytest.raises(UserError, match=problem):
            parse(config)


@pytest.mark.parametrize(
    "key",
    [
        "attention_bias",
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        "rms_norm_eps",
        "vocab_size",
    ],
)
def test_missing_key(key: str) -> None:
    config = tiny_config(**{key: None})
    # Without layer_types, a missing num_hidden_layers is reported as itself.
    config.pop("layer_types")
    with pytest.raises(UserError, match=f"has no {key}"):
        parse(config)


@pytest.mark.parametrize("key", ["mask_token_id", "target_layer_ids"])
def test_missing_nested_key(key: str) -> None:
    with pytest.raises(UserError, match=f"has no {key}"):
        parse(tiny_config(dflash_config={key: None}))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"mask_token_id": 62}, "mask_token_id is 62 .* but 63"),
        ({"target_layer_ids": [1, 5, 8]}, r"target_layer_ids is \[1, 5, 8\]"),
        ({"dflash_config": {"num_target_layers": 13}}, "num_target_layers is 12 .* but 13"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 5, 9]}, r"need \[2, 6, 10\]"),
        ({"num_aux_layers": 4}, "num_aux_layers is 4"),
        ({"pard_token": 62}, "pard_token is 62"),
        ({"draft_vocab_size": 32}, "draft_vocab_size is 32"),
        ({"num_target_layers": 10}, "tap on the target's last layer"),
        ({"num_target_layers": 3}, "below num_target_layers"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
        ({"head_dim": None, "num_attention_heads": 6}, "no head_dim"),
        ({"dflash_config": {"mask_token_id": "<mask>"}}, "mask_token_id"),
        ({"dflash_config": {"target_layer_ids": 3}}, "target_layer_ids"),
        ({"architectures": ["Qwen3ForCausalLM"]}, "not a DFlash drafter"),
        ({"model_type": "llama"}, "not a DFlash drafter"),
        ({"secret_switch": 3}, "does not know: secret_switch"),
        ({"dflash_config": {"mystery": 1}}, "does not know: dflash_config.mystery"),
        ({"open_spec_config_version": "0.0.0"}, "Open Spec Config"),
    ],
)
def test_contradictions_and_unknown_keys(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        parse(tiny_config(**changes))


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
    assert parse(tiny_config(**changes)) == parse(tiny_config())


def test_null_is_absent() -> None:
    assert parse(tiny_config() | {"dspark_markov_rank": None, "unknown": None}) == parse(
        tiny_config()
    )


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("key", "value", "name"),
    [
        ("use_swa", True, "sliding-window"),
        ("is_causal", True, "causal"),
        ("causal", True, "causal"),
        ("causal_head", True, "causal"),
        ("conv_kernel_size", 2, "DFlash 2"),
        ("selector_rank", 256, "DFlash 2"),
        ("markov_rank", 256, "DSpark"),
        ("projector_type", "domino", "projector .*domino"),
        ("final_logit_softcapping", 30.0, "softcapping"),
        ("output_multiplier", 0.196, "output multiplier"),
        ("input_embedding_scale", 8.0, "embedding scale"),
        ("partial_rotary_factor", 0.5, "partial rotary"),
        ("attention_sink_bias", True, "sinks"),
        ("attention_value_scale", 0.612, "value scale"),
        ("gating", "per-head", "gated"),
        ("attention_mode", "mla", "MLA"),
        ("shift_label", True, "shifted"),
        ("sample_from_anchor", True, "shifted"),
        ("has_embed_tokens", True, "embedding table"),
        ("has_lm_head", True, "head"),
    ],
)
def test_feature(key: str, value: Any, name: str, nested: bool) -> None:
    changes = {"dflash_config": {key: value}} if nested else {key: value}
    with pytest.raises(UserError, match=name) as error:
        parse(tiny_config(**changes))
    assert f"{'dflash_config.' if nested else ''}{key}: " in str(error.value)


def test_other_activation() -> None:
    with pytest.raises(UserError, match=r"activation .*gelu"):
        parse(tiny_config(hidden_act="gelu"))


def test_taps_wider_than_the_drafter() -> None:
    config = parse(tiny_config(target_hidden_size=80))
    assert expected_tensors(config)["fc.weight"].shape == (64, 3 * 80)


def test_head_dim_from_the_quotient() -> None:
    assert parse(tiny_config(head_dim=None)).head_dim == 16
