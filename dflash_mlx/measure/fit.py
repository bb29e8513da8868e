"""Whether a pair fits in memory, from the sizes of files that are on this machine."""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx

from ..convert.source import find_source
from ..convert.weights import read_index
from ..errors import UserError, counted
from ..files import read_json_object
from ..kernels.metal import on_metal
from ..loading.known_pairs import text_config
from .finding import Finding
from .given_pair import Given, Models
from .machine import GB, total_memory

# What is left for activations, the tokenizer and everything else that runs.
_TIGHT = 0.9


def check_fit(models: Models, context: int) -> Finding:
    """Whether these models and their caches fit in memory. Nothing is downloaded.

    Args:
        models: the pair, or a part of it.
        context: tokens of prompt and answer.
    """
    total, caches, parts, uncounted = 0, 0, [], ""
    for what, model in models.items():
        try:
            weights, per_token = needed_by(what, model)
        except UserError as error:
            return Finding("fit", "advice", f"Whether the pair fits is not known: {error}")
        parts.append(f"{weights / GB:.2f} GB for the {what}'s weights")
        total += weights
        caches += (per_token or 0) * context
        if per_token is None:
            uncounted = ", not counting a cache whose size its config does not tell"
    total, limit = total + caches, memory_limit()
    whose = "the GPU may use" if on_metal() else "this machine has"
    length = counted(context, "token")
    sizes = " and ".join([*parts, f"{caches / GB:.2f} GB for caches of {length}"])
    text = f"{sizes} make {total / GB:.2f} GB of the {limit / GB:.1f} GB that {whose}{uncounted}."
    data = {"needed": total, "caches": caches, "limit": limit}
    if total > limit:
        advice = "They do not fit: take a smaller or a quantized target, or a shorter context."
        return Finding("fit", "fault", f"{text} {advice}", data)
    if total > limit * _TIGHT:
        return Finding("fit", "advice", f"{text} That is tight: close other programs.", data)
    return Finding("fit", "ok", f"{text} They fit in memory.", data)


def memory_limit() -> int:
    """Bytes that models may take: of what the GPU may use, or of the machine's memory."""
    if on_metal():
        return mx.device_info()["max_recommended_working_set_size"]
    return total_memory()


def needed_by(what: str, model: Given) -> tuple[int, int | None]:
    """Bytes that a target or a drafter on this machine needs.

    Returns:
        For its weights, and for its cache of each token of context; None if its config does not
        tell.

    Raises:
        UserError: it is not here, or not completely.
    """
    folder = model.folder
    if folder is None:
        raise UserError(
            f"{model.name} is not on this machine, and the doctor downloads nothing; generate "
            "with it once, or give a folder."
        )
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} holds no config.json, so it is not a model folder.")
    stored = folder
    if what == "drafter":
        # A target's repository may keep its drafter in a subfolder.
        source = find_source(folder, None)
        folder, stored = source.folder, source.weights_folder
    missing = sorted(n for n in read_index(stored).values() if not (stored / n).is_file())
    if missing:
        raise UserError(f"{model.name} is not complete on this machine; it lacks {missing[0]}.")
    files = list(stored.glob("*.safetensors"))
    if not files:
        raise UserError(f"{stored} holds no weights (*.safetensors).")
    config = read_json_object(folder / "config.json")
    return sum(file.stat().st_size for file in files), cache_bytes(config)


def cache_bytes(config: Mapping[str, Any]) -> int | None:
    """Bytes of keys and values for a token in all layers, 16-bit unless the model is float32.

    An upper bound: layers with a window keep less.
    """
    config = text_config(config)
    layers, heads = config.get("num_hidden_layers"), config.get("num_attention_heads")
    kv_heads, width = config.get("num_key_value_heads") or heads, config.get("head_dim")
    sizes = [layers, heads, kv_heads, width or config.get("hidden_size")]
    if config.get("kv_lora_rank") or not all(isinstance(n, int) and n > 0 for n in sizes):
        return None
    width = width or config["hidden_size"] // heads
    float32 = "float32" in (config.get("dtype"), config.get("torch_dtype"))
    return 2 * layers * kv_heads * width * (4 if float32 else 2)
