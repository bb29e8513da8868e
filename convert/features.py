"""What other drafters have and this version does not run, refused by name.

A drafter with a part left out still runs and still gives text: only its acceptance collapses. So a
feature is either implemented or refused; nothing is skipped. To open a feature, remove its row.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..errors import UserError


class Feature(NamedTuple):
    """A feature and the keys that switch it on, at the top level or in ``dflash_config``.

    A key is off when it is absent or when its value equals one of ``off``.
    """

    name: str
    keys: tuple[str, ...]
    off: tuple[Any, ...] = (None, False)


FEATURES = (
    Feature("sliding-window attention", ("use_swa", "swa_window_size", "sliding_windows")),
    Feature(
        "a causal block",
        ("is_causal", "causal", "causal_head", "dflash_query_causal", "use_causal"),
    ),
    Feature(
        "DFlash 2's convolutions and candidate selector",
        ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"),
    ),
    Feature(
        "DSpark's heads",
        (
            "markov_rank",
            "markov_head_type",
            "dspark_markov_rank",
            "dspark_fixup_head_type",
            "dspark_bonus_anchor",
            "enable_confidence_head",
        ),
    ),
    Feature(
        "DFly's hidden correction",
        ("enable_hidden_correction", "hidden_correction_intermediate_size"),
    ),
    Feature("another projector", ("projector_type", "model_arch"), (None, "dflash")),
    Feature("logit softcapping", ("final_logit_softcapping", "logit_softcapping"), (None,)),
    Feature("an output multiplier", ("output_multiplier",), (None, 1)),
    Feature("an input embedding scale", ("input_embedding_scale",), (None, 1)),
    Feature("partial rotary embedding", ("partial_rotary_factor",), (None, 1)),
    Feature("a second rotary base", ("backbone_rotary_base",)),
    Feature("attention sinks", ("attention_sink_bias", "attention_sink")),
    Feature("an attention value scale", ("attention_value_scale",), (None, 1)),
    Feature("gated attention", ("gating", "attn_output_gate")),
    Feature("multi-head latent attention (MLA)", ("attention_mode", "kv_lora_rank", "q_lora_rank")),
    Feature("shifted rows", ("shift_label", "draft_shift", "sample_from_anchor")),
    Feature("its own embedding table", ("has_embed_tokens",)),
    Feature("its own head", ("has_lm_head",)),
    Feature("mixture-of-experts layers", ("num_experts", "num_local_experts")),
    Feature("biases in the MLP", ("mlp_bias",)),
    Feature("a drafter without taps", ("use_aux_hidden_state",), (None, True)),
    Feature("an activation other than silu", ("hidden_act",), (None, "silu")),
)
FEATURE_KEYS = frozenset(key for feature in FEATURES for key in feature.keys)

# Order matters: the first key found names the format.
_OTHER_FORMAT_KEYS = {
    "open_spec_config_version": "the Open Spec Config",
    "speculative_config": "the Open Spec Config",
    "target_layer_start_idx": "the Open Spec Config",
    "speculators_model_type": "the speculators",
    "speculators_config": "the speculators",
    "transformer_layer_config": "the speculators",
}
_OTHER_KINDS = {
    "DFlash2": "DFlash 2",
    "DSpark": "DSpark",
    "DFly": "DFly",
    "DFlare": "DFlare",
    "Domino": "Domino",
    "Laguna": "Laguna",
    "MuseGlimmerAssistant": "Muse assistant",
    "Speculator": "speculators",
}

_LAYER_TYPES = {"sliding_attention": "sliding-window attention"}

# Parts of a tensor's name that only one other kind of drafter has.
_TENSOR_MARKS = {
    "attention_conv.": "DFlash 2's convolutions",
    "mlp_conv.": "DFlash 2's convolutions",
    "candidate_selector.": "DFlash 2's candidate selector",
    "markov_": "DSpark's heads",
    "confidence_": "DSpark's heads",
    "prefix_gru.": "Domino's prefix network",
    "embed_proj.": "Domino's prefix network",
    "hidden_correction.": "DFly's hidden correction",
    "layer_fusion_weights": "DFly's layer fusion",
    "proj_target.": "DFlare's target projections",
    "hidden_dim_adapter.": "JetSpec's hidden_dim_adapter",
    "attention_sink": "attention sinks",
    "g_proj.": "gated attention",
    "qkv_proj.": "Laguna's fused projections",
    "aux_hidden_norms.": "Laguna's tap norms",
    "encoder.": "the Muse assistant's layout",
    "context_proj.": "AngelSpec's layout",
    "embed_tokens.": "its own embedding table",
    "lm_head.": "its own head",
    "d2t": "a reduced draft vocabulary",
    "t2d": "a reduced draft vocabulary",
}


def refuse_other_formats(config: Mapping[str, Any]) -> None:
    """Check that a raw config declares the z-lab v1 layout.

    Raises:
        UserError: It declares another format or another kind of model, which the message names.
    """
    for key, name in _OTHER_FORMAT_KEYS.items():
        if config.get(key) is not None:
            raise UserError(
                f"This drafter is in {name} format (it has {key}), which this version does not "
                "read; use a checkpoint in the z-lab DFlash format."
            )
    architectures = config.get("architectures")
    declared = f"architectures {architectures!r} and model_type {config.get('model_type')!r}"
    for part, name in _OTHER_KINDS.items():
        if isinstance(architectures, list) and any(part in str(a) for a in architectures):
            raise UserError(
                f"This is a {name} drafter ({declared}), which this version does not run; "
                "use a z-lab DFlash v1 checkpoint."
            )
    if config.get("model_arch") == "dflare":
        raise UserError("This is a DFlare drafter (model_arch 'dflare'), which is not DFlash v1.")
    if architectures != ["DFlashDraftModel"] or config.get("model_type") != "qwen3":
        raise UserError(
            f"This is not a DFlash drafter: config.json has {declared}, and a z-lab DFlash v1 "
            "checkpoint has ['DFlashDraftModel'] and 'qwen3'."
        )


def refuse_features(config: Mapping[str, Any], nested: Mapping[str, Any]) -> None:
    """Check that a raw config switches on nothing that this version does not run.

    Args:
        config: The top level of config.json.
        nested: Its ``dflash_config``.

    Raises:
        UserError: Names every feature found, with the key and its value.
    """
    found = []
    places = (("", config), ("dflash_config.", nested))
    for feature in FEATURES:
        active = [
            f"{place}{key}: {_short(values[key])}"
            for key in feature.keys
            for place, values in places
            if key in values and values[key] not in feature.off
        ]
        if active:
            found.append(f"{feature.name} ({', '.join(active)})")
    found += _sliding_layers(config)
    if found:
        raise UserError(
            f"This drafter has {', '.join(found)}, which this version does not run; "
            "use a plain z-lab DFlash v1 checkpoint."
        )


def feature_of_tensor(name: str) -> str | None:
    """The feature of another kind of drafter that a tensor's name gives away, if any."""
    return next((what for part, what in _TENSOR_MARKS.items() if part in name), None)


def _sliding_layers(config: Mapping[str, Any]) -> list[str]:
    """Layers that are not full attention; without ``layer_types``, a window is ambiguous."""
    layer_types = config.get("layer_types")
    if layer_types is not None:
        if not isinstance(layer_types, list) or len(layer_types) != config.get("num_hidden_layers"):
            raise UserError(
                f"layer_types is {_short(layer_types)}; it must list one type for each of the "
                f"num_hidden_layers ({config.get('num_hidden_layers')!r}) layers."
            )
        others = sorted({str(t) for t in layer_types} - {"full_attention"})
        return [f"{_LAYER_TYPES.get(t, t)} (layer_types)" for t in others]
    window, switch = config.get("sliding_window"), config.get("use_sliding_window")
    if switch or (window is not None and switch is not False):
        return [f"sliding-window attention (sliding_window: {window!r}) without layer_types"]
    return []


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
