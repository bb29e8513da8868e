"""What a checkpoint is called, and in which order its marks count."""

from typing import Any

import pytest
from formats import CONFIGS, make, open_spec_config
from tiny_checkpoint import parsed_config, tiny_config

from dflash_mlx.convert.detect import parse, recognize
from dflash_mlx.convert.keys import Additions
from dflash_mlx.errors import UserError

FORMATS = {
    "z-lab": "z-lab",
    "z-lab v2": "z-lab",
    "z-lab DFlash 2": "z-lab-dflash2",
    "ModelOpt": "z-lab",
    "JetSpec": "jetspec",
    "speculators": "speculators",
    "speculators, whole vocabulary": "speculators",
    "speculators DFlash 2": "speculators-dflash2",
    "Open Spec Config": "open-spec",
    "Muse assistant": "muse-assistant",
    "DeepSpec": "deepspec",
    "AngelSpec": "angelspec",
}


@pytest.mark.parametrize("format_name", CONFIGS)
def test_format(format_name: str) -> None:
    """From the config alone, and with the tensors' names."""
    made, config = make(format_name), CONFIGS[format_name]()
    verdict = recognize(config)
    assert (verdict.format, verdict.problem) == (FORMATS[format_name], None)
    assert verdict.parsed.config.has_mask_embedding
    parsed, _ = parse(config, made.stored, Additions())
    assert (parsed.format, parsed.config) == (FORMATS[format_name], made.config)


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        # Published speculators configs have z-lab's architecture.
        (CONFIGS["speculators"]() | {"architectures": ["DFlashDraftModel"]}, "speculators"),
        (open_spec_config() | {"speculators_model_type": "dflash"}, "open-spec"),
        (CONFIGS["Muse assistant"]() | {"architectures": ["DFlashDraftModel"]}, "muse-assistant"),
    ],
)
def test_what_is_named_first_counts(config: dict[str, Any], kind: str) -> None:
    assert recognize(config).format == kind


@pytest.mark.parametrize(
    ("changes", "kind", "problem"),
    [
        ({"architectures": ["Qwen3DSparkModel"], "markov_rank": 256}, "DSpark", "Markov head"),
        ({"architectures": ["Qwen3DSparkModel"]}, "DSpark", "Markov head"),
        ({"architectures": ["DominoDraftModel"]}, "Domino", "recurrent network"),
        ({"dflash_config": {"projector_type": "dspark"}}, "DSpark", "Markov head"),
        ({"architectures": ["Qwen3DFlyModel"]}, "DFly", "hidden correction"),
        ({"model_type": "dflash", "model_arch": "dflare"}, "DFlare", "projections of their own"),
        ({"model_type": "laguna"}, "Laguna", "gated attention"),
        ({"model_type": "gemma4_text"}, "DeepSpec Gemma 4", "four norms"),
        ({"architectures": ["Qwen3ForCausalLM"]}, "unknown", "not a DFlash drafter"),
        ({"architectures": None}, "unknown", "not a DFlash drafter"),
        ({"model_type": "llama"}, "unknown", "not a DFlash drafter"),
        ({"speculators_model_type": "eagle3"}, "unknown", "speculators_model_type 'eagle3'"),
        ({"speculators_model_type": "dspark"}, "DSpark", "speculators_model_type 'dspark'"),
    ],
)
def test_refused(changes: dict[str, Any], kind: str, problem: str) -> None:
    verdict = recognize(tiny_config(**changes))
    assert (verdict.format, verdict.parsed) == (kind, None)
    assert problem in verdict.problem


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("markov_w1.weight", "DSpark's heads (tensor markov_w1.weight)"),
        ("embed_proj.0.weight", "Domino's prefix network"),
        ("layer_fusion_weights", "DFly's layer fusion"),
        ("layers.0.self_attn.v_proj_target.weight", "DFlare's target projections"),
        ("aux_hidden_norms.0.weight", "Laguna's tap norms"),
        ("layers.0.self_attn.kv_b_proj.weight", "(MLA)"),
        ("layers.0.layer_scalar", "Gemma 4 layers"),
    ],
)
def test_a_tensor_gives_another_kind_away(name: str, problem: str) -> None:
    """Whatever the config declares."""
    with pytest.raises(UserError) as error:
        parse(tiny_config(), [*make("z-lab").stored, name], Additions())
    assert problem in str(error.value)


def test_own_tables_and_biases_are_known_by_their_names() -> None:
    config = parsed_config(tiny_config(), "embed_tokens.weight")
    assert (config.has_embed_tokens, config.has_lm_head) == (True, False)
    no_key, bias = tiny_config(attention_bias=None), "layers.0.self_attn.q_proj.bias"
    assert not parsed_config(no_key).attention_bias
    assert parsed_config(no_key, bias).attention_bias
