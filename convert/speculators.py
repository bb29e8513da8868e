"""Configs of vLLM's speculators library: its own, and the Open Spec Config that it also writes.

Source: https://github.com/vllm-project/speculators, ``DFlashSpeculatorConfig``,
``create_anchor_block_mask_mod`` and ``open_spec_config``.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..drafter.checks import check_bool, check_integer, reject
from ..drafter.config import SLIDING
from ..errors import UserError
from .fields import (
    Names,
    Parsed,
    block_fields,
    body_fields,
    close_config,
    open_config,
    table_fields,
    tap_width,
    zero_based,
)
from .keys import Additions, contradict, nested_object, unsupported
from .layers import sliding_layers
from .zlab import DFLASH2_KEYS

ANCHOR_WINDOW = "every row of a block with anchor a sees context k with a - k <= sliding_window"
# The library writes a nested config without the values that its Hugging Face class has anyway:
# those of Qwen3Config and LlamaConfig in transformers.
_LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}
_QWEN3 = _LLAMA | {"intermediate_size": 22016, "head_dim": 128}
_NESTED = "transformer_layer_config"

_OPEN_SPEC_VERSION = "0.0.0"
_OPEN_SPEC_NEEDED = {
    *("method", "speculative_tokens", "target_layer_ids", "target_layer_start_idx"),
    *("sample_from_anchor", "mask_token_id", "sliding_window_non_causal"),
}
_OPEN_SPEC_OPTIONAL = {
    *("verifier", "draft_vocab_size", "training_framework", "training_framework_version"),
}


def parse_speculators(config: Mapping[str, Any], names: Names, additions: Additions) -> Parsed:
    """Read a speculators config.json.

    The layers are described in ``transformer_layer_config``, or flat at the top level.

    Args:
        config: The parsed config.json.
        names: The MLX names of the checkpoint's tensors, if known.
        additions: What the user adds to the config.

    Raises:
        UserError: Says what was found and what is needed.
    """
    layer = nested_object(config, _NESTED) or config
    keys = open_config(_one_rope(config, layer), additions, _NESTED, _defaults(layer))
    settings = nested_object(config, "speculators_config")
    kind, verifier = speculators_kind(config), _verifier(settings)
    width, dflash2 = tap_width(keys), kind == "dflash2"

    fields = block_fields(keys) | body_fields(keys, names) | table_fields(keys, names)
    kinds, window = sliding_layers(keys, fields["num_hidden_layers"])
    non_causal = keys.get("sliding_window_non_causal", default=dflash2)
    check_bool("sliding_window_non_causal", non_causal)
    if dflash2:
        fields |= {key: keys.required(key) for key in DFLASH2_KEYS}
    _check_proposals(kind, settings, fields["block_size"] - 1)
    aux = "aux_hidden_state_layer_ids"
    fields |= {
        "target_layer_ids": zero_based(keys.required(aux), aux, 1),
        "num_target_layers": None,
        "target_hidden_size": width,
        "layer_types": kinds,
        "sliding_window": window,
        "window_rule": "anchor",
        "causal_layers": () if non_causal else tuple(kind == SLIDING for kind in kinds),
        "embed_scale": "raw",
    }
    return close_config(
        keys,
        fields,
        format="speculators-dflash2" if dflash2 else "speculators",
        window=ANCHOR_WINDOW,
        tap_base=1,
        verifier=verifier,
    )


def speculators_kind(config: Mapping[str, Any]) -> Any:
    """The kind of drafter by ``speculators_model_type``, else by ``speculators_config``.

    Raises:
        UserError: ``speculators_config`` is not an object.
    """
    settings = nested_object(config, "speculators_config")
    kind = config.get("speculators_model_type")
    return settings.get("algorithm") if kind is None else kind


def parse_open_spec(config: Mapping[str, Any], names: Names, additions: Additions) -> Parsed:
    """Read an Open Spec Config, version 0.0.0.

    It holds what a speculators config holds, the layers at the top level and the rest in
    ``speculative_config``. Arguments and errors are those of :func:`parse_speculators`.
    """
    settings = _open_spec_settings(config)
    start, shifted = settings["target_layer_start_idx"], settings["sample_from_anchor"]
    tokens = settings["speculative_tokens"]
    check_integer("target_layer_start_idx", start, 0, 1)
    check_integer("speculative_tokens", tokens, 1)
    check_bool("sample_from_anchor", shifted)
    ids = zero_based(settings["target_layer_ids"], "target_layer_ids", start)
    metadata = nested_object(config, "speculators_metadata")
    verifier = {
        "name_or_path": settings.get("verifier"),
        "architectures": metadata.get("verifier_architectures"),
    }
    own = ("open_spec_config_version", "speculative_config", "speculators_metadata")
    same = ("draft_vocab_size", "sample_from_anchor", "mask_token_id", "sliding_window_non_causal")
    native = {key: value for key, value in config.items() if key not in own} | {
        "speculators_model_type": "dflash",
        "speculators_config": {"verifier": verifier},
        "block_size": tokens + (not shifted),
        "aux_hidden_state_layer_ids": [n + 1 for n in ids],
    }
    native |= {key: settings.get(key) for key in same}
    return replace(parse_speculators(native, names, additions), format="open-spec", tap_base=start)


def _open_spec_settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    version = config.get("open_spec_config_version")
    if version != _OPEN_SPEC_VERSION:
        reject("open_spec_config_version", version, repr(_OPEN_SPEC_VERSION))
    settings = nested_object(config, "speculative_config")
    if settings.get("method") != "dflash":
        raise UserError(
            f"This is a {settings.get('method')!r} drafter (speculative_config.method), not a "
            "DFlash one; use another drafter for this target."
        )
    if unknown := sorted(settings.keys() - _OPEN_SPEC_NEEDED - _OPEN_SPEC_OPTIONAL):
        raise UserError(
            f"speculative_config has {', '.join(unknown)}, which the Open Spec Config "
            f"{_OPEN_SPEC_VERSION} does not have; remove it."
        )
    if missing := sorted(key for key in _OPEN_SPEC_NEEDED if settings.get(key) is None):
        raise UserError(
            f"speculative_config lacks {', '.join(missing)}; add what the drafter was trained with."
        )
    return settings


def _defaults(layer: Mapping[str, Any]) -> Mapping[str, Any]:
    kind = layer.get("model_type")
    # What the library calls its own configs says nothing about the layers.
    if kind in (None, "speculator_model", "qwen3"):
        return _QWEN3
    if kind == "llama":
        return _LLAMA
    raise unsupported(f"layers of model_type {kind!r} and not qwen3 or llama")


def _one_rope(config: Mapping[str, Any], layer: Mapping[str, Any]) -> Mapping[str, Any]:
    """As the library does it, RoPE by layer type is that of the sliding layers, for all."""
    by_type = layer.get("rope_parameters")
    if not isinstance(by_type, Mapping) or SLIDING not in by_type:
        return config
    flat = {**layer, "rope_parameters": by_type[SLIDING]}
    return flat if layer is config else {**config, _NESTED: flat}


def _verifier(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The target that ``speculators_config`` names; one with hyper-connections is refused."""
    verifier = nested_object(settings, "verifier", "speculators_config.")
    named = {key: verifier[key] for key in ("name_or_path", "architectures") if verifier.get(key)}
    name, architectures = named.get("name_or_path", ""), named.get("architectures", [])
    if not isinstance(name, str):
        reject("the verifier's name_or_path", name, "a text")
    if not isinstance(architectures, list) or not all(isinstance(x, str) for x in architectures):
        reject("the verifier's architectures", architectures, "a list of texts")
    if any("deepseekv4" in re.sub(r"\W|_", "", x).lower() for x in (name, *architectures)):
        raise unsupported(f"hyper-connection streams for taps, those of {named}")
    return named


def _check_proposals(kind: Any, settings: Mapping[str, Any], proposals: int) -> None:
    """``speculative_tokens`` was the block size until April 2026, and is the proposals since."""
    if settings.get("algorithm") not in (None, kind):
        algorithm = settings["algorithm"]
        contradict("speculators_model_type", kind, "speculators_config.algorithm", algorithm)
    methods = settings.get("proposal_methods")
    first = methods[0] if isinstance(methods, list) and methods else methods
    if first is not None and not isinstance(first, Mapping):
        reject("proposal_methods", methods, "a list of objects")
    tokens = (first or {}).get("speculative_tokens")
    if tokens not in (None, proposals, proposals + 1):
        contradict("speculative_tokens", tokens, "the number of proposals by block_size", proposals)
