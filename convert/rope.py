"""The rotary embedding of a Hugging Face config, in either of its spellings."""

import math
from collections.abc import Mapping
from typing import Any

from ..drafter.rope_config import RopeConfig
from ..errors import UserError

# Keys of rope_parameters by type, as in transformers' modeling_rope_utils.
_KEYS = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "llama3": frozenset(
        {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
    ),
    "yarn": frozenset(
        {
            "factor",
            "original_max_position_embeddings",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
        }
    ),
}
_COMMON = frozenset({"rope_theta", "rope_type", "type", "partial_rotary_factor"})
_STYLE_KEYS = ("is_neox_style", "rope_is_neox_style")
ROPE_KEYS = frozenset({"rope_theta", "rope_parameters", "rope_scaling", *_STYLE_KEYS})


def parse_rope(
    config: Mapping[str, Any],
    attention_factor: float | None = None,
    default_theta: float | None = None,
) -> RopeConfig:
    """The rotary embedding that the top level of a raw config.json describes.

    The base is ``rope_theta`` or ``rope_parameters.rope_theta``; the scaling is ``rope_parameters``
    or ``rope_scaling``, whose type is ``rope_type`` or ``type``. Copies must agree.

    Args:
        config: The keys of the config, of which those in ``ROPE_KEYS`` are read.
        attention_factor: YaRN's amplitude, in place of the config's.
        default_theta: The base where the format defines one for configs that leave it out.

    Raises:
        UserError: Something is missing, contradictory, unknown or out of range.
    """
    where, rope = _scaling(config)
    theta = _one_value(
        "rope_theta", {"rope_theta": config.get("rope_theta"), where: rope.get("rope_theta")}
    )
    theta = default_theta if theta is None else theta
    if theta is None:
        raise UserError(
            "The config has no rope_theta, neither at the top level nor in rope_parameters; "
            "add the base that the drafter was trained with."
        )
    types = {f"{where}.{key}": rope.get(key) for key in ("rope_type", "type")}
    rope_type = _one_value("the rope type", types) or "default"
    _check_keys(where, rope, rope_type)
    fields = {key: rope[key] for key in _KEYS[rope_type] if rope.get(key) is not None}
    amplitude = _yarn_amplitude(fields) if rope_type == "yarn" else 1.0
    if attention_factor is not None:
        if rope_type != "yarn":
            raise UserError(
                f"--attention-factor is for YaRN, but this drafter has rope type {rope_type!r}; "
                "leave it out."
            )
        amplitude = attention_factor
    return RopeConfig(
        rope_type=rope_type,
        theta=theta,
        factor=fields.pop("factor", 1.0),
        attention_factor=amplitude,
        traditional=_traditional(config),
        **fields,
    )


def _scaling(config: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The one scaling object and the name of its key."""
    given = {
        key: config[key]
        for key in ("rope_parameters", "rope_scaling")
        if config.get(key) is not None
    }
    for key, rope in given.items():
        if not isinstance(rope, Mapping) or any(isinstance(v, Mapping) for v in rope.values()):
            raise UserError(
                f"{key} is {rope!r}; this version needs one object of numbers, the same for "
                "every layer."
            )
    if len(given) == 2 and given["rope_parameters"] != given["rope_scaling"]:
        raise UserError(
            f"rope_parameters is {given['rope_parameters']} but rope_scaling is "
            f"{given['rope_scaling']}; keep the one that the drafter was trained with."
        )
    return next(iter(given.items()), ("rope_parameters", {}))


def _one_value(what: str, places: Mapping[str, Any]) -> Any:
    """The value that all places which have one agree on, or None."""
    given = {place: value for place, value in places.items() if value is not None}
    if any(value != next(iter(given.values())) for value in given.values()):
        listed = " and ".join(f"{value!r} in {place}" for place, value in given.items())
        raise UserError(
            f"The config gives {what} as {listed}; keep the one that the drafter was trained with."
        )
    return next(iter(given.values()), None)


def _check_keys(where: str, rope: Mapping[str, Any], rope_type: Any) -> None:
    if not isinstance(rope_type, str) or rope_type not in _KEYS:
        raise UserError(
            f"{where} has rope type {rope_type!r}; this version runs {', '.join(_KEYS)}."
        )
    given = {key for key, value in rope.items() if value is not None}
    if unknown := sorted(given - _KEYS[rope_type] - _COMMON):
        raise UserError(
            f"{where} has {', '.join(unknown)}, which rope type {rope_type!r} does not use; "
            "correct the type or remove the key."
        )
    if rope.get("partial_rotary_factor") not in (None, 1):
        raise UserError(
            f"This drafter has partial rotary embedding ({where}.partial_rotary_factor: "
            f"{rope['partial_rotary_factor']!r}), which this version does not run."
        )
    if rope.get("truncate") not in (None, True):
        raise UserError(f"{where}.truncate is {rope['truncate']!r}; this version runs only true.")
    # A scaling without its numbers has no meaning; only YaRN's betas and amplitude have a rule.
    needed = _KEYS[rope_type] & {
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    }
    if missing := sorted(needed - given):
        raise UserError(f"{where} lacks {', '.join(missing)}, which rope type {rope_type!r} needs.")


def _yarn_amplitude(fields: dict[str, Any]) -> float:
    """Settle YaRN's amplitude and betas in ``fields``, by transformers' rule.

    An explicit ``attention_factor`` wins, then the ratio of the two mscales, then
    ``0.1 ln(factor) + 1``. Absent betas are 32 and 1.
    """
    fields.pop("truncate", None)
    fields.setdefault("beta_fast", 32.0)
    fields.setdefault("beta_slow", 1.0)
    explicit = fields.pop("attention_factor", None)
    mscale, all_dim = fields.pop("mscale", None), fields.pop("mscale_all_dim", None)
    if explicit is not None:
        return explicit
    numbers = (fields["factor"], mscale or 0, all_dim or 0)
    if any(isinstance(n, bool) or not isinstance(n, (int, float)) or n < 0 for n in numbers):
        raise UserError(
            f"YaRN's factor, mscale and mscale_all_dim are {fields['factor']!r}, {mscale!r} and "
            f"{all_dim!r}; they must be numbers of at least 0."
        )
    growth = 0.1 * math.log(max(fields["factor"], 1.0))
    if mscale and all_dim:
        return (mscale * growth + 1.0) / (all_dim * growth + 1.0)
    return growth + 1.0


def _traditional(config: Mapping[str, Any]) -> bool:
    """Engines that write the style say whether the halves of a head are rotated ("neox")."""
    neox = _one_value("the rope style", {key: config.get(key) for key in _STYLE_KEYS})
    if neox not in (None, True, False):
        raise UserError(f"is_neox_style is {neox!r}; it must be true or false.")
    return neox is False
