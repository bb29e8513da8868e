"""Which layers of a raw config are sliding, with what window, and which blocks are causal."""

from typing import Any

from ..drafter.checks import check_bool, check_integer, reject
from ..drafter.config import FULL, SLIDING
from ..errors import UserError
from .keys import Keys, contradict

_CAUSAL_KEYS = ("is_causal", "causal", "causal_head", "dflash_query_causal", "use_causal")


def layer_fields(keys: Keys, layers: int, block_size: int) -> dict[str, Any]:
    """``layer_types``, ``sliding_window`` and ``causal_layers`` by every rule but speculators'.

    ``use_swa`` makes every layer sliding, whatever ``layer_types`` says; else ``layer_types``
    decides, and without it all layers are full. A causality flag holds for every layer; without
    one, z-lab's legacy rule: sliding layers are causal, full layers are not.

    Raises:
        UserError: The keys contradict each other, or a window is missing.
    """
    causal = keys.get(*_CAUSAL_KEYS)
    if causal is not None:
        check_bool("the causality flag", causal)
    slides = keys.get("use_swa", default=False)
    check_bool("use_swa", slides)
    if slides:
        # Read, so that they are known, though they count for nothing here.
        keys.all("use_sliding_window", "sliding_window")
        _listed_types(keys, layers)
        kinds, window = (SLIDING,) * layers, _swa_window(keys, causal, block_size)
    elif keys.all("swa_window_size") and not keys.all("use_swa"):
        raise UserError(
            "The config has swa_window_size but not use_swa: true; remove it, or say that the "
            "drafter slides."
        )
    else:
        kinds, window = sliding_layers(keys, layers)
    flags = tuple(kind == SLIDING for kind in kinds) if causal is None else (causal,) * layers
    return {
        "layer_types": kinds,
        "sliding_window": window,
        "causal_layers": flags if any(flags) else (),
    }


def sliding_layers(keys: Keys, layers: int) -> tuple[tuple[str, ...], int | None]:
    """``layer_types`` (empty if no layer slides) and the window of those that slide.

    Raises:
        UserError: The list does not fit, a sliding layer has no window, there is a window without
            a list, or the switch of all windows is off.
    """
    kinds, window = _listed_types(keys, layers), keys.get("sliding_window")
    switch = keys.get("use_sliding_window")
    if kinds is None and (switch or (window is not None and switch is not False)):
        raise UserError(
            f"The config has sliding_window {window!r} without layer_types, so that nobody "
            "knows which layers slide; add the layer_types the drafter was trained with."
        )
    if kinds is None or SLIDING not in kinds:
        return (), None
    if window is None:
        raise UserError(
            "layer_types has sliding_attention layers but the config has no sliding_window; add "
            "the window that the drafter was trained with."
        )
    if switch is False:
        # Which Hugging Face's classes, and so the official package, read as no window at all.
        contradict("layer_types", kinds, "use_sliding_window", False)
    check_integer("sliding_window", window, 1)
    return tuple(kinds), window


def _swa_window(keys: Keys, causal: bool | None, block_size: int) -> Any:
    window = keys.required("swa_window_size", "sliding_window")
    if causal is None:
        raise UserError(
            "The config has use_swa but none of is_causal and dflash_config.causal, so that "
            "nobody knows whether the block is causal; add the one the drafter was trained with."
        )
    # ModelOpt leaves the block un-windowed, which is the same as long as the window holds it.
    if isinstance(window, int) and window < block_size:
        raise UserError(
            f"use_swa has a window of {window}, smaller than the block size {block_size}; this "
            "version does not run such a block."
        )
    return window


def _listed_types(keys: Keys, layers: int) -> list[str] | None:
    """``layer_types``, one a layer, or None without it."""
    kinds = keys.get("layer_types")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) != layers or {*map(str, kinds)} - {FULL, SLIDING}:
        wanted = f"{FULL} or {SLIDING}, which this version runs, for each of {layers} layers"
        reject("layer_types", kinds, wanted)
    return kinds
