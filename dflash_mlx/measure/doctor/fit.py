"""Whether a pair fits in memory, from the sizes of files that are on this machine."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from ...convert.source import find_source, weights_folder
from ...convert.weights import indexed_files
from ...errors import UserError, counted
from ...files import read_json_object
from ...kernels.metal import on_metal
from ...loading.hub import find_local
from ...loading.known_pairs import text_config
from ..machine import GB, total_memory
from .finding import Finding

# What is left for activations, the tokenizer and everything else that runs.
_TIGHT = 0.9


@dataclass(frozen=True)
class Need:
    """Bytes that a model needs.

    Attributes:
        weights: of its files.
        per_token: of its cache, for a token of context; None if its config does not tell.
    """

    weights: int
    per_token: int | None


def check_fit(models: Mapping[str, tuple[str, str | None]], context: int) -> Finding:
    """Whether these models and their caches fit in memory. Nothing is downloaded.

    Args:
        models: what each is, its name and its revision.
        context: tokens of prompt and answer.
    """
    needs, parts = [], []
    for what, (name, revision) in models.items():
        try:
            need = need_of(what, name, revision)
        except UserError as error:
            return Finding("fit", "advice", f"Whether the pair fits is not known: {error}")
        needs.append(need)
        parts.append(f"{need.weights / GB:.2f} GB for the {what}'s weights")
    caches = sum(need.per_token or 0 for need in needs) * context
    total, limit = sum(need.weights for need in needs) + caches, memory_limit()
    whose = "the GPU may use" if on_metal() else "this machine has"
    uncounted = any(need.per_token is None for need in needs)
    length = counted(context, "token")
    sizes = " and ".join([*parts, f"{caches / GB:.2f} GB for caches of {length}"])
    text = (
        f"{sizes} make {total / GB:.2f} GB of the {limit / GB:.1f} GB that {whose}"
        f"{', not counting a cache whose size its config does not tell' if uncounted else ''}."
    )
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


def need_of(what: str, name: str, revision: str | None = None) -> Need:
    """What a target or a drafter on this machine needs.

    Raises:
        UserError: it is not here, or not completely.
    """
    folder = find_local(name, revision)
    if folder is None:
        raise UserError(
            f"{name} is not on this machine, and the doctor downloads nothing; generate with it "
            "once, or give a folder."
        )
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} holds no config.json, so it is not a model folder.")
    stored = folder
    if what == "drafter":
        # A target's repository may keep its drafter in a subfolder.
        source = find_source(folder, None)
        folder, stored = source.folder, weights_folder(source)
    if missing := _missing(stored):
        raise UserError(f"{name} is not complete on this machine; it lacks {missing[0]}.")
    files = sorted(stored.glob("*.safetensors"))
    if not files:
        raise UserError(f"{stored} holds no weights (*.safetensors).")
    weights = sum(file.stat().st_size for file in files)
    return Need(weights, cache_bytes(read_json_object(folder / "config.json")))


def _missing(folder: Path) -> list[str]:
    """Files that a checkpoint in several parts names and that are not there."""
    return sorted(name for name in indexed_files(folder) or () if not (folder / name).is_file())


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
