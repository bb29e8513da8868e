"""Configs of vLLM's speculators library.

Source: https://github.com/vllm-project/speculators, ``DFlashSpeculatorConfig`` and
``create_anchor_block_mask_mod``.
"""

from collections.abc import Mapping
from typing import Any

from ..drafter.config import SLIDING, DrafterConfig
from ..errors import UserError
from .additions import Additions
from .attention import parse_layer_types
from .features import refuse_features
from .fields import Names, block_fields, body_fields, checked_taps, config_keys, own_tables
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
_DEFAULTS = {None: _QWEN3, "qwen3": _QWEN3, "llama": _LLAMA}
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
    keys = config_keys(config, "transformer_layer_config", additions)
    refuse_features(keys)
    dflash2 = config.get("speculators_model_type") == "dflash2"
    verifier = _verifier(config)
    defaults = _defaults(config)

    fields = block_fields(keys) | body_fields(keys, names, additions, defaults)
    fields |= own_tables(keys, names, fields["vocab_size"])._asdict()
    kinds, window = parse_layer_types(keys, fields["num_hidden_layers"])
    if window is not None and keys.get("use_sliding_window") is False:
        raise UserError(
            "layer_types has sliding_attention layers but use_sliding_window is false, which "
            "Hugging Face reads as no window at all; correct one."
        )
    non_causal = keys.get("sliding_window_non_causal", default=dflash2)
    causal = () if non_causal else tuple(kind == SLIDING for kind in kinds)
    if dflash2:
        fields |= {key: keys.required(key) for key in DFLASH2_KEYS}
    _check_proposals(config, fields)
    taps = _taps(keys)
    keys.refuse_unread(*_INERT)
    return Parsed(
        format="speculators-dflash2" if dflash2 else "speculators",
        config=DrafterConfig(
            **fields,
            target_layer_ids=taps,
            num_target_layers=None,
            target_hidden_size=keys.get("target_hidden_size", default=fields["hidden_size"]),
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


def _defaults(config: Mapping[str, Any]) -> Mapping[str, Any]:
    layer = config.get("transformer_layer_config", config)
    kind = layer.get("model_type")
    if kind == "speculator_model":
        kind = None
    if kind not in _DEFAULTS:
        raise UserError(
            f"This drafter has layers of model_type {kind!r}; this version runs those of qwen3 and "
            "llama."
        )
    return _DEFAULTS[kind]


def _verifier(config: Mapping[str, Any]) -> dict[str, Any]:
    """The target that the config names; one with hyper-connections is refused."""
    outer = config.get("speculators_config") or {}
    verifier = outer.get("verifier") if isinstance(outer, Mapping) else None
    if not isinstance(verifier or {}, Mapping):
        raise UserError(f"speculators_config.verifier is {verifier!r}; it must be an object.")
    named = {
        key: value
        for key, value in (verifier or {}).items()
        if key in ("name_or_path", "architectures") and value
    }
    if "DeepseekV4" in str(named.get("architectures")):
        raise UserError(
            f"This drafter is for {named.get('name_or_path')} ({named['architectures']}), whose "
            "taps are hyper-connection streams, which this version does not run."
        )
    return named


def _check_proposals(config: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    """``speculative_tokens`` was the block size until April 2026, and is the proposals since."""
    outer = config.get("speculators_config") or {}
    kind, algorithm = config.get("speculators_model_type"), outer.get("algorithm")
    if algorithm not in (None, kind):
        raise UserError(
            f"speculators_model_type is {kind!r} but speculators_config.algorithm {algorithm!r}; "
            "correct one."
        )
    methods = outer.get("proposal_methods") or [{}]
    tokens = methods[0].get("speculative_tokens")
    proposals = fields["block_size"] - 1
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
    return checked_taps([n - 1 for n in ids])
