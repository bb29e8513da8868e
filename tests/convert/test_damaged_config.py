"""Configs of every format with one thing wrong: refused in a sentence that names it."""

from typing import Any

import pytest
from formats import CONFIGS
from test_any_value import changed, paths

from dflash_mlx.convert.detect import recognize


def problem_of(config: dict[str, Any]) -> str:
    problem = recognize(config).problem
    assert problem is not None and "\n" not in problem and problem.endswith(".")
    return problem


# A value that cannot be, for every key that some format has, and what names the key if not itself.
WRONG: dict[str, tuple[Any, str]] = {
    "num_attention_heads": (3, ""),
    "num_key_value_heads": (0, ""),
    "head_dim": (15, ""),
    "num_hidden_layers": (2.0, ""),
    "rms_norm_eps": ("1e-6", ""),
    "vocab_size": (0, ""),
    "draft_vocab_size": (65, ""),
    "block_size": (0, ""),
    "speculative_tokens": (0, ""),
    "sample_from_anchor": (2, ""),
    "conv_kernel_size": (99, ""),
    "conv_group_size": (7, ""),
    "selector_rank": (0, ""),
    "selector_top_k": (99, ""),
    "mask_token_id": (-1, ""),
    "target_layer_ids": ([1, 9, 5], ""),
    "aux_hidden_state_layer_ids": ([2, 2, 6], ""),
    "eagle_aux_hidden_state_layer_ids": ([1, 5, 9], ""),
    "target_layer_start_idx": (7, ""),
    "target_num_hidden_layers": (3, "num_target_layers"),
    "num_target_layers": (4, ""),
    "num_aux_layers": (9, ""),
    "pard_token": (5, ""),
    "swa_window_size": (2, "use_swa"),
    "sliding_window": (0, ""),
    "layer_types": (["full_attention"] * 2 + ["linear_attention"], ""),
    "hidden_act": ("gelu_pytorch_tanh", ""),
    "causal_head": ("yes", "causality"),
    "rope_theta": (-1.0, "theta"),
    "rope_type": ("longrope", "longrope"),
    "factor": (0.5, ""),
    "original_max_position_embeddings": (None, ""),
}


@pytest.mark.parametrize("format_name", CONFIGS)
def test_wrong_value(format_name: str) -> None:
    config = CONFIGS[format_name]()
    for path in paths(config):
        if path[-1] in WRONG and path[0] != "speculators_config":
            value, named = WRONG[path[-1]]
            assert (named or path[-1]) in problem_of(changed(config, path, value))


BODY = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"),
    *("rms_norm_eps", "block_size", "mask_token_id", "rope_theta"),
)
ZLAB = (*BODY, "vocab_size", "num_hidden_layers", "target_layer_ids")
DFLASH2 = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
SPECULATORS = (
    *("vocab_size", "block_size", "mask_token_id"),
    *("aux_hidden_state_layer_ids", "sliding_window"),
)
# What a format must have; the rest has a meaning when it is absent.
REQUIRED = {
    "z-lab": ZLAB,
    "z-lab v2": (*ZLAB, "sliding_window"),
    "z-lab DFlash 2": (*ZLAB, "sliding_window", *DFLASH2),
    "ModelOpt": (*BODY, "vocab_size", "swa_window_size"),
    "JetSpec": ZLAB,
    "speculators": SPECULATORS,
    "speculators, whole vocabulary": SPECULATORS,
    "speculators DFlash 2": (*SPECULATORS, *DFLASH2),
    "Open Spec Config": (
        *("method", "speculative_tokens", "target_layer_ids", "target_layer_start_idx"),
        *("sample_from_anchor", "mask_token_id", "sliding_window_non_causal", "vocab_size"),
    ),
    "Muse assistant": (*BODY, "target_layer_ids", "sliding_window"),
    "DeepSpec": ZLAB,
    "AngelSpec": ZLAB,
}


@pytest.mark.parametrize("format_name", CONFIGS)
def test_missing_key(format_name: str) -> None:
    for key in REQUIRED[format_name]:
        config = CONFIGS[format_name]()
        if key == "num_hidden_layers":
            config.pop("layer_types", None)
        found = [path for path in paths(config) if path[-1] == key]
        assert found
        for path in found:
            config = changed(config, path, ...)
        assert key in problem_of(config)


@pytest.mark.parametrize("format_name", CONFIGS)
def test_taps_are_never_guessed(format_name: str) -> None:
    config = CONFIGS[format_name]()
    for path in [*paths(config)]:
        if path[-1].endswith("layer_ids"):
            config = changed(config, path, ...)
    assert "layer_ids" in problem_of(config)


@pytest.mark.parametrize("format_name", CONFIGS)
def test_copies_that_differ_and_keys_that_nobody_knows(format_name: str) -> None:
    config = CONFIGS[format_name]()
    nested = [key for key in ("dflash_config", "transformer_layer_config") if config.get(key)]
    for outer in ((), *((key,) for key in nested)):
        problem = problem_of(changed(config, (*outer, "sparsity_ratio"), 0.5))
        assert "does not know: sparsity_ratio" in problem
    for key in ("block_size", "mask_token_id", "vocab_size") if nested else ():
        [path] = [path for path in paths(config) if path[-1] == key]
        other = (key,) if len(path) > 1 else (nested[0], key)
        problem = problem_of(changed(config, other, 17))
        assert f"{key} is" in problem and "17" in problem
