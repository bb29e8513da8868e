"""The rotary embedding of a Hugging Face config, in either of its spellings."""

import math
from collections.abc import Mapping
from typing import Any

from ..drafter.checks import check_bool, check_number, reject
from ..drafter.rope_config import RopeConfig
from ..errors import UserError
from .keys import Keys, contradict, unsupported

# The numbers of a rope type without which it has no meaning, as in transformers'
# modeling_rope_utils; YaRN's others have a rule.
_NEEDED = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        *("factor", "low_freq_factor", "high_freq_factor"),
        "original_max_position_embeddings",
    ),
    "yarn": ("factor", "original_max_position_embeddings"),
}
_YARN = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")
_COMMON = ("rope_theta", "rope_type", "type", "partial_rotary_factor")
_STYLES = ("is_neox_style", "rope_is_neox_style")


def rope_config(keys: Keys) -> RopeConfig:
    """The rotary embedding that a raw config describes.

    The base is ``rope_theta`` or ``rope_parameters.rope_theta``; the scaling is ``rope_parameters``
    or ``rope_scaling``, whose type is ``rope_type`` or ``type``. Copies must agree.

    Raises:
        UserError: Something is missing, contradictory, unknown or out of range.
    """
    where, rope = _scaling(keys)
    theta = _agreed("rope_theta", {**keys.all("rope_theta"), where: rope.get("rope_theta")})
    if theta is None and (theta := keys.get("rope_theta")) is None:
        raise UserError(
            "The config has no rope_theta, neither at the top level nor in rope_parameters; "
            "add the base that the drafter was trained with."
        )
    types = {f"{where}.{key}": rope.get(key) for key in ("rope_type", "type")}
    rope_type = _agreed("the rope type", types) or "default"
    if not isinstance(rope_type, str) or rope_type not in _NEEDED:
        reject(f"{where}'s type", rope_type, f"one of {', '.join(_NEEDED)}")
    numbers = _numbers(where, rope, rope_type)
    amplitude = _yarn_amplitude(numbers) if rope_type == "yarn" else 1.0
    if (added := keys.additions.attention_factor) is not None:
        if rope_type != "yarn":
            raise UserError(
                f"--attention-factor is for YaRN, but this drafter has rope type {rope_type!r}; "
                "leave it out."
            )
        amplitude = added
    # Engines that write the style say whether the halves of a head are rotated ("neox").
    neox = _agreed("the rope style", keys.subset(_STYLES))
    if neox is not None:
        check_bool("is_neox_style", neox)
    return RopeConfig(
        rope_type=rope_type,
        theta=theta,
        factor=numbers.pop("factor", 1.0),
        attention_factor=amplitude,
        traditional=neox is False,
        **numbers,
    )


def _scaling(keys: Keys) -> tuple[str, Mapping[str, Any]]:
    """The one scaling object and the name of its key."""
    given = keys.subset(("rope_parameters", "rope_scaling"))
    for key, rope in given.items():
        if not isinstance(rope, Mapping) or any(isinstance(v, Mapping) for v in rope.values()):
            reject(key, rope, "one object of numbers, the same for every layer")
    if len(given) == 2 and given["rope_parameters"] != given["rope_scaling"]:
        (key, rope), (other, other_rope) = given.items()
        contradict(key, rope, other, other_rope)
    return next(iter(given.items()), ("rope_parameters", {}))


def _agreed(what: str, places: Mapping[str, Any]) -> Any:
    """The value that all places which have one agree on, or None."""
    given = {place: value for place, value in places.items() if value is not None}
    first = next(iter(given.values()), None)
    if any(value != first for value in given.values()):
        listed = " and ".join(f"{value!r} in {place}" for place, value in given.items())
        raise UserError(
            f"The config gives {what} as {listed}; keep the one that the drafter was trained with."
        )
    return first


def _numbers(where: str, rope: Mapping[str, Any], rope_type: str) -> dict[str, Any]:
    """What a scaling says beside its type and base: all that the type needs and no more."""
    needed, optional = _NEEDED[rope_type], _YARN if rope_type == "yarn" else ()
    given = {key: value for key, value in rope.items() if value is not None}
    if unknown := sorted(given.keys() - {*needed, *optional, *_COMMON}):
        raise UserError(
            f"{where} has {', '.join(unknown)}, which rope type {rope_type!r} does not use; "
            "correct the type or remove the key."
        )
    if given.get("partial_rotary_factor", 1) != 1:
        factor = f"{where}.partial_rotary_factor: {rope['partial_rotary_factor']!r}"
        raise unsupported(f"partial rotary embedding ({factor})")
    if given.pop("truncate", True) is not True:
        reject(f"{where}.truncate", rope["truncate"], "true")
    if missing := sorted(set(needed) - given.keys()):
        raise UserError(f"{where} lacks {', '.join(missing)}, which rope type {rope_type!r} needs.")
    return {key: value for key, value in given.items() if key not in _COMMON}


def _yarn_amplitude(numbers: dict[str, Any]) -> float:
    """Settle YaRN's amplitude and betas in ``numbers``, by transformers' rule.

    An explicit ``attention_factor`` wins, then the ratio of the two mscales, then
    ``0.1 ln(factor) + 1``. Absent betas are 32 and 1.
    """
    numbers |= {"beta_fast": 32.0, "beta_slow": 1.0} | numbers
    explicit = numbers.pop("attention_factor", None)
    mscale, all_dim = numbers.pop("mscale", None), numbers.pop("mscale_all_dim", None)
    if explicit is not None:
        return explicit
    given = {"factor": numbers["factor"], "mscale": mscale, "mscale_all_dim": all_dim}
    for name, value in given.items():
        check_number(name, 0 if value is None else value, at_least=0.0)
    growth = 0.1 * math.log(max(numbers["factor"], 1.0))
    if mscale and all_dim:
        return (mscale * growth + 1.0) / (all_dim * growth + 1.0)
    return growth + 1.0
