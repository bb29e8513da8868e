"""What a checkpoint is called, and in which order its marks count."""

from typing import Any

import pytest
from formats import CONFIGS, as_source, drafter_of, open_spec_config, random_tensors
from tiny_checkpoint import tiny_config

from dflash_mlx.convert.detect import recognize

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
    drafter = drafter_of(format_name)
    names = list(as_source(random_tensors(drafter), drafter, format_name))
    for known in (None, names):
        verdict = recognize(CONFIGS[format_name](), known)
        assert (verdict.format, verdict.problem) == (FORMATS[format_name], None)
    assert verdict.parsed.config == drafter or verdict.parsed.config.has_mask_embedding


def test_order() -> None:
    """What is named first counts: published speculators configs have z-lab's architecture."""
    speculators = CONFIGS["speculators"]() | {"architectures": ["DFlashDraftModel"]}
    assert recognize(speculators).format == "speculators"
    both = open_spec_config() | {"speculators_model_type": "dflash"}
    assert recognize(both).format == "open-spec"
    muse = CONFIGS["Muse assistant"]() | {"architectures": ["DFlashDraftModel"]}
    assert recognize(muse).format == "muse-assistant"


@pytest.mark.parametrize(
    ("changes", "kind", "problem"),
    [
        ({"architectures": ["Qwen3DSparkModel"], "markov_rank": 256}, "DSpark", "Markov head"),
        ({"architectures": ["Qwen3DSparkModel"]}, "DSpark", "Markov head"),
        ({"architectures": ["DSparkDraftModel"]}, "DSpark", "Markov head"),
        ({"architectures": ["DominoDraftModel"]}, "Domino", "recurrent network"),
        ({"dflash_config": {"projector_type": "dspark"}}, "DSpark", "Markov head"),
        ({"dflash_config": {"projector_type": "domino"}}, "Domino", "recurrent network"),
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
    assert verdict.format == kind
    assert problem in verdict.problem
    assert verdict.parsed is None


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("markov_w1.weight", "DSpark's heads (tensor markov_w1.weight)"),
        ("confidence_head.proj.weight", "DSpark's heads"),
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
    names = list(random_tensors(drafter_of("z-lab")))
    assert recognize(tiny_config(), names).problem is None
    assert problem in recognize(tiny_config(), [*names, name]).problem


def test_own_tables_are_known_by_their_names() -> None:
    names = list(random_tensors(drafter_of("z-lab")))
    config = recognize(tiny_config(), [*names, "embed_tokens.weight"]).parsed.config
    assert (config.has_embed_tokens, config.has_lm_head) == (True, False)
    bias = "layers.0.self_attn.q_proj.bias"
    no_key = tiny_config(attention_bias=None)
    assert not recognize(no_key, names).parsed.config.attention_bias
    assert recognize(no_key, [*names, bias]).parsed.config.attention_bias
