"""Configs in z-lab's layout: DFlash and its refresh, DFlash 2, SpecForge, ModelOpt, JetSpec.

``block_size`` and its neighbours are at the top level or in ``dflash_config``, by the age and the
trainer of the checkpoint. AngelSpec's plain DFlash has the same keys at the top level.
"""

from collections.abc import Mapping
from typing import Any

from ..drafter.config import DrafterConfig
from ..errors import UserError
from .additions import Additions
from .attention import parse_layers
from .features import refuse_features
from .fields import (
    Names,
    block_fields,
    body_fields,
    check_counts,
    config_keys,
    own_tables,
    zero_based_taps,
)
from .keys import Keys
from .names import COMMON_RENAMES
from .parsed import Parsed

ROW_WINDOW = "a row at p sees context k with p - k < sliding_window"
DFLASH2_KEYS = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
# AngelSpec's names of three tensors, which vLLM reads in any checkpoint.
_ANGELSPEC_RENAMES = {
    "context_proj.weight": "fc.weight",
    "context_norm.weight": "hidden_norm.weight",
    "final_norm.weight": "norm.weight",
}


def parse_zlab(config: Mapping[str, Any], names: Names, additions: Additions) -> Parsed:
    """Turn a raw config.json in z-lab's layout into the MLX format's configuration.

    Nothing is guessed: a missing or contradictory key is an error, and so is every feature that
    this version does not run and every key that it does not know.

    Args:
        config: The parsed config.json.
        names: The MLX names of the checkpoint's tensors, if known.
        additions: What the user adds to the config.

    Raises:
        UserError: Says what was found and what is needed.
    """
    keys = config_keys(config, "dflash_config", additions)
    refuse_features(keys)
    jetspec = bool(keys.all("causal_head", "draft_shift"))
    dflash2 = _dflash2_fields(config, keys)
    angelspec = bool(keys.all("target_num_hidden_layers"))

    fields = block_fields(keys) | body_fields(keys, names, additions) | dflash2
    fields |= own_tables(keys, names, fields["vocab_size"])._asdict()
    fields |= parse_layers(keys, fields["num_hidden_layers"], fields["block_size"])._asdict()
    taps = zero_based_taps(keys)
    width = keys.get("target_hidden_size", default=fields["hidden_size"])
    # DFlash 2 is trained on plain rows; z-lab's older drafters on what the target embeds.
    raw = fields["has_embed_tokens"] or dflash2
    fields |= {
        "target_layer_ids": taps,
        "num_target_layers": _depth(keys, taps),
        "target_hidden_size": width,
        "has_mask_embedding": names is None or "mask_embedding" in names,
        "has_hidden_dim_adapter": jetspec and width != fields["hidden_size"],
        "embed_scale": "raw" if raw else "target",
        "input_embedding_scale": keys.get("input_embedding_scale", default=1.0),
        "output_multiplier": keys.get("output_multiplier", default=1.0),
        "final_logit_softcapping": keys.get("final_logit_softcapping"),
    }
    check_counts(keys, taps, fields["mask_token_id"])
    keys.refuse_unread("gate_temperature")
    additions.check_final_tap(taps, fields["num_target_layers"])
    variants = {"jetspec": jetspec, "z-lab-dflash2": dflash2, "angelspec": angelspec}
    return Parsed(
        format=next((name for name, found in variants.items() if found), "z-lab"),
        config=DrafterConfig(**fields),
        tap_base=0,
        window=ROW_WINDOW,
        renames=COMMON_RENAMES | _ANGELSPEC_RENAMES,
    )


def _dflash2_fields(config: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
    """DFlash 2's four sizes, which come with its architecture and not without."""
    declared = config.get("architectures") == ["DFlash2DraftModel"]
    if declared:
        return {key: keys.required(key) for key in DFLASH2_KEYS}
    if found := keys.all(*DFLASH2_KEYS):
        raise UserError(
            f"The config has DFlash 2's {next(iter(found))}, but its architectures are "
            f"{config.get('architectures')!r} and not ['DFlash2DraftModel']; one is wrong."
        )
    return {}


def _depth(keys: Keys, taps: tuple[int, ...]) -> Any:
    """The target's number of layers, if the config says.

    AngelSpec has it in ``target_num_hidden_layers``; its ``num_target_layers`` counts the taps.
    """
    depth, count = keys.get("target_num_hidden_layers"), keys.get("num_target_layers")
    if depth is None:
        return count
    if count not in (None, len(taps)):
        raise UserError(
            f"num_target_layers is {count!r}, which beside target_num_hidden_layers counts the "
            f"taps, but there are {len(taps)}; correct one."
        )
    return depth
