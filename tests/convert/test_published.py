"""Every published config gets the verdict it should, and its plan of tensors is ours."""

import re

import pytest
from published import COMPLETED, NAMES, PLANS, REFUSED, RUNS, Runs, add, completed, plan, published

from dflash_mlx.convert.detect import find_format, recognize
from dflash_mlx.convert.fields import Parsed
from dflash_mlx.convert.tensors import map_names, model_parameters
from dflash_mlx.drafter.rope_config import RopeConfig


def parsed(name: str, names: list[str] | None = None) -> Parsed:
    verdict = recognize(completed(name), names)
    assert verdict.problem is None
    return verdict.parsed


def test_every_published_config_has_a_verdict() -> None:
    assert len(NAMES) == 44
    assert set(NAMES) == set(RUNS) | set(REFUSED)
    assert set(RUNS).isdisjoint(REFUSED)


@pytest.mark.parametrize("name", RUNS)
def test_runs(name: str) -> None:
    verdict = recognize(completed(name))
    config = verdict.parsed.config
    letters = [
        ("s" if sliding else "f").upper() if causal else ("s" if sliding else "f")
        for sliding, causal in zip(config.sliding, config.causal, strict=True)
    ]
    assert RUNS[name] == Runs(
        verdict.format,
        "".join(letters),
        (config.num_attention_heads, config.num_key_value_heads, config.head_dim),
        config.block_size,
        config.mask_token_id,
        config.target_layer_ids,
        config.num_target_layers,
        config.rope.theta,
        config.sliding_window,
    )
    assert config.target_hidden_size == config.hidden_size


@pytest.mark.parametrize("name", sorted(set(RUNS) & set(PLANS)))
def test_plan(name: str) -> None:
    """With the tensors' published names, every shape we expect is the published one."""
    shapes = plan(name)
    if name == "z-lab__Alpamayo-1.5-10B-DFlash":
        # Its mask embedding comes in a file of its own.
        shapes["mask_embedding"] = (4096,)
    read = parsed(name, list(shapes))
    used, dropped = map_names(shapes, find_format(completed(name)))
    expected = model_parameters(read.config)
    assert {key: shapes[in_file] for key, in_file in used.items()} == {
        key: tensor.shape for key, tensor in expected.items() if key in used
    }
    assert set(expected) - set(used) <= {"mask_embedding"}
    assert set(dropped) <= {"t2d"}


@pytest.mark.parametrize("name", COMPLETED)
def test_a_copy_without_a_key_is_refused_by_that_key(name: str) -> None:
    config = published(name)
    for key, value in COMPLETED[name].items():
        leaf = key.rpartition(".")[2]
        if not key.startswith("transformer_layer_config."):
            assert f"has no {leaf}" in recognize(config).problem
        add(config, key, value)
    assert recognize(config).problem is None


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    verdict = recognize(published(name))
    kind, problem = REFUSED[name]
    assert (verdict.format, verdict.parsed) == (kind, None)
    assert re.search(problem, verdict.problem)
    assert "\n" not in verdict.problem


def test_yarn() -> None:
    """mscale equals mscale_all_dim, so the amplitude is 1, and not 0.1 ln 64 + 1."""
    assert parsed("z-lab__Kimi-K2.6-DFlash").config.rope == RopeConfig(
        rope_type="yarn",
        theta=50000.0,
        factor=64.0,
        attention_factor=1.0,
        traditional=False,
        original_max_position_embeddings=4096,
        beta_fast=32.0,
        beta_slow=1.0,
    )


@pytest.mark.parametrize(
    ("name", "embed_scale", "softcap", "multiplier"),
    [
        ("z-lab__gemma-4-31B-it-DFlash", "target", 30.0, 1.0),
        ("z-lab__Qwen3-4B-DFlash-b16", "target", None, 1.0),
        ("z-lab__Muse-Glimmer-30B-DFlash2", "raw", 20.0, 0.19611613513818404),
        ("meta-models__Muse-Glimmer-30B-assistant", "raw", None, 1.0),
        ("RedHatAI__gemma-4-31B-it-speculator.dflash", "raw", None, 1.0),
        ("deepseek-ai__dflash_qwen3_4b_block7", "raw", None, 1.0),
    ],
)
def test_embeddings_and_logits(
    name: str, embed_scale: str, softcap: float | None, multiplier: float
) -> None:
    config = parsed(name).config
    found = config.embed_scale, config.final_logit_softcapping, config.output_multiplier
    assert found == (embed_scale, softcap, multiplier)


def test_what_the_conventions_are() -> None:
    """The settings that a wrong guess would halve acceptance with, and say nothing."""
    nemotron = parsed("nvidia__NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4-DFlash").config
    assert (nemotron.has_embed_tokens, nemotron.has_lm_head) == (True, False)
    assert nemotron.rope.attention_factor == pytest.approx(1.4852030263919618)
    deepspec = parsed("deepseek-ai__dflash_qwen3_4b_block7").config
    assert deepspec.sample_from_anchor
    assert (deepspec.has_embed_tokens, deepspec.has_lm_head) == (True, True)
    red_hat = parsed("RedHatAI__Qwen3-8B-speculator.dflash")
    assert (red_hat.tap_base, red_hat.config.window_rule) == (1, "anchor")
    assert (red_hat.config.draft_vocab_size, red_hat.config.has_lm_head) == (32000, True)
    assert red_hat.verifier == {
        "name_or_path": "Qwen/Qwen3-8B",
        "architectures": ["Qwen3ForCausalLM"],
    }
    assert not any(
        parsed(name).config.sample_from_anchor for name in RUNS if "deepseek" not in name
    )
    dflash2 = parsed("z-lab__Qwen3.8-27B-DFlash2").config
    assert (dflash2.conv_kernel_size, dflash2.conv_group_size) == (2, 16)
    assert (dflash2.selector_rank, dflash2.selector_top_k) == (256, 16)
