"""Whatever stands in a config, the answer is a verdict and never another exception."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from formats import CONFIGS

from dflash_mlx.convert.detect import recognize

VALUES = (None, "x", "", -1, 0, 1, 1.5, float("nan"), True, [], [1], ["x"], {}, {"x": 1}, 10**30)


def with_each_value(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The config with one key, at any depth, at each of the values."""

    def paths(values: dict[str, Any]) -> Iterator[tuple[str, ...]]:
        for key, value in values.items():
            yield (key,)
            if isinstance(value, dict):
                yield from ((key, *path) for path in paths(value))

    for path in paths(config):
        for value in VALUES:
            changed = copy.deepcopy(config)
            place = changed
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = value
            yield changed


@pytest.mark.parametrize("format_name", CONFIGS)
def test_any_value_of_any_key(format_name: str) -> None:
    verdicts = [recognize(config) for config in with_each_value(CONFIGS[format_name]())]
    assert len(verdicts) > 250
    problems = [verdict.problem for verdict in verdicts if verdict.problem is not None]
    assert len(problems) > len(verdicts) / 3
    assert all("\n" not in problem and problem.endswith(".") for problem in problems)
    assert all((v.problem is None) == (v.parsed is not None) for v in verdicts)


TAPS = ("target_layer_ids", "aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids")


def without_taps(config: Any) -> Any:
    if not isinstance(config, dict):
        return config
    return {key: without_taps(value) for key, value in config.items() if key not in TAPS}


@pytest.mark.parametrize("format_name", CONFIGS)
def test_taps_are_never_guessed(format_name: str) -> None:
    problem = recognize(without_taps(CONFIGS[format_name]())).problem
    assert problem is not None and any(key in problem for key in TAPS)


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
