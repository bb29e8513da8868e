"""Which format a checkpoint is in, and whether this version runs it, from config and names."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ..drafter.config import MODEL_TYPE
from ..errors import UserError
from ..files import check_json
from .declared import mlx_quantization
from .fields import Names, Parsed
from .keys import Additions, unsupported
from .speculators import parse_open_spec, parse_speculators, speculators_kind
from .tensors import MASK_EMBEDDING, NameMap, map_names
from .zlab import is_plain_deepspec, parse_deepspec, parse_muse, parse_zlab

_PARSERS: dict[str, Callable[[Mapping[str, Any], Names, Additions], Parsed]] = {
    "open-spec": parse_open_spec,
    "speculators": parse_speculators,
    "muse-assistant": parse_muse,
    "deepspec": parse_deepspec,
    "z-lab": parse_zlab,
}
_OPEN_SPEC_KEYS = ("open_spec_config_version", "speculative_config")
_SPECULATORS_KEYS = ("speculators_model_type", "speculators_config", "transformer_layer_config")
_ARCHITECTURES = (["DFlashDraftModel"], ["DFlash2DraftModel"])

_MTP = "layers that draft one token after another out of the target's own cache"
# Kinds of drafters that look like DFlash on the disk: a part of the architecture's, model type's or
# projector's name (the first that fits counts), what it is called, and what sets it apart.
_OTHER_KINDS = (
    ("gemma4assistant", "Gemma 4 MTP assistant", _MTP),
    ("gemma4_assistant", "Gemma 4 MTP assistant", _MTP),
    ("gemma4", "DeepSpec Gemma 4", "Gemma 4 layers: four norms, partial rotary"),
    ("dspark", "DSpark", "a Markov head: each row reads the token drafted before it"),
    ("domino", "Domino", "a recurrent network over the tokens drafted before"),
    ("dfly", "DFly", "a hidden correction, and a fusion of the taps in each layer"),
    ("dflare", "DFlare", "projections of their own for the target's states"),
    ("laguna", "Laguna", "gated attention, and norms for each tap and layer"),
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


@dataclass(frozen=True)
class Recognized:
    """What a checkpoint is, as far as its config tells.

    Attributes:
        format: The format's name, or of the kind of drafter; ``"unknown"`` if it is none.
        problem: Why this version does not convert it, in one sentence; None if it does.
        parsed: The config as read, if there is no problem; own tables that it does not mention are
            missing.
    """

    format: str
    problem: str | None
    parsed: Parsed | None


def recognize(config: Mapping[str, Any]) -> Recognized:
    """Tell by a config.json alone what a checkpoint is and whether this version converts it."""
    kind = "unknown"
    try:
        check_json(config, "The config")
        kind, _ = _other_kind(config) or (kind, "")
        kind = find_format(config)
        parsed, _ = parse(config, None, Additions())
    except UserError as error:
        return Recognized(kind, str(error), None)
    return Recognized(parsed.format, None, parsed)


def parse(
    config: Mapping[str, Any],
    names: Collection[str] | None,
    additions: Additions,
    *,
    has_mask_file: bool = False,
) -> tuple[Parsed, NameMap]:
    """Read a config of any format, and find out which tensor is which.

    Args:
        config: The parsed config.json.
        names: The tensors' names as in the files, if they are known.
        additions: What the user adds to the config.
        has_mask_file: Whether there is, or may be, a mask embedding beside the tensors.

    Raises:
        UserError: This version does not run it, or something is missing or contradictory.
    """
    kind = find_format(config)
    if mlx_quantization(config):
        # How the weights are stored, which says nothing of the drafter.
        config = {key: value for key, value in config.items() if key != "quantization"}
    mapped = map_names(names or (), kind)
    for name in sorted(mapped.used):
        for mark, part in _TENSOR_MARKS.items():
            if mark in name:
                raise unsupported(f"{part} (tensor {name})")
    known = None if names is None else {*mapped.used}
    if names is not None and has_mask_file:
        known.add(MASK_EMBEDDING)
    return _PARSERS[kind](config, known, additions), mapped


def find_format(config: Mapping[str, Any]) -> str:
    """The format that a raw config declares, by the first thing that names one.

    In order: the Open Spec Config's and speculators' own keys, the model type, the architectures.

    Raises:
        UserError: It is another kind of drafter, named with what it has, or none at all.
    """
    if any(config.get(key) is not None for key in _OPEN_SPEC_KEYS):
        return "open-spec"
    if any(config.get(key) is not None for key in _SPECULATORS_KEYS):
        kind = speculators_kind(config)
        if kind not in ("dflash", "dflash2"):
            raise UserError(
                f"This is a drafter in speculators format of speculators_model_type {kind!r}, "
                "which this version does not run; use a DFlash drafter for this target."
            )
        return "speculators"
    if config.get("model_type") == "muse_glimmer_assistant":
        return "muse-assistant"
    if is_plain_deepspec(config):
        return "deepspec"
    architectures, model_type = config.get("architectures"), config.get("model_type")
    declared = f"architectures {architectures!r} and model_type {model_type!r}"
    if other := _other_kind(config):
        name, reason = other
        raise UserError(
            f"This is a {name} drafter ({declared}), which has {reason}; this version does not run "
            "that; use a DFlash drafter for this target."
        )
    if model_type not in ("qwen3", MODEL_TYPE) or architectures not in _ARCHITECTURES:
        raise UserError(
            f"This is not a DFlash drafter: config.json has {declared}, and z-lab's layout has "
            "['DFlashDraftModel'] or ['DFlash2DraftModel'] and 'qwen3'."
        )
    return "z-lab"


def _other_kind(config: Mapping[str, Any]) -> tuple[str, str] | None:
    """The other kind of drafter that a raw config declares itself to be, and what sets it apart."""
    nested = config.get("dflash_config")
    places = [config, nested] if isinstance(nested, Mapping) else [config]
    keys = ("architectures", "model_type", "model_arch", "projector_type", "speculators_model_type")
    declared = " ".join(str(place.get(key)) for place in places for key in keys).lower()
    return next(((name, why) for mark, name, why in _OTHER_KINDS if mark in declared), None)
