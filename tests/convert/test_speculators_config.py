"""Configs of speculators and the Open Spec Config, which say the same in two layouts."""

from collections.abc import Callable
from typing import Any

import pytest
from formats import open_spec_config, speculators_config
from tiny_checkpoint import parsed_config, tiny_config

from dflash_mlx.convert.detect import recognize
from dflash_mlx.errors import UserError


def nested(**changes: Any) -> dict[str, Any]:
    """A change of ``transformer_layer_config``."""
    return {"transformer_layer_config": changes}


def test_both_layouts_say_the_same() -> None:
    assert parsed_config(open_spec_config()) == parsed_config(speculators_config())
    layer = speculators_config()["transformer_layer_config"]
    flat = speculators_config() | layer
    del flat["transformer_layer_config"]
    assert parsed_config(flat) == parsed_config(speculators_config())


def test_what_is_read() -> None:
    config = parsed_config(speculators_config())
    assert config.target_layer_ids == (1, 5, 9)
    assert (config.block_size, config.sample_from_anchor) == (8, False)
    assert (config.window_rule, config.sliding_window) == ("anchor", 6)
    assert config.sliding == (True, True, False)
    assert (config.embed_scale, config.has_lm_head) == ("raw", True)
    assert (config.vocab_size, config.draft_vocab_size) == (64, 24)


def test_kind_by_the_algorithm() -> None:
    config = speculators_config(speculators_model_type=None)
    config["speculators_config"]["algorithm"] = "dflash"
    assert parsed_config(config) == parsed_config(speculators_config())


def test_sliding_layers_are_causal_unless_told() -> None:
    assert parsed_config(speculators_config()).causal == (True, True, False)
    config = parsed_config(speculators_config(sliding_window_non_causal=True))
    assert config.causal == (False, False, False)


def test_defaults_of_the_hugging_face_class() -> None:
    """The library leaves out what Qwen3Config or LlamaConfig has anyway."""
    bare = {"vocab_size": 64, "model_type": None}
    config = speculators_config(draft_vocab_size=64, mask_token_id=63)
    config["transformer_layer_config"] = bare
    parsed = parsed_config(config)
    heads = parsed.num_attention_heads, parsed.num_key_value_heads, parsed.head_dim
    assert heads == (32, 32, 128)
    assert (parsed.hidden_size, parsed.intermediate_size) == (4096, 22016)
    assert (parsed.num_hidden_layers, parsed.rms_norm_eps, parsed.rope.theta) == (32, 1e-6, 1e4)
    config["transformer_layer_config"] = bare | {"model_type": "llama", "num_attention_heads": 64}
    llama = parsed_config(config)
    assert (llama.head_dim, llama.intermediate_size) == (64, 11008)


def test_rope_by_layer_type() -> None:
    """As the library flattens it: the sliding layers' entry is used for all."""
    by_type = {
        "sliding_attention": {"rope_theta": 5e4, "rope_type": "default"},
        "full_attention": {"rope_theta": 1e6, "rope_type": "default"},
    }
    config = speculators_config(**nested(rope_parameters=by_type))
    assert parsed_config(config).rope.theta == 5e4
    del by_type["sliding_attention"]
    with pytest.raises(UserError, match="full_attention"):
        parsed_config(speculators_config(**nested(rope_parameters=by_type)))


@pytest.mark.parametrize(
    ("shifted", "block_size", "tokens", "expected"),
    [(False, 8, 7, 8), (False, 8, 8, 8), (True, 7, 7, 8)],
)
def test_block_size_before_and_after_the_change(
    shifted: bool, block_size: int, tokens: int, expected: int
) -> None:
    config = speculators_config(block_size=block_size, sample_from_anchor=shifted)
    config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] = tokens
    assert parsed_config(config).block_size == expected


@pytest.mark.parametrize(("start", "taps"), [(0, (2, 6, 10)), (1, (1, 5, 9))])
@pytest.mark.parametrize("shifted", [False, True])
def test_open_spec_counts(start: int, taps: tuple[int, ...], shifted: bool) -> None:
    config = open_spec_config(target_layer_start_idx=start, sample_from_anchor=shifted)
    parsed = parsed_config(config)
    # Seven predictions and the anchor either way.
    assert (parsed.target_layer_ids, parsed.block_size) == (taps, 8)
    assert parsed.sample_from_anchor is shifted


