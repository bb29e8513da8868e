"""Which format a checkpoint is in, and whether this version runs it, from config and names."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..drafter.config import MODEL_TYPE
from ..errors import UserError
from .additions import Additions
from .deepspec import is_plain_dflash, parse_deepspec
from .features import refuse_tensors
from .fields import Names
from .muse import parse_muse
from .names import map_names
from .open_spec import parse_open_spec
from .parsed import Parsed
from .plan import MASK_EMBEDDING
from .speculators import parse_speculators, speculators_kind
from .zlab import parse_zlab

_PARSERS: dict[str, Callable[[Mapping[str, Any], Names, Additions], Parsed]] = {
    "open-spec": parse_open_spec,
    "speculators": parse_speculators,
    "muse-assistant": parse_muse,
    "deepspec": parse_deepspec,
    "z-lab": parse_zlab,
}
_OPEN_SPEC_KEYS = ("open_spec_config_version", "speculative_config")
_SPECULATORS_KEYS = ("speculators_model_type", "speculators_config", "transformer_layer_config")


class _OtherKind(NamedTuple):
    mark: str
    name: str
    reason: str


# By a part of the architecture's, model type's or projector's name; the first that fits counts.
_OTHER_KINDS = (
    _OtherKind("gemma4", "DeepSpec Gemma 4", "Gemma 4 layers: four norms, partial rotary"),
    _OtherKind("dspark", "DSpark", "a Markov head: each row reads the token drafted before it"),
    _OtherKind("domino", "Domino", "a recurrent network over the tokens drafted before"),
    _OtherKind("dfly", "DFly", "a hidden correction, and a fusion of the taps in each layer"),
    _OtherKind("dflare", "DFlare", "projections of their own for the target's states"),
    _OtherKind("laguna", "Laguna", "gated attention, and norms for each tap and layer"),
)


@dataclass(frozen=True)
class Verdict:
    """What a checkpoint is, as far as its config and its tensors' names tell.

    Attributes:
        format: The format's name, or of the kind of drafter; ``"unknown"`` if it is none.
        problem: Why this version does not convert it, in one sentence; None if it does.
        parsed: The config as read, if there is no problem. As long as the tensors' names are not
            known, own tables that the config does not mention are missing from it.
    """

    format: str
    problem: str | None
    parsed: Parsed | None


def recognize(
    config: Mapping[str, Any],
    names: Collection[str] | None = None,
    additions: Additions | None = None,
) -> Verdict:
    """Tell what a checkpoint is and whether this version converts it.

    Args:
        config: The parsed config.json.
        names: The tensors' names as in the files, if an index or a header is at hand.
        additions: What the user adds to the config.
    """
    other = _other_kind(config)
    try:
        kind = find_format(config)
    except UserError as error:
        return Verdict(other.name if other else "unknown", str(error), None)
    try:
        # A mask embedding may come in a file of its own, which no index lists.
        parsed = parse(config, names, additions or Additions(), has_mask_file=True)
    except UserError as error:
        return Verdict(kind, str(error), None)
    return Verdict(parsed.format, None, parsed)


def parse(
    config: Mapping[str, Any],
    names: Collection[str] | None,
    additions: Additions,
    *,
    has_mask_file: bool = False,
) -> Parsed:
    """Read a config of any format.

    Args:
        config: The parsed config.json.
        names: The tensors' names as in the files, if they are known.
        additions: What the user adds to the config.
        has_mask_file: Whether there is, or may be, a mask embedding beside the tensors.

    Raises:
        UserError: This version does not run it, or something is missing or contradictory.
    """
    parser = _PARSERS[find_format(config)]
    parsed = parser(config, None, additions)
    if names is None:
        return parsed
    used = set(map_names(names, parsed.renames).used)
    refuse_tensors(used)
    return parser(config, used | {MASK_EMBEDDING} if has_mask_file else used, additions)


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
    if is_plain_dflash(config):
        return "deepspec"
    declared = (
        f"architectures {config.get('architectures')!r} and model_type {config.get('model_type')!r}"
    )
    if other := _other_kind(config):
        raise UserError(
            f"This is a {other.name} drafter ({declared}), which has {other.reason}; this version "
            "does not run that; use a DFlash drafter for this target."
        )
    if config.get("model_type") not in ("qwen3", MODEL_TYPE) or config.get("architectures") not in (
        ["DFlashDraftModel"],
        ["DFlash2DraftModel"],
    ):
        raise UserError(
            f"This is not a DFlash drafter: config.json has {declared}, and z-lab's layout has "
            "['DFlashDraftModel'] or ['DFlash2DraftModel'] and 'qwen3'."
        )
    return "z-lab"


def _other_kind(config: Mapping[str, Any]) -> _OtherKind | None:
    nested = config.get("dflash_config")
    places = [config, nested] if isinstance(nested, Mapping) else [config]
    keys = ("architectures", "model_type", "model_arch", "projector_type", "speculators_model_type")
    declared = " ".join(str(place.get(key)) for place in places for key in keys).lower()
    return next((kind for kind in _OTHER_KINDS if kind.mark in declared), None)
