"""Every published config gets the verdict it should, and its plan of tensors is ours."""

import re
from dataclasses import replace
from typing import Any

import pytest
from published import COMPLETED, NAMES, PLANS, REFUSED, RUNS, Runs, add, completed, plan, published

from dflash_mlx.convert.detect import parse, recognize
from dflash_mlx.convert.export import zlab_config
from dflash_mlx.convert.keys import Additions
from dflash_mlx.convert.tensors import model_parameters
from dflash_mlx.drafter.config import DrafterConfig
from dflash_mlx.drafter.rope_config import RopeConfig
from dflash_mlx.errors import UserError
from dflash_mlx.loading.known_pairs import KnownPair, known_pairs


def test_every_published_config_has_a_verdict() -> None:
    assert len(NAMES) == 44
    assert set(NAMES) == set(RUNS) | set(REFUSED)
    assert set(RUNS).isdisjoint(REFUSED)


@pytest.mark.parametrize("name", RUNS)
def test_runs(name: str) -> None:
    """Also exported to what reads back as the same drafter, or refused by name."""
    verdict = recognize(completed(name))
    assert Runs.of(verdict.format, verdict.parsed.config) == RUNS[name]
    config = without_mask(verdict.parsed.config)
    assert config.target_hidden_size == config.hidden_size
    try:
        exported = zlab_config(config)
    except UserError as error:
        assert any(key in str(error) for key in ("num_target_layers", "has_", "window_rule"))
        assert not name.startswith("z-lab") or config.num_target_layers is None
        return
    assert without_mask(recognize(exported).parsed.config) == config


def without_mask(config: DrafterConfig) -> DrafterConfig:
    """As long as nobody has seen the tensors, there may be a mask embedding."""
    return replace(config, has_mask_embedding=False, mask_token_id=0)


@pytest.mark.parametrize("name", sorted(set(RUNS) & set(PLANS)))
def test_plan(name: str) -> None:
    """With the tensors' published names, every shape we expect is the published one."""
    shapes = plan(name)
    if name == "z-lab__Alpamayo-1.5-10B-DFlash":
        # Its mask embedding comes in a file of its own.
        shapes["mask_embedding"] = (4096,)
    parsed, (used, dropped) = parse(completed(name), shapes, Additions())
    expected = {key: array.shape for key, array in model_parameters(parsed.config).items()}
    assert {key: shapes[in_file] for key, in_file in used.items()} == expected
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


# The settings that a wrong guess would halve acceptance with, and say nothing.
CONVENTIONS: dict[str, dict[str, Any]] = {
    "z-lab__gemma-4-31B-it-DFlash": {"embed_scale": "target", "final_logit_softcapping": 30.0},
    "z-lab__Qwen3-4B-DFlash-b16": {"embed_scale": "target", "final_logit_softcapping": None},
    "z-lab__Muse-Glimmer-30B-DFlash2": {
        "embed_scale": "raw",
        "final_logit_softcapping": 20.0,
        "output_multiplier": 0.19611613513818404,
    },
    "z-lab__Qwen3.8-27B-DFlash2": {
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 256,
        "selector_top_k": 16,
    },
    "meta-models__Muse-Glimmer-30B-assistant": {"embed_scale": "raw"},
    "RedHatAI__gemma-4-31B-it-speculator.dflash": {"embed_scale": "raw"},
    "RedHatAI__Qwen3-8B-speculator.dflash": {
        "window_rule": "anchor",
        "draft_vocab_size": 32000,
        "has_lm_head": True,
    },
    "deepseek-ai__dflash_qwen3_4b_block7": {
        "embed_scale": "raw",
        "sample_from_anchor": True,
        "has_embed_tokens": True,
        "has_lm_head": True,
    },
    "nvidia__NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4-DFlash": {
        "has_embed_tokens": True,
        "has_lm_head": False,
    },
    # mscale equals mscale_all_dim, so the amplitude is 1, and not 0.1 ln 64 + 1.
    "z-lab__Kimi-K2.6-DFlash": {
        "rope": RopeConfig(
            rope_type="yarn",
            theta=50000.0,
            factor=64.0,
            attention_factor=1.0,
            traditional=False,
            original_max_position_embeddings=4096,
            beta_fast=32.0,
            beta_slow=1.0,
        )
    },
}


@pytest.mark.parametrize("name", CONVENTIONS)
def test_conventions(name: str) -> None:
    config = recognize(completed(name)).parsed.config
    assert {key: getattr(config, key) for key in CONVENTIONS[name]} == CONVENTIONS[name]
    assert config.sample_from_anchor is ("deepseek" in name)


def configs_of(pair: KnownPair) -> list[str]:
    return [name for name in NAMES if name.split("@")[0].replace("__", "/", 1) == pair.drafter]


CHECKED = [(pair, name) for pair in known_pairs() for name in configs_of(pair)]


def test_most_of_the_table_of_known_pairs_is_checked() -> None:
    assert len({pair.drafter for pair, _ in CHECKED}) >= 30


@pytest.mark.parametrize(
    ("pair", "name"), CHECKED, ids=lambda value: getattr(value, "drafter", value)
)
def test_known_pair(pair: KnownPair, name: str) -> None:
    if name in REFUSED:
        assert pair.unsupported is not None
        return
    config = recognize(completed(name)).parsed.config
    assert pair.unsupported is None or "--block-size" in pair.unsupported
    assert pair.block_size in (RUNS[name].block_size, None)
    assert (pair.hidden_size, pair.vocab_size) == (config.target_hidden_size, config.vocab_size)
    assert config.num_target_layers in (pair.num_layers, None)