def test_verifier_is_recorded() -> None:
    for config in (speculators_config(), open_spec_config()):
        verifier = recognize(config).parsed.verifier
        assert verifier == {
            "name_or_path": "Qwen/Qwen3-8B",
            "architectures": ["Qwen3ForCausalLM"],
        }


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"aux_hidden_state_layer_ids": [0, 6]}, "embeddings"),
        ({"aux_hidden_state_layer_ids": [6, 2]}, "strictly increasing"),
        ({"aux_hidden_state_layer_ids": "6"}, "must be a list"),
        ({"mask_token_id": 64}, "mask_token_id is 64"),
        ({"speculators_model_type": "eagle3"}, "speculators_model_type 'eagle3'"),
        (nested(model_type="gemma3_text"), "model_type 'gemma3_text'"),
        (nested(use_sliding_window=False), "use_sliding_window is False"),
        (nested(sliding_window=None), "no sliding_window"),
        (nested(sliding_window=[6, 6, 0]), "sliding_window"),
        (nested(layer_types=None, use_sliding_window=True), "without layer_types"),
        ({"sliding_window_non_causal": 1}, "sliding_window_non_causal is 1"),
        ({"transformer_layer_config": [1]}, "must be an object"),
    ],
)
def test_mistakes(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        parsed_config(speculators_config(**changes))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"algorithm": "dspark"}, "algorithm is 'dspark'"),
        ({"proposal_methods": [{"speculative_tokens": 5}]}, "speculative_tokens is 5"),
        ({"proposal_methods": 3}, "proposal_methods"),
        ({"verifier": 3}, "verifier is 3"),
        (
            {"verifier": {"name_or_path": "d/V4", "architectures": ["DeepseekV4ForCausalLM"]}},
            "hyper-connection",
        ),
        ({"verifier": {"name_or_path": "deepseek-ai/DeepSeek-V4-Flash"}}, "hyper-connection"),
        ({"verifier": {"name_or_path": 3}}, "name_or_path is 3"),
        ({"verifier": {"name_or_path": ["Qwen/Qwen3-8B"]}}, "name_or_path is"),
        ({"verifier": {"name_or_path": "a", "architectures": "b"}}, "architectures is 'b'"),
    ],
)
def test_mistakes_about_the_target(changes: dict[str, Any], problem: str) -> None:
    config = speculators_config()
    config["speculators_config"] |= changes
    with pytest.raises(UserError, match=problem):
        parsed_config(config)


@pytest.mark.parametrize("make", [speculators_config, tiny_config, open_spec_config])
def test_streams_for_taps(make: Callable[[], dict[str, Any]]) -> None:
    """By the widths alone, whatever else is missing, and not by an option that it asks for."""
    config = make() | {"target_hidden_size": 256}
    for incomplete in (config, {k: v for k, v in config.items() if k != "mask_token_id"}):
        problem = recognize(incomplete).problem
        assert "4 hyper-connection streams each (target_hidden_size 256, hidden_size 64)" in problem
    assert recognize(make() | {"target_hidden_size": 64}).problem is None
    assert recognize(make() | {"target_hidden_size": 80}).problem is None


def test_whole_dictionaries_of_hugging_face() -> None:
    """Some versions write all that the base class has into the Open Spec Config."""
    config = open_spec_config() | HUGGING_FACE
    assert parsed_config(config) == parsed_config(open_spec_config())


# transformers 4.57's PretrainedConfig, as far as it is not null.
HUGGING_FACE = {
    "return_dict": True,
    "torchscript": False,
    "pruned_heads": {},
    "chunk_size_feed_forward": 0,
    "add_cross_attention": False,
    "id2label": {"0": "LABEL_0"},
    "max_length": 20,
    "num_beams": 1,
    "temperature": 1.0,
    "top_k": 50,
    "repetition_penalty": 1.0,
    "use_bfloat16": False,
    "_name_or_path": "",
}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"method": "eagle3"}, "a 'eagle3' drafter"),
        ({"speculative_tokens": 0}, "speculative_tokens is 0"),
        ({"speculative_tokens": 7.5}, "speculative_tokens is 7.5"),
        ({"target_layer_ids": [-1, 2]}, "embeddings"),
        ({"target_layer_ids": 3}, "must be a list"),
        ({"target_layer_start_idx": 2}, "target_layer_start_idx is 2"),
        ({"sample_from_anchor": "false"}, "sample_from_anchor is 'false'"),
        ({"sample_from_anchor": None}, "lacks sample_from_anchor"),
        ({"block_size": 16}, "block_size, which the Open Spec Config 0.0.0 does not have"),
        ({"dflash_config": {}}, "dflash_config"),
    ],
)
def test_mistakes_in_open_spec(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        parsed_config(open_spec_config(**changes))


def test_other_version_of_open_spec() -> None:
    config = open_spec_config() | {"open_spec_config_version": "1.0.0"}
    with pytest.raises(UserError, match=r"'1.0.0'.*'0.0.0'"):
        parsed_config(config)
