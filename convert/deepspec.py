"""Configs of DeepSpec's plain DFlash drafters, such as ``deepseek-ai/dflash_qwen3_4b_block7``.

They are DSpark classes without DSpark's heads. The anchor is position 0 of a block and its row
predicts too, and the drafter brings its own embedding table and head.
"""

from collections.abc import Mapping
from typing import Any

from ..drafter.config import DrafterConfig
from ..errors import UserError
from .additions import Additions
from .attention import parse_layers
from .features import refuse_features
from .fields import Names, block_fields, body_fields, config_keys, zero_based_taps
from .names import COMMON_RENAMES
from .parsed import Parsed
from .zlab import ROW_WINDOW


def is_plain_dflash(config: Mapping[str, Any]) -> bool:
    """Whether a config of DSpark's Qwen3 class says that none of DSpark's heads is there."""
    heads = (config.get("markov_rank"), config.get("enable_confidence_head"))
    return config.get("architectures") == ["Qwen3DSparkModel"] and heads == (0, False)


def parse_deepspec(config: Mapping[str, Any], names: Names, additions: Additions) -> Parsed:
    """Turn a raw config.json of DeepSpec into the MLX format's configuration.

    Args:
        config: The parsed config.json.
        names: The MLX names of the checkpoint's tensors, if known.
        additions: What the user adds to the config.

    Raises:
        UserError: Says what was found and what is needed.
    """
    if config.get("dflash_config") is not None:
        raise UserError(
            "This DeepSpec config has a dflash_config, which DeepSpec does not write; remove it, "
            "or correct the architectures."
        )
    keys = config_keys(config, "dflash_config", additions)
    refuse_features(keys)
    fields = block_fields(keys, sample_from_anchor=True) | body_fields(keys, names, additions)
    fields |= parse_layers(keys, fields["num_hidden_layers"], fields["block_size"])._asdict()
    taps, depth = zero_based_taps(keys), keys.get("num_target_layers")
    keys.refuse_unread()
    additions.check_final_tap(taps, depth)
    return Parsed(
        format="deepspec",
        config=DrafterConfig(
            **fields,
            target_layer_ids=taps,
            num_target_layers=depth,
            target_hidden_size=fields["hidden_size"],
            has_mask_embedding=names is None or "mask_embedding" in names,
            embed_scale="raw",
            has_embed_tokens=True,
            has_lm_head=True,
        ),
        tap_base=0,
        window=ROW_WINDOW,
        renames=COMMON_RENAMES,
    )
