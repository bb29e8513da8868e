"""Configs in z-lab's layout, and two that differ from it in a few keys.

``block_size`` and its neighbours are at the top level or in ``dflash_config``, by the age and the
trainer of the checkpoint: DFlash and its refresh, DFlash 2, SpecForge, ModelOpt, JetSpec. AngelSpec
and DeepSpec have the same keys at the top level, Muse Glimmer's assistant has fewer.
"""

from collections.abc import Mapping
from typing import Any

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
    taps,
)
from .keys import Additions, Keys, contradict
from .layers import layer_fields, sliding_layers

ROW_WINDOW = "a row at p sees context k with p - k < sliding_window"
INCLUSIVE_WINDOW = "a row at p sees k with abs(p - k) <= sliding_window - 1"
DFLASH2_KEYS = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
# The assistant's published config leaves it out, because it has one target: Muse Glimmer 30B.
_MUSE = {"vocab_size": 202048}


def parse_zlab(config: Mapping[str, Any], names: Names, additions: Additions) -> Parsed:
    """Read a raw config.json in z-lab's layout.

    Nothing is guessed: a missing or contradictory key is an error, and so is every feature that
    this version does not run and every key that it does not know.

    Args:
        config: The parsed config.json.
        names: The MLX names of the checkpoint's tensors, if known.
        additions: What the user adds to the config.

    Raises:
        UserError: Says what was found and what is needed.
    """
    keys = open_config(config, additions)
    jetspec = bool(keys.all("causal_head", "draft_shift"))
    angelspec = bool(keys.all("target_num_hidden_layers"))
    dflash2 = _dflash2_fields(keys, config.get("architectures"))
    width = tap_width(keys, adapted=jetspec)

    fields = block_fields(keys) | body_fields(keys, names) | table_fields(keys, names) | dflash2
    fields |= layer_fields(keys, fields["num_hidden_layers"], fields["block_size"])
    scale = keys.get("input_embedding_scale", default=1.0)
    # DFlash 2 is trained on plain rows; z-lab's older drafters on what the target embeds. A factor
    # is that of the official PyTorch package, which multiplies plain rows.
    raw = fields["has_embed_tokens"] or dflash2 or scale != 1
    fields |= {
        "target_layer_ids": taps(keys),
        "target_hidden_size": width,
        "has_hidden_dim_adapter": jetspec and width != fields["hidden_size"],
        "embed_scale": "raw" if raw else "target",
        "input_embedding_scale": scale,
        "output_multiplier": keys.get("output_multiplier", default=1.0),
        "final_logit_softcapping": keys.get("final_logit_softcapping"),
    }
    fields["num_target_layers"] = _depth(keys, len(fields["target_layer_ids"]))
    _check_copy(keys, "num_aux_layers", "the number of taps", len(fields["target_layer_ids"]))
    _check_copy(keys, "pard_token", "mask_token_id", fields["mask_token_id"])
    variants = {"jetspec": jetspec, "z-lab-dflash2": dflash2, "angelspec": angelspec}
    name = next((name for name, found in variants.items() if found), "z-lab")
    return close_config(keys, fields, format=name, window=ROW_WINDOW)


def is_plain_deepspec(config: Mapping[str, Any]) -> bool:
    """Whether a config of DSpark's Qwen3 class says that none of DSpark's heads is there."""
    heads = (config.get("markov_rank"), config.get("enable_confidence_head"))
    return config.get("architectures") == ["Qwen3DSparkModel"] and heads == (0, False)


def parse_deepspec(config: Mapping[str, Any], names: Names, additions: Additions) -> Parsed:
    """Read a DeepSpec drafter's config.json, such as ``deepseek-ai/dflash_qwen3_4b_block7``'s.

    The anchor is position 0 of a block and its row predicts too, and the drafter brings its own
    embedding table and head. Arguments and errors are those of :func:`parse_zlab`.
    """
    if config.get("dflash_config") is not None:
        raise UserError(
            "This DeepSpec config has a dflash_config, which DeepSpec does not write; remove it, "
            "or correct the architectures."
        )
    keys = open_config(config, additions)
    fields = block_fields(keys, sample_from_anchor=True) | body_fields(keys, names)
    fields |= layer_fields(keys, fields["num_hidden_layers"], fields["block_size"])
    fields |= {
        "target_layer_ids": taps(keys),
        "num_target_layers": keys.get("num_target_layers"),
        "target_hidden_size": fields["hidden_size"],
        "embed_scale": "raw",
        "has_embed_tokens": True,
        "has_lm_head": True,
    }
    return close_config(keys, fields, format="deepspec", window=ROW_WINDOW)


def parse_muse(config: Mapping[str, Any], names: Names, additions: Additions) -> Parsed:
    """Read the config.json of Muse Glimmer's assistant, ``meta-models/Muse-Glimmer-30B-assistant``.

    Its layers slide, in both directions, over ``abs(p - k) <= sliding_window``: one row more than
    the same number means elsewhere. Arguments and errors are those of :func:`parse_zlab`.
    """
    keys = open_config(config, additions, defaults=_MUSE)
    fields = block_fields(keys) | body_fields(keys, names)
    kinds, window = sliding_layers(keys, fields["num_hidden_layers"])
    fields |= {
        "target_layer_ids": taps(keys),
        "num_target_layers": keys.get("num_target_layers"),
        "target_hidden_size": fields["hidden_size"],
        "layer_types": kinds,
        "sliding_window": None if window is None else window + 1,
        "embed_scale": "raw",
    }
    return close_config(keys, fields, format="muse-assistant", window=INCLUSIVE_WINDOW)


def _dflash2_fields(keys: Keys, architectures: Any) -> dict[str, Any]:
    """DFlash 2's four sizes, which come with its architecture and not without."""
    if architectures == ["DFlash2DraftModel"]:
        return {key: keys.required(key) for key in DFLASH2_KEYS}
    for where, value in keys.all(*DFLASH2_KEYS).items():
        contradict(f"DFlash 2's {where}", value, "architectures", architectures)
    return {}


def _depth(keys: Keys, taps: int) -> Any:
    """The target's number of layers, if the config says.

    AngelSpec has it in ``target_num_hidden_layers``; its ``num_target_layers`` counts the taps.
    """
    depth = keys.get("target_num_hidden_layers")
    if depth is None:
        return keys.get("num_target_layers")
    counted = "the number of taps, which it is beside target_num_hidden_layers,"
    _check_copy(keys, "num_target_layers", counted, taps)
    return depth


def _check_copy(keys: Keys, key: str, other: str, value: Any) -> None:
    """A key that repeats what another one says must say the same."""
    if (found := keys.get(key)) not in (None, value):
        contradict(key, found, other, value)
