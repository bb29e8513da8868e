"""What other drafters have and this version does not run, refused by name.

A drafter with a part left out still runs and still gives text: only its acceptance collapses. So a
feature is either implemented or refused; nothing is skipped. To open a feature, remove its row.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from ..errors import UserError
from .keys import Keys


class Feature(NamedTuple):
    """A feature and the config keys that switch it on.

    A key is off when it is absent or when its value equals one of ``off``.
    """

    name: str
    keys: tuple[str, ...]
    off: tuple[Any, ...] = (None, False)


FEATURES = (
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
    Feature("gated tap fusion", ("fusion_type",), (None, "concat_fc")),
    Feature("partial rotary embedding", ("partial_rotary_factor",), (None, 1)),
    Feature("a second rotary base", ("backbone_rotary_base",)),
    Feature("attention sinks", ("attention_sink_bias", "attention_sink")),
    Feature("an attention value scale", ("attention_value_scale",), (None, 1)),
    Feature("gated attention", ("gating", "attn_output_gate")),
    Feature("multi-head latent attention (MLA)", ("attention_mode", "kv_lora_rank", "q_lora_rank")),
    Feature("a window for each layer", ("sliding_windows",)),
    Feature("hyper-connection streams", ("hc_mult", "hyper_connection_streams"), (None, False, 1)),
    Feature("mixture-of-experts layers", ("num_experts", "num_local_experts")),
    Feature("biases in the MLP", ("mlp_bias",)),
    Feature("an activation other than silu", ("hidden_act",), (None, "silu")),
    Feature("weights quantized otherwise", ("quantization", "compression_config")),
)

# Parts of a tensor's name that only another kind of drafter has.
_TENSOR_MARKS = {
    "markov_": "DSpark's heads",
    "confidence_": "DSpark's heads",
    "joint_proj": "DSpark's heads",
    "refiner_head.": "Xpress's refiner",
    "prefix_gru.": "Domino's prefix network",
    "embed_proj.": "Domino's prefix network",
    "hidden_correction.": "DFly's hidden correction",
    "layer_fusion_weights": "DFly's layer fusion",
    "proj_target.": "DFlare's target projections",
    "attention_sink": "attention sinks",
    "g_proj.": "gated attention",
    "qkv_proj.": "Laguna's fused projections",
    "aux_hidden_norms.": "Laguna's tap norms",
    "kv_a_proj": "multi-head latent attention (MLA)",
    "kv_b_proj": "multi-head latent attention (MLA)",
    "pre_feedforward_layernorm.": "Gemma 4 layers",
    "layer_scalar": "Gemma 4 layers",
    "mlp.experts.": "mixture-of-experts layers",
}


def refuse_features(keys: Keys) -> None:
    """Check that a raw config switches on nothing that this version does not run.

    Raises:
        UserError: Names every feature found, with the key and its value.
    """
    found = []
    for feature in FEATURES:
        active = [
            f"{where}: {_short(value)}"
            for where, value in keys.all(*feature.keys).items()
            if value not in feature.off
        ]
        if active:
            found.append(f"{feature.name} ({', '.join(active)})")
    if found:
        raise UserError(
            f"This drafter has {', '.join(found)}, which this version does not run; "
            "use another drafter for this target."
        )


def refuse_tensors(names: Iterable[str]) -> None:
    """Check that no tensor belongs to another kind of drafter, whatever the config says.

    Raises:
        UserError: Names the kind and a tensor.
    """
    for name in sorted(names):
        for mark, feature in _TENSOR_MARKS.items():
            if mark in name:
                raise UserError(
                    f"This drafter has {feature} (tensor {name}), which this version does not run; "
                    "use another drafter for this target."
                )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
