"""Configs of Muse Glimmer's assistant, ``meta-models/Muse-Glimmer-30B-assistant``.

Its layers slide, in both directions, over ``abs(p - k) <= sliding_window``: one row more than the
same number means elsewhere.
"""

from collections.abc import Mapping
from typing import Any

from ..drafter.config import DrafterConfig
from .additions import Additions
from .attention import parse_layer_types
from .features import refuse_features
from .fields import Names, block_fields, body_fields, config_keys, zero_based_taps
from .names import COMMON_RENAMES
from .parsed import Parsed

INCLUSIVE_WINDOW = "a row at p sees k with abs(p - k) <= sliding_window - 1"
# The published config leaves it out, because the format has one target: Muse Glimmer 30B.
_VOCAB_SIZE = 202048
_RENAMES = {
    "encoder.fc.weight": "fc.weight",
    "encoder.output_norm_enc.weight": "hidden_norm.weight",
}


def parse_muse(config: Mapping[str, Any], names: Names, additions: Additions) -> Parsed:
    """Turn the assistant's config.json into the MLX format's configuration.

    Args:
        config: The parsed config.json.
        names: The MLX names of the checkpoint's tensors, if known.
        additions: What the user adds to the config.

    Raises:
        UserError: Says what was found and what is needed.
    """
    keys = config_keys(config, "dflash_config", additions)
    refuse_features(keys)
    fields = block_fields(keys) | body_fields(keys, names, additions, {"vocab_size": _VOCAB_SIZE})
    kinds, window = parse_layer_types(keys, fields["num_hidden_layers"])
    taps, depth = zero_based_taps(keys), keys.get("num_target_layers")
    keys.refuse_unread()
    additions.check_final_tap(taps, depth)
    return Parsed(
        format="muse-assistant",
        config=DrafterConfig(
            **fields,
            target_layer_ids=taps,
            num_target_layers=depth,
            target_hidden_size=fields["hidden_size"],
            has_mask_embedding=names is None or "mask_embedding" in names,
            layer_types=kinds,
            sliding_window=None if window is None else window + 1,
            window_rule="row",
            embed_scale="raw",
        ),
        tap_base=0,
        window=INCLUSIVE_WINDOW,
        renames=COMMON_RENAMES | _RENAMES,
    )
