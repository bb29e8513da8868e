"""Write an MLX drafter as the official PyTorch package (``dflash``) reads one.

The layout is z-lab's: config.json with a ``dflash_config``, and safetensors under the published
names. What that package would not run, or would run otherwise, is refused.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from textwrap import dedent
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.utils import dequantize_model, make_shards

from ..drafter.config import FULL, DrafterConfig
from ..drafter.model import Drafter
from ..errors import UserError, os_reason, printable
from ..files import check_free, staged
from .detect import parse
from .keys import Additions
from .weights import DTYPES
from .writer import front_matter

_INDEX = "model.safetensors.index.json"
# The fields that both formats call alike, and those of them in ``dflash_config`` with the values
# at which they are left out.
_SAME = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "rms_norm_eps", "vocab_size", "num_target_layers"),
    *("attention_bias", "max_position_embeddings"),
)
_NESTED = {
    "conv_kernel_size": None,
    "conv_group_size": None,
    "selector_rank": None,
    "selector_top_k": None,
    "final_logit_softcapping": None,
    "output_multiplier": 1.0,
    "input_embedding_scale": 1.0,
}
# What tells a drafter of Gemma where nothing names its target.
_GEMMA_VOCABULARIES, _GEMMA_CAP = (262144, 262208), 30.0
_ROPE = (
    *("original_max_position_embeddings", "beta_fast", "beta_slow"),
    *("low_freq_factor", "high_freq_factor"),
)


def export_drafter(
    drafter: Drafter,
    folder: str | Path,
    *,
    dtype: str | None = None,
    source: Mapping[str, Any] | None = None,
) -> Path:
    """Write a drafter as a z-lab checkpoint, unquantized.

    Args:
        drafter: As it was loaded, before its context weights are stacked. It is used up: its
            weights are dequantized and cast in place.
        folder: The folder to write; it must not exist, or be empty.
        dtype: "float16", "bfloat16" or "float32"; None keeps the drafter's.
        source: The ``source`` object of its config.json, for the model card.

    Returns:
        The folder written: config.json, model.safetensors (in shards when large) and README.md.

    Raises:
        UserError: The format cannot express the drafter, or the folder cannot be written. Nothing
            is left behind.
        ValueError: The drafter's context weights are stacked.
    """
    if dtype is not None and dtype not in DTYPES:
        raise UserError(f"dtype is {dtype!r}; it must be one of {', '.join(DTYPES)}.")
    if "kv_proj" in drafter.layers[0].self_attn:
        raise ValueError("This drafter's context weights are stacked; export it before that.")
    destination = Path(folder)
    check_free(destination)
    config = zlab_config(drafter.config)
    if dtype is not None:
        # Before dequantizing, so that the numbers are rounded once.
        drafter.set_dtype(DTYPES[dtype])
    if _embeds_as_gemma(drafter.config, source or {}):
        # In the dtype that it is used in, so that either side multiplies by the same number.
        root = mx.array(drafter.config.target_hidden_size**0.5).astype(drafter.dtype)
        config["dflash_config"]["input_embedding_scale"] = root.item()
    weights = _named(dict(tree_flatten(dequantize_model(drafter).parameters())))
    config["dtype"] = str(drafter.dtype).removeprefix("mlx.core.")
    with staged(destination) as partial:
        _write_weights(partial, weights)
        text = json.dumps(dict(sorted(config.items())), indent=2) + "\n"
        (partial / "config.json").write_text(text, encoding="utf-8")
        card = _card(config["architectures"][0], source or {})
        (partial / "README.md").write_text(card, encoding="utf-8")
    return destination


def zlab_config(config: DrafterConfig) -> dict[str, Any]:
    """The config.json of a drafter in z-lab's format, without the dtype.

    Raises:
        UserError: Names everything in the drafter that the format cannot express.
    """
    second = config.conv_kernel_size is not None
    exported: dict[str, Any] = {
        "architectures": ["DFlash2DraftModel" if second else "DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "layer_types": list(config.layer_types or (FULL,) * config.num_hidden_layers),
        "sliding_window": config.sliding_window,
        "use_sliding_window": any(config.sliding),
        "max_window_layers": config.num_hidden_layers,
        "rope_parameters": _rope(config),
        "dflash_config": _nested(config),
    }
    exported |= {key: value for key in _SAME if (value := getattr(config, key)) is not None}
    if not second:
        # Readers of v1 checkpoints look for it at the top level alone.
        exported["block_size"] = config.block_size
    # Where it is left out, sliding layers are causal and full ones are not.
    needed = second or any(config.sliding) or any(config.causal)
    if needed and len(set(config.causal)) == 1:
        exported["is_causal"] = config.causal[0]
    _check_expressed(config, exported)
    return exported


def _embeds_as_gemma(config: DrafterConfig, source: Mapping[str, Any]) -> bool:
    """Whether a drafter is given rows of the target's table times the root of their width.

    Gemma embeds so, and a drafter with ``embed_scale`` "target" what its target embeds. The
    official loop looks rows up as they are, times ``input_embedding_scale``.
    """
    if config.embed_scale == "raw":
        return False
    named = " ".join(str(source.get(key)) for key in ("repo", "path", "verifier")).lower()
    cap = config.final_logit_softcapping
    return "gemma" in named or config.vocab_size in _GEMMA_VOCABULARIES or cap == _GEMMA_CAP


def _nested(config: DrafterConfig) -> dict[str, Any]:
    nested = {
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": list(config.target_layer_ids),
    }
    given = {key: getattr(config, key) for key in _NESTED}
    return nested | {key: value for key, value in given.items() if value != _NESTED[key]}


def _rope(config: DrafterConfig) -> dict[str, Any]:
    rope = config.rope
    fields = {"rope_theta": rope.theta, "rope_type": rope.rope_type}
    if rope.rope_type != "default":
        fields["factor"] = rope.factor
    if rope.rope_type == "yarn":
        fields["attention_factor"] = rope.attention_factor
    return fields | {key: value for key in _ROPE if (value := getattr(rope, key)) is not None}


def _check_expressed(config: DrafterConfig, exported: dict[str, Any]) -> None:
    """Whatever does not come back from z-lab's format as it was, it cannot express."""
    try:
        back, _ = parse(exported, (), Additions(allow_final_tap=True))
    except UserError as error:
        raise UserError(f"z-lab's format cannot express this drafter: {error}") from error
    read, meant = _meaning(back.config), _meaning(config)
    lost = [f"{field} {value!r}" for field, value in meant.items() if read[field] != value]
    # The official package reads no config without it.
    lost += ["num_target_layers None"] if config.num_target_layers is None else []
    if lost:
        raise UserError(f"z-lab's format cannot express what this drafter has: {', '.join(lost)}.")


