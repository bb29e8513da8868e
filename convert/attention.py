"""Which layers of a raw config are sliding, with what window, and which blocks are causal."""

from typing import NamedTuple

from ..drafter.checks import check_bool, check_integer
from ..drafter.config import FULL, SLIDING
from ..errors import UserError
from .keys import Keys

_CAUSAL_KEYS = ("is_causal", "causal", "causal_head", "dflash_query_causal", "use_causal")


class Layers(NamedTuple):
    """``layer_types``, ``sliding_window`` and ``causal_layers`` of a ``DrafterConfig``."""

    layer_types: tuple[str, ...]
    sliding_window: int | None
    causal_layers: tuple[bool, ...]


def parse_layers(keys: Keys, layers: int, block_size: int) -> Layers:
    """The layers by the rules of z-lab, SGLang, vLLM and ModelOpt.

    ``use_swa`` makes every layer sliding, whatever ``layer_types`` says; else ``layer_types``
    decides, and without it all layers are full. A causality flag holds for every layer; without
    one, z-lab's legacy rule: sliding layers are causal, full layers are not.

    Raises:
        UserError: The keys contradict each other, or a window is missing.
    """
    explicit = keys.get(*_CAUSAL_KEYS)
    if explicit not in (None, True, False):
        raise UserError(f"The config's causality flag is {explicit!r}; it must be true or false.")
    # Also where use_swa overrules it, so that they count as read.
    keys.all("sliding_window", "use_sliding_window")
    _checked_kinds(keys, layers)
    slides = keys.get("use_swa", default=False)
    check_bool("use_swa", slides)
    if slides:
        window = keys.required("swa_window_size", "sliding_window")
        _check_swa(explicit, window, block_size)
        return Layers((SLIDING,) * layers, window, (explicit,) * layers if explicit else ())
    if keys.get("swa_window_size") is not None and keys.get("use_swa") is None:
        raise UserError(
            "The config has swa_window_size but not use_swa: true; remove it, or say that the "
            "drafter slides."
        )
    kinds, window = parse_layer_types(keys, layers)
    flags = tuple(kind == SLIDING for kind in kinds) if explicit is None else (explicit,) * layers
    return Layers(kinds, window, flags if any(flags) else ())


def parse_layer_types(keys: Keys, layers: int) -> tuple[tuple[str, ...], int | None]:
    """``layer_types`` (empty if no layer slides) and the window of those that slide.

    Raises:
        UserError: The list does not fit, a sliding layer has no window, or there is a window
            without a list.
    """
    kinds, window = _checked_kinds(keys, layers), keys.get("sliding_window")
    switch = keys.get("use_sliding_window")
    if kinds is None:
        if switch or (window is not None and switch is not False):
            raise UserError(
                f"The config has sliding_window {window!r} without layer_types, so that nobody "
                "knows which layers slide; add the layer_types the drafter was trained with."
            )
        return (), None
    if SLIDING not in kinds:
        return (), None
    if window is None:
        raise UserError(
            "layer_types has sliding_attention layers but the config has no sliding_window; add "
            "the window that the drafter was trained with."
        )
    check_integer("sliding_window", window, 1)
    return tuple(kinds), window


def _check_swa(explicit: bool | None, window: object, block_size: object) -> None:
    if explicit is None:
        raise UserError(
            "The config has use_swa but none of is_causal and dflash_config.causal, so that "
            "nobody knows whether the block is causal; add the one the drafter was trained with."
        )
    # ModelOpt leaves the block un-windowed, which is the same as long as the window holds it.
    if isinstance(window, int) and isinstance(block_size, int) and window < block_size:
        raise UserError(
            f"use_swa has a window of {window}, smaller than the block size {block_size}; this "
            "version does not run such a block."
        )


def _checked_kinds(keys: Keys, layers: int) -> list[str] | None:
    """``layer_types``, one a layer, or None without it."""
    kinds = keys.get("layer_types")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise UserError(
            f"layer_types is {kinds!r}; it must list one type for each of the num_hidden_layers "
            f"({layers!r}) layers."
        )
    if others := sorted({str(kind) for kind in kinds} - {FULL, SLIDING}):
        raise UserError(
            f"This drafter has layers of type {', '.join(others)} (layer_types), which this "
            "version does not run; use another drafter for this target."
        )
    return kinds
