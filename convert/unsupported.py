"""What other drafters have and this version does not run, refused by name.

A drafter with a part left out still runs and still gives text: only its acceptance collapses. So a
part is either implemented or refused; nothing is skipped. To open one, remove its row.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ..errors import UserError
from .keys import Keys


class OtherKind(NamedTuple):
    """A kind of drafter that looks like DFlash on the disk, and what sets it apart."""

    mark: str
    name: str
    reason: str


# By a part of the architecture's, model type's or projector's name; the first that fits counts.
_OTHER_KINDS = (
    OtherKind("gemma4", "DeepSpec Gemma 4", "Gemma 4 layers: four norms, partial rotary"),
    OtherKind("dspark", "DSpark", "a Markov head: each row reads the token drafted before it"),
    OtherKind("domino", "Domino", "a recurrent network over the tokens drafted before"),
    OtherKind("dfly", "DFly", "a hidden correction, and a fusion of the taps in each layer"),
    OtherKind("dflare", "DFlare", "projections of their own for the target's states"),
    OtherKind("laguna", "Laguna", "gated attention, and norms for each tap and layer"),
)
# The keys that switch a part on, and the values of theirs with which it is off, beside null.
_PARTS: dict[str, tuple[tuple[str, ...], tuple[Any, ...]]] = {
    "DSpark's heads": (
        (
            *("markov_rank", "markov_head_type", "dspark_markov_rank", "dspark_fixup_head_type"),
            *("dspark_bonus_anchor", "enable_confidence_head"),
        ),
        (False,),
    ),
    "DFly's hidden correction": (
        ("enable_hidden_correction", "hidden_correction_intermediate_size"),
        (False,),
    ),
    "another projector": (("projector_type", "model_arch"), ("dflash",)),
    "gated tap fusion": (("fusion_type",), ("concat_fc",)),
    "partial rotary embedding": (("partial_rotary_factor",), (1,)),
    "a second rotary base": (("backbone_rotary_base",), (False,)),
    "attention sinks": (("attention_sink_bias", "attention_sink"), (False,)),
    "an attention value scale": (("attention_value_scale",), (1,)),
    "gated attention": (("gating", "attn_output_gate"), (False,)),
    "multi-head latent attention (MLA)": (
        ("attention_mode", "kv_lora_rank", "q_lora_rank"),
        (False,),
    ),
    "a window for each layer": (("sliding_windows",), (False,)),
    "hyper-connection streams": (("hc_mult", "hyper_connection_streams"), (False, 1)),
    "mixture-of-experts layers": (("num_experts", "num_local_experts"), (False,)),
    "biases in the MLP": (("mlp_bias",), (False,)),
    "an activation other than silu": (("hidden_act",), ("silu",)),
    "weights quantized otherwise": (("quantization", "compression_config"), (False,)),
}
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


def other_kind(config: Mapping[str, Any]) -> OtherKind | None:
    """The other kind of drafter that a raw config declares itself to be."""
    nested = config.get("dflash_config")
    places = [config, nested] if isinstance(nested, Mapping) else [config]
    keys = ("architectures", "model_type", "model_arch", "projector_type", "speculators_model_type")
    declared = " ".join(str(place.get(key)) for place in places for key in keys).lower()
    return next((kind for kind in _OTHER_KINDS if kind.mark in declared), None)


def refuse_parts(keys: Keys) -> None:
    """Check that a raw config switches on nothing that this version does not run.

    Raises:
        UserError: Names everything found, with the key and its value.
    """
    found = []
    for name, (switches, off) in _PARTS.items():
        values = keys.all(*switches).items()
        active = [f"{where}: {_short(value)}" for where, value in values if value not in off]
        if active:
            found.append(f"{name} ({', '.join(active)})")
    if found:
        raise _unsupported(", ".join(found))


def refuse_tensors(names: Iterable[str]) -> None:
    """Check that no tensor belongs to another kind of drafter, whatever the config says.

    Raises:
        UserError: Names the kind and a tensor.
    """
    for name in sorted(names):
        for mark, part in _TENSOR_MARKS.items():
            if mark in name:
                raise _unsupported(f"{part} (tensor {name})")


def _unsupported(what: str) -> UserError:
    return UserError(
        f"This drafter has {what}, which this version does not run; use another drafter for this "
        "target."
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
