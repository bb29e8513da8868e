"""Configs in the Open Spec Config, version 0.0.0, which vLLM's speculators library also writes.

Source: https://github.com/vllm-project/speculators, ``open_spec_config``.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..errors import UserError
from .additions import Additions
from .fields import Names, checked_taps, nested_object
from .parsed import Parsed
from .speculators import parse_speculators

_SETTINGS = frozenset(
    {
        "method",
        "speculative_tokens",
        "verifier",
        "target_layer_ids",
        "target_layer_start_idx",
        "draft_vocab_size",
        "sample_from_anchor",
        "mask_token_id",
        "sliding_window_non_causal",
        "training_framework",
        "training_framework_version",
    }
)
_OPTIONAL = frozenset(
    {"verifier", "draft_vocab_size", "training_framework", "training_framework_version"}
)


def parse_open_spec(config: Mapping[str, Any], names: Names, additions: Additions) -> Parsed:
    """Turn an Open Spec Config, version 0.0.0, into the MLX format's configuration.

    It holds what a speculators config holds, the layers at the top level and the rest in
    ``speculative_config``.

    Args:
        config: The parsed config.json.
        names: The MLX names of the checkpoint's tensors, if known.
        additions: What the user adds to the config.

    Raises:
        UserError: Says what was found and what is needed.
    """
    settings = _open_spec_settings(config)
    start, shifted = settings["target_layer_start_idx"], settings["sample_from_anchor"]
    ids = settings["target_layer_ids"]
    if start not in (0, 1) or not _are_integers(ids):
        raise UserError(
            f"target_layer_ids is {ids!r} and target_layer_start_idx {start!r} in "
            "speculative_config; the first must be a list of layers and the second 0 or 1."
        )
    checked_taps([n - start for n in ids], "target_layer_ids")
    tokens = settings["speculative_tokens"]
    if type(tokens) is not int or tokens < 1 or type(shifted) is not bool:
        raise UserError(
            f"speculative_tokens is {tokens!r} and sample_from_anchor {shifted!r} in "
            "speculative_config; the first must be at least 1 and the second true or false."
        )
    metadata = nested_object(config, "speculators_metadata")
    verifier = {
        "name_or_path": settings.get("verifier"),
        "architectures": metadata.get("verifier_architectures"),
    }
    own = ("open_spec_config_version", "speculative_config", "speculators_metadata")
    native = {key: value for key, value in config.items() if key not in own} | {
        "speculators_model_type": "dflash",
        "speculators_config": {"verifier": verifier},
        "block_size": tokens + (not shifted),
        "aux_hidden_state_layer_ids": [n + 1 - start for n in ids],
    }
    for key in (
        "draft_vocab_size",
        "sample_from_anchor",
        "mask_token_id",
        "sliding_window_non_causal",
    ):
        native[key] = settings.get(key)
    parsed = parse_speculators(native, names, additions)
    return replace(parsed, format="open-spec", tap_base=start)


def _are_integers(ids: Any) -> bool:
    return isinstance(ids, list) and bool(ids) and all(type(n) is int for n in ids)


def _open_spec_settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    version = config.get("open_spec_config_version")
    if version != "0.0.0":
        raise UserError(
            f"open_spec_config_version is {version!r}; this version reads only '0.0.0'."
        )
    settings = nested_object(config, "speculative_config")
    if settings.get("method") != "dflash":
        raise UserError(
            f"This is a {settings.get('method')!r} drafter (speculative_config.method), not a "
            "DFlash one; use another drafter for this target."
        )
    if unknown := sorted(set(settings) - _SETTINGS):
        raise UserError(
            f"speculative_config has {', '.join(unknown)}, which the Open Spec Config 0.0.0 does "
            "not have; remove it."
        )
    missing = [key for key in sorted(_SETTINGS - _OPTIONAL) if settings.get(key) is None]
    if missing:
        raise UserError(
            f"speculative_config lacks {', '.join(missing)}; add what the drafter was trained with."
        )
    return settings
