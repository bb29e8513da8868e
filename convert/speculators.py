"""Configs of vLLM's speculators library.

Source: https://github.com/vllm-project/speculators, ``DFlashSpeculatorConfig`` and
``create_anchor_block_mask_mod``.
"""

from collections.abc import Mapping
from typing import Any

from ..drafter.checks import check_bool
from ..drafter.config import SLIDING, DrafterConfig
from ..errors import UserError
from .additions import Additions
from .attention import parse_layer_types
from .features import refuse_features
from .fields import (
    Names,
    block_fields,
    body_fields,
    checked_taps,
    config_keys,
    nested_object,
    own_tables,
)
from .keys import Keys
from .names import COMMON_RENAMES
from .parsed import Parsed
from .zlab import DFLASH2_KEYS

ANCHOR_WINDOW = "every row of a block with anchor a sees context k with a - k <= sliding_window"
# The library writes a nested config without the values that its Hugging Face class has anyway:
# those of Qwen3Config and LlamaConfig in transformers.
_QWEN3 = {
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}
_LLAMA = {key: value for key, value in _QWEN3.items() if key != "head_dim"} | {
    "intermediate_size": 11008
}
_NESTED = "transformer_layer_config"
_INERT = (
    "speculators_model_type",
    "speculators_version",
    "speculators_config",
    "has_no_defaults_at_init",
)


def parse_speculators(config: Mapping[str, Any], names: Names, additions: Additions) -> Parsed:
    """Turn a speculators config.json into the MLX format's configuration.

    The layers are described in ``transformer_layer_config``, or flat at the top level.

    Args:
        config: The parsed config.json.
        names: The MLX names of the checkpoint's tensors, if known.
        additions: What the user adds to the config.

    Raises:
        UserError: Says what was found and what is needed.
    """
    keys = config_keys(_flattened(config), _NESTED, additions)
    refuse_features(keys)
    settings = nested_object(config, "speculators_config")
    kind, verifier = speculators_kind(config), _verifier(settings)
    dflash2 = kind == "dflash2"

    fields = block_fields(keys) | body_fields(keys, names, additions, _defaults(config))
    fields |= own_tables(keys, names, fields["vocab_size"])._asdict()
    kinds, window = parse_layer_types(keys, fields["num_hidden_layers"])
    if window is not None and keys.get("use_sliding_window") is False:
        raise UserError(
            "layer_types has sliding_attention layers but use_sliding_window is false, which "
            "Hugging Face reads as no window at all; correct one."
        )
    non_causal = keys.get("sliding_window_non_causal", default=dflash2)
    check_bool("sliding_window_non_causal", non_causal)
    causal = () if non_causal else tuple(kind == SLIDING for kind in kinds)
    if dflash2:
        fields |= {key: keys.required(key) for key in DFLASH2_KEYS}
    _check_proposals(kind, settings, fields["block_size"] - 1)
    taps, width = _taps(keys), keys.get("target_hidden_size", default=fields["hidden_size"])
    keys.refuse_unread(*_INERT)
    return Parsed(
        format="speculators-dflash2" if dflash2 else "speculators",
        config=DrafterConfig(
            **fields,
            target_layer_ids=taps,
            num_target_layers=None,
            target_hidden_size=width,
            has_mask_embedding=names is None or "mask_embedding" in names,
            layer_types=kinds,
            sliding_window=window,
            window_rule="anchor",
            causal_layers=causal,
            embed_scale="raw",
        ),
        tap_base=1,
        window=ANCHOR_WINDOW,
        renames=COMMON_RENAMES,
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


def _layer(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The object that describes the layers: nested, or the config itself."""
    return nested_object(config, _NESTED) or config


def _defaults(config: Mapping[str, Any]) -> Mapping[str, Any]:
    kind = _layer(config).get("model_type")
    # What the library calls its own configs says nothing about the layers.
    if kind in (None, "speculator_model", "qwen3"):
        return _QWEN3
    if kind == "llama":
        return _LLAMA
    raise UserError(
        f"This drafter has layers of model_type {kind!r}; this version runs those of qwen3 and "
        "llama."
    )


def _flattened(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """As the library does it, RoPE by layer type is that of the sliding layers, for all."""
    layer = _layer(config)
    by_type = layer.get("rope_parameters")
    if not isinstance(by_type, Mapping) or SLIDING not in by_type:
        return config
    flat = {**layer, "rope_parameters": by_type[SLIDING]}
    return flat if layer is config else {**config, _NESTED: flat}


def _verifier(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The target that ``speculators_config`` names; one with hyper-connections is refused."""
    verifier = nested_object(settings, "verifier", "speculators_config.")
    named = {key: verifier[key] for key in ("name_or_path", "architectures") if verifier.get(key)}
    if "DeepseekV4" in str(named.get("architectures")):
        raise UserError(
            f"This drafter is for {named.get('name_or_path')} ({named['architectures']}), whose "
            "taps are hyper-connection streams, which this version does not run."
        )
    return named


def _check_proposals(kind: Any, settings: Mapping[str, Any], proposals: int) -> None:
    """``speculative_tokens`` was the block size until April 2026, and is the proposals since."""
    if settings.get("algorithm") not in (None, kind):
        raise UserError(
            f"speculators_model_type is {kind!r} but speculators_config.algorithm "
            f"{settings['algorithm']!r}; correct one."
        )
    methods = settings.get("proposal_methods")
    first = methods[0] if isinstance(methods, list) and methods else methods
    if first is not None and not isinstance(first, Mapping):
        raise UserError(f"proposal_methods is {methods!r}; it must be a list of objects.")
    tokens = (first or {}).get("speculative_tokens")
    if tokens not in (None, proposals, proposals + 1):
        raise UserError(
            f"speculative_tokens is {tokens!r} but block_size makes {proposals} proposals; "
            "one of the two is wrong."
        )


def _taps(keys: Keys) -> tuple[int, ...]:
    """The taps, which speculators counts from 1; 0 would be the embeddings."""
    ids = keys.required("aux_hidden_state_layer_ids")
    if not isinstance(ids, list) or not ids or any(type(n) is not int for n in ids):
        raise UserError(
            f"aux_hidden_state_layer_ids is {ids!r}; it must be a list of layers counted from 1."
        )
    return checked_taps([n - 1 for n in ids], "aux_hidden_state_layer_ids")
