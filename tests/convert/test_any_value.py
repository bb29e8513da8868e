"""Whatever stands in a config, the answer is a verdict and never another exception."""

import copy
import functools
from collections.abc import Iterator
from typing import Any

import pytest
from formats import CONFIGS

from dflash_mlx.convert.detect import recognize

VALUES = (None, "x", "", -1, 0, 1, 1.5, float("nan"), True, [], [1], ["x"], {}, {"x": 1}, 10**30)


def paths(values: Any) -> Iterator[tuple[str, ...]]:
    """The path of every key, at any depth."""
    for key, value in values.items() if isinstance(values, dict) else ():
        yield (key,)
        yield from ((key, *path) for path in paths(value))


def changed(config: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """The config with one key at another value; ``...`` removes it."""
    config = copy.deepcopy(config)
    place = functools.reduce(lambda inner, key: inner[key], path[:-1], config)
    place[path[-1]] = value
    if value is ...:
        del place[path[-1]]
    return config


@pytest.mark.parametrize("format_name", CONFIGS)
def test_any_value_of_any_key(format_name: str) -> None:
    config = CONFIGS[format_name]()
    verdicts = [recognize(changed(config, path, v)) for path in paths(config) for v in VALUES]
    assert len(verdicts) > 250
    problems = [verdict.problem for verdict in verdicts if verdict.problem is not None]
    assert len(problems) > len(verdicts) / 3
    assert all("\n" not in problem and problem.endswith(".") for problem in problems)
    assert all((v.problem is None) == (v.parsed is not None) for v in verdicts)


@pytest.mark.parametrize("value", VALUES)
def test_keys_that_a_format_may_have(value: Any) -> None:
    for key in (
        *("open_spec_config_version", "speculative_config", "speculators_metadata"),
        *("speculators_model_type", "speculators_config", "transformer_layer_config"),
        *("dflash_config", "rope_parameters", "rope_scaling", "is_causal", "use_swa"),
        *("quantization_config", "target_hidden_size", "draft_vocab_size", "num_aux_layers"),
        *("markov_rank", "projector_type", "sliding_window", "is_neox_style", "v_head_dim"),
    ):
        for make in CONFIGS.values():
            recognize(make() | {key: value})
