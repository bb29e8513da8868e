"""Checkpoints of every format with something wrong in their config."""

import functools
from collections.abc import Iterator
from typing import Any

from damage import (
    BLOCK,
    COPIES,
    LAYERS,
    MASK,
    REQUIRED,
    ROPE,
    SHAPES,
    TAPS,
    UNKNOWN,
    VOCABULARY,
    Damage,
)
from formats import CONFIGS

# A value that cannot be, for every key that some format has, and what the message calls the key.
_WRONG: dict[str, tuple[str, Any, str]] = {
    "hidden_size": (SHAPES, 48, "hidden_size"),
    "intermediate_size": (SHAPES, 95, "intermediate_size"),
    "num_attention_heads": (SHAPES, 3, "num_attention_heads"),
    "num_key_value_heads": (SHAPES, 0, "num_key_value_heads"),
    "head_dim": (SHAPES, 15, "head_dim"),
    "num_hidden_layers": (LAYERS, 2.0, "num_hidden_layers"),
    "rms_norm_eps": (REQUIRED, "1e-6", "rms_norm_eps"),
    "vocab_size": (VOCABULARY, 0, "vocab_size"),
    "draft_vocab_size": (VOCABULARY, 65, "draft_vocab_size"),
    "block_size": (BLOCK, 0, "block_size"),
    "speculative_tokens": (BLOCK, 0, "speculative_tokens"),
    "sample_from_anchor": (BLOCK, 2, "sample_from_anchor"),
    "conv_kernel_size": (BLOCK, 99, "conv_kernel_size"),
    "conv_group_size": (BLOCK, 7, "conv_group_size"),
    "selector_rank": (BLOCK, 0, "selector_rank"),
    "selector_top_k": (BLOCK, 99, "selector_top_k"),
    "mask_token_id": (MASK, -1, "mask_token_id"),
    "target_layer_ids": (TAPS, [1, 9, 5], "target_layer_ids"),
    "aux_hidden_state_layer_ids": (TAPS, [2, 2, 6], "aux_hidden_state_layer_ids"),
    "eagle_aux_hidden_state_layer_ids": (TAPS, [1, 5, 9], "aux_hidden_state_layer_ids"),
    "target_layer_start_idx": (TAPS, 7, "target_layer_start_idx"),
    "target_num_hidden_layers": (TAPS, 3, "num_target_layers"),
    "num_target_layers": (TAPS, 4, "num_target_layers"),
    "num_aux_layers": (COPIES, 9, "num_aux_layers"),
    "pard_token": (COPIES, 5, "pard_token"),
    "swa_window_size": (LAYERS, 2, "use_swa"),
    "sliding_window": (LAYERS, 0, "sliding_window"),
    "layer_types": (LAYERS, ["full_attention"] * 2 + ["linear_attention"], "layer_types"),
    "hidden_act": (LAYERS, "gelu_pytorch_tanh", "hidden_act"),
    "causal_head": (LAYERS, "yes", "causality"),
    "rope_theta": (ROPE, -1.0, "theta"),
    "rope_type": (ROPE, "longrope", "longrope"),
    "factor": (ROPE, 0.5, "factor"),
    "original_max_position_embeddings": (ROPE, None, "original_max_position_embeddings"),
}


def value_damages(format_name: str) -> Iterator[Damage]:
    """A key with a value that cannot be."""
    config = CONFIGS[format_name]()
    for key, (check, wrong, named) in _WRONG.items():
        for path in _paths(config, key):
            if path[0] == "speculators_config":
                continue
            yield Damage(
                check,
                format_name,
                f"{'.'.join(path)} is {wrong}",
                (named,),
                to_config=lambda c, p=path, v=wrong: _place(c, p).update({p[-1]: v}),
            )


_BODY = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "rms_norm_eps",
    "block_size",
    "mask_token_id",
    "rope_theta",
)
_ZLAB = (*_BODY, "vocab_size", "target_layer_ids")
_DFLASH2 = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
_SPECULATORS = (
    "vocab_size",
    "block_size",
    "mask_token_id",
    "aux_hidden_state_layer_ids",
    "sliding_window",
)
# What a format must have; the rest has a meaning when it is absent.
_REQUIRED = {
    "z-lab": _ZLAB,
    "z-lab v2": (*_ZLAB, "sliding_window"),
    "z-lab DFlash 2": (*_ZLAB, "sliding_window", *_DFLASH2),
    "ModelOpt": (*_BODY, "vocab_size", "swa_window_size"),
    "JetSpec": _ZLAB,
    "speculators": _SPECULATORS,
    "speculators, whole vocabulary": _SPECULATORS,
    "speculators DFlash 2": (*_SPECULATORS, *_DFLASH2),
    "Open Spec Config": (
        "method",
        "speculative_tokens",
        "target_layer_ids",
        "target_layer_start_idx",
        "sample_from_anchor",
        "mask_token_id",
        "sliding_window_non_causal",
        "vocab_size",
    ),
    "Muse assistant": (*_BODY, "target_layer_ids", "sliding_window"),
    "DeepSpec": _ZLAB,
    "AngelSpec": _ZLAB,
}


def key_damages(format_name: str) -> Iterator[Damage]:
    """A key that is missing, that is there twice, or that nobody knows."""
    config = CONFIGS[format_name]()
    for key in _REQUIRED[format_name]:
        paths = _paths(config, key)
        assert paths, key
        yield Damage(
            REQUIRED,
            format_name,
            f"no {key}",
            (key,),
            to_config=lambda c, paths=paths: [_place(c, p).pop(p[-1]) for p in paths],
        )
    nested = [key for key in ("dflash_config", "transformer_layer_config") if config.get(key)]
    for key in ("block_size", "mask_token_id", "vocab_size") if nested else ():
        [path] = _paths(config, key)
        other = (key,) if len(path) > 1 else (nested[0], key)
        yield Damage(
            COPIES,
            format_name,
            f"another {key}",
            (f"{key} is", "17"),
            to_config=lambda c, p=other: _place(c, p).update({p[-1]: 17}),
        )
    for outer in (None, *nested):
        yield Damage(
            UNKNOWN,
            format_name,
            f"sparsity_ratio in {outer}",
            ("does not know", "sparsity_ratio"),
            to_config=lambda c, o=outer: (c[o] if o else c).update(sparsity_ratio=0.5),
        )


def _paths(config: dict[str, Any], key: str) -> list[tuple[str, ...]]:
    """The paths to a key in a config."""
    found = [(key,)] if config.get(key) is not None else []
    for outer, value in config.items():
        if isinstance(value, dict):
            found += [(outer, *path) for path in _paths(value, key)]
    return found


def _place(config: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """The object that has the last key of a path."""
    return functools.reduce(lambda value, key: value[key], path[:-1], config)
