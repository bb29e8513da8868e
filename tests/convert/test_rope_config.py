"""The rotary embedding of raw configs, in all its spellings."""

import math
from typing import Any

import pytest
from tiny_checkpoint import parsed_config, tiny_config

from dflash_mlx.errors import UserError

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}


@pytest.mark.parametrize(
    ("extra", "amplitude"),
    [
        ({}, 0.1 * math.log(4) + 1),
        ({"attention_factor": 1.25, "mscale": 1.0, "mscale_all_dim": 2.0}, 1.25),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        (
            {"mscale": 0.7, "mscale_all_dim": 1.0},
            (0.07 * math.log(4) + 1) / (0.1 * math.log(4) + 1),
        ),
        # transformers takes the ratio only if both are given.
        ({"mscale": 0.7}, 0.1 * math.log(4) + 1),
        ({"mscale": 0.7, "mscale_all_dim": 0}, 0.1 * math.log(4) + 1),
    ],
)
def test_yarn_amplitude(extra: dict[str, float], amplitude: float) -> None:
    rope = parsed_config(tiny_config(rope_scaling=YARN | extra)).rope
    assert rope.attention_factor == pytest.approx(amplitude, abs=1e-12)
    assert (rope.beta_fast, rope.beta_slow) == (32.0, 1.0)


@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("spelling", ["type", "rope_type"])
def test_rope_spellings(place: str, spelling: str) -> None:
    yarn = {spelling: "yarn", **{k: v for k, v in YARN.items() if k != "rope_type"}}
    assert parsed_config(tiny_config(**{place: yarn})) == parsed_config(
        tiny_config(rope_scaling=YARN)
    )


def test_llama3_and_linear() -> None:
    llama3 = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    rope = parsed_config(tiny_config(rope_scaling=llama3)).rope
    assert (rope.factor, rope.low_freq_factor, rope.high_freq_factor) == (8.0, 1.0, 4.0)
    assert (
        parsed_config(tiny_config(rope_scaling={"type": "linear", "factor": 2.0})).rope.factor
        == 2.0
    )


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"rope_scaling": {"type": "yarn", "rope_type": "linear"}}, "rope type as"),
        ({"rope_scaling": YARN, "rope_parameters": {"rope_type": "default"}}, "but rope_scaling"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "longrope"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "lacks original_max"),
        ({"rope_scaling": {"rope_type": "linear"}}, "lacks factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "2"}}, "factor"),
        ({"rope_scaling": {"rope_type": "default", "factor": 4.0}}, "does not use"),
        ({"rope_scaling": YARN | {"factor": "4"}}, "factor"),
        ({"rope_scaling": YARN | {"truncate": False}}, "truncate"),
        ({"rope_scaling": YARN | {"short_factor": [1.0]}}, "short_factor"),
        ({"rope_scaling": {"partial_rotary_factor": 0.5}}, "partial rotary"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "one object of numbers"),
        ({"rope_theta": -1}, "theta"),
    ],
)
def test_rope_mistakes(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        parsed_config(tiny_config(**changes))


def test_rope_style() -> None:
    assert parsed_config(tiny_config(is_neox_style=False)).rope.traditional
    assert not parsed_config(tiny_config(is_neox_style=True)).rope.traditional
    with pytest.raises(UserError, match="rope style"):
        parsed_config(tiny_config(is_neox_style=True, rope_is_neox_style=False))


def test_amplitude_that_the_user_gives() -> None:
    """It overrules the config's, and means nothing without YaRN."""
    config = tiny_config(rope_scaling=YARN | {"mscale": 1.0, "mscale_all_dim": 1.0})
    assert parsed_config(config).rope.attention_factor == 1.0
    assert parsed_config(config, attention_factor=1.4158883).rope.attention_factor == 1.4158883
    with pytest.raises(UserError, match=r"--attention-factor is for YaRN.*'default'"):
        parsed_config(tiny_config(), attention_factor=1.2)
    with pytest.raises(UserError, match="attention_factor is -1"):
        parsed_config(config, attention_factor=-1.0)