def _meaning(config: DrafterConfig) -> dict[str, Any]:
    """A config's fields, also those of its rope, with nothing left to a default."""
    fields = asdict(config) | {"layer_types": config.sliding, "causal_layers": config.causal}
    if not any(config.sliding):
        fields["window_rule"] = None
    return fields | {f"rope.{key}": value for key, value in fields.pop("rope").items()}


def _named(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    """The weights under their published names: codebooks are plain parameters there."""
    return {
        name.removesuffix(".weight") if name.endswith("_codebook.weight") else name: array
        for name, array in sorted(weights.items())
    }


def _write_weights(folder: Path, weights: dict[str, mx.array]) -> None:
    shards = make_shards(weights)
    weight_map = {}
    try:
        for i, shard in enumerate(shards, 1):
            file = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
            file = file if len(shards) > 1 else "model.safetensors"
            # transformers refuses a file that does not name its framework.
            mx.save_safetensors(str(folder / file), shard, {"format": "pt"})
            weight_map |= dict.fromkeys(shard, file)
    except RuntimeError as error:
        raise OSError(os_reason(error)) from error
    if len(shards) > 1:
        size = sum(array.nbytes for array in weights.values())
        index = {"metadata": {"total_size": size}, "weight_map": weight_map}
        (folder / _INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _card(architecture: str, source: Mapping[str, Any]) -> str:
    """README.md, for the class of the official package that reads the drafter."""
    origin = source.get("repo") or source.get("path")
    made_from = f", which was converted from {printable(str(origin))}" if origin else ""
    body = dedent(f"""
        # DFlash drafter for PyTorch

        Exported from an MLX drafter{made_from} by dflash-mlx. It drafts blocks for the target that
        it was trained with and does not generate text alone.

        ```python
        from dflash.model import {architecture}

        drafter = {architecture}.from_pretrained("THIS_FOLDER")
        ```
        """)
    return front_matter(source) + body
