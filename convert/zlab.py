"""The config.json of a z-lab DFlash v1 checkpoint, also written by SpecForge and ModelOpt."""

from collections.abc import Mapping
from typing import Any

from ..drafter.config import DrafterConfig
from ..errors import UserError
from .features import FEATURE_KEYS, refuse_features, refuse_other_formats
from .rope import ROPE_KEYS, parse_rope

FORMAT = "z-lab-v1"

_AUX_KEYS = ("aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids")
_TOP_KEYS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "rms_norm_eps",
    "vocab_size",
    "attention_bias",
)
# Either at the top level or in dflash_config, by the age and the trainer of the checkpoint.
_EITHER_KEYS = (
    "block_size",
    "mask_token_id",
    "target_layer_ids",
    "num_target_layers",
    "target_hidden_size",
    "num_aux_layers",
    "pard_token",
    "draft_vocab_size",
    *_AUX_KEYS,
)
# Training, tokenizer and bookkeeping keys that cannot change a forward pass. auto_map names code
# in the repository, which is never run; the head is the target's, so tying says nothing.
_INERT_KEYS = frozenset(
    {
        "_attn_implementation",
        "_commit_hash",
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "auto_map",
        "bos_token_id",
        "chunk_size_feed_forward",
        "decoder_start_token_id",
        "dtype",
        "eos_token_id",
        "hidden_act",
        "id2label",
        "initializer_range",
        "is_decoder",
        "is_encoder_decoder",
        "label2id",
        "layer_types",
        "loss_decay_gamma",
        "max_anchors",
        "max_position_embeddings",
        "max_window_layers",
        "model_type",
        "name_or_path",
        "num_anchors",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "problem_type",
        "quantization_config",
        "return_dict",
        "sep_token_id",
        "sliding_window",
        "tie_word_embeddings",
        "torch_dtype",
        "train_embed_tokens",
        "transformers_version",
        "use_cache",
        "use_sliding_window",
    }
)


def parse(config: Mapping[str, Any], *, has_mask_embedding: bool = False) -> DrafterConfig:
    """Turn a raw config.json into the MLX format's configuration.

    Nothing is guessed: a missing or contradictory key is an error, and so is every feature that
    this version does not run and every key that it does not know.

    Args:
        config: The parsed config.json.
        has_mask_embedding: Whether the checkpoint brings its own mask embedding.

    Raises:
        UserError: Says what was found and what is needed.
    """
    refuse_other_formats(config)
    nested = config.get("dflash_config") or {}
    if not isinstance(nested, Mapping):
        raise UserError(f"dflash_config is {nested!r}; it must be an object.")
    refuse_features(config, nested)
    _refuse_unknown_keys(config, nested)
    _required("hidden_act", config)
    fields = {key: _required(key, config) for key in _TOP_KEYS}
    either = {key: _agreed(key, config, nested) for key in _EITHER_KEYS}
    for key in ("block_size", "mask_token_id", "target_layer_ids"):
        fields[key] = _required(key, either, " at the top level or in dflash_config")
    parsed = DrafterConfig(
        **{**fields, "target_layer_ids": _taps(fields["target_layer_ids"])},
        target_hidden_size=_given(either["target_hidden_size"], fields["hidden_size"]),
        head_dim=_head_dim(config),
        num_target_layers=either["num_target_layers"],
        rope=parse_rope(config),
        max_position_embeddings=config.get("max_position_embeddings"),
        has_mask_embedding=has_mask_embedding,
    )
    _check_copies(parsed, either)
    return parsed


def _refuse_unknown_keys(config: Mapping[str, Any], nested: Mapping[str, Any]) -> None:
    """A key nobody reads may be the one that changes the model, so it is an error, unless null."""
    shared = FEATURE_KEYS | set(_EITHER_KEYS) | {"loss_decay_gamma", "max_anchors", "num_anchors"}
    top = shared | ROPE_KEYS | _INERT_KEYS | set(_TOP_KEYS) | {"head_dim", "dflash_config"}
    unknown = [key for key, value in config.items() if key not in top and value is not None]
    unknown += [
        f"dflash_config.{key}"
        for key, value in nested.items()
        if key not in shared and value is not None
    ]
    if unknown:
        raise UserError(
            f"The config has keys this version does not know: {', '.join(sorted(unknown))}. "
            "If they do not change the model, remove them from a local copy; otherwise use a "
            "newer dflash-mlx."
        )


def _required(key: str, values: Mapping[str, Any], where: str = "") -> Any:
    if values.get(key) is None:
        raise UserError(
            f"The config has no {key}{where}; add the value that the drafter was trained with."
        )
    return values[key]


def _agreed(key: str, config: Mapping[str, Any], nested: Mapping[str, Any]) -> Any:
    """The value at the top level or in dflash_config; both must agree. None if absent."""
    top, inner = config.get(key), nested.get(key)
    if top is not None and inner is not None and (top != inner or type(top) is not type(inner)):
        raise UserError(
            f"{key} is {top!r} at the top level but {inner!r} in dflash_config; "
            "keep the one that the drafter was trained with."
        )
    return _given(inner, top)


def _given(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else value


def _head_dim(config: Mapping[str, Any]) -> Any:
    """Explicit, or the plain quotient, which the shapes of the weights then confirm or refute."""
    explicit = config.get("head_dim")
    if explicit is not None:
        return explicit
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    if not (isinstance(hidden, int) and isinstance(heads, int)) or heads < 1 or hidden % heads:
        raise UserError(
            f"The config has no head_dim, and hidden_size {hidden!r} is not a multiple of "
            f"num_attention_heads {heads!r}; add the head_dim."
        )
    return hidden // heads


def _taps(ids: Any) -> tuple[int, ...]:
    if not isinstance(ids, list):
        raise UserError(f"target_layer_ids is {ids!r}; it must be a list of 0-based layers.")
    return tuple(ids)


def _check_copies(parsed: DrafterConfig, either: Mapping[str, Any]) -> None:
    """Keys that repeat what another key says must say the same."""
    taps = list(parsed.target_layer_ids)
    for key in _AUX_KEYS:
        # These engines count the embeddings as layer 0.
        shifted = [tap + 1 for tap in taps]
        if either[key] is not None and either[key] != shifted:
            raise UserError(
                f"{key} is {either[key]!r}, but target_layer_ids {taps} need {shifted} there "
                "(it counts from 1); one of the two is wrong."
            )
    copies = {
        "num_aux_layers": ("the number of target_layer_ids", len(taps)),
        "pard_token": ("mask_token_id", parsed.mask_token_id),
        "draft_vocab_size": ("vocab_size", parsed.vocab_size),
    }
    for key, (other, value) in copies.items():
        if either[key] is not None and either[key] != value:
            raise UserError(
                f"{key} is {either[key]!r} but {other} is {value}; this version runs only "
                "drafters in which they are equal."
            )
    if parsed.num_target_layers is not None and taps[-1] == parsed.num_target_layers - 1:
        raise UserError(
            f"This drafter has a tap on the target's last layer ({taps[-1]} of "
            f"{parsed.num_target_layers}), which this version does not run."
        )
