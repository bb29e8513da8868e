"""The parts of a raw config that every format spells alike."""

import itertools
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from ..drafter.checks import check_bool, check_integer
from ..errors import UserError
from .additions import Additions
from .keys import OPTIONS, Keys
from .rope import ROPE_KEYS, parse_rope

_AUX_KEYS = ("aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids")
# The MLX names of a checkpoint's tensors, or None as long as they are not known.
Names = Collection[str] | None


def config_keys(config: Mapping[str, Any], nested_key: str, additions: Additions) -> Keys:
    """The keys at the top level and in one object below it, and what the user adds.

    Raises:
        UserError: The value of ``nested_key`` is not an object.
    """
    nested = nested_object(config, nested_key)
    top = {key: value for key, value in config.items() if key != nested_key}
    return Keys({"at the top level": top, f"in {nested_key}": nested, OPTIONS: additions.values})


def nested_object(config: Mapping[str, Any], key: str, where: str = "") -> Mapping[str, Any]:
    """The object under a key, empty if there is none.

    Args:
        config: The object that has the key.
        key: The key.
        where: What messages put before the key: ``"speculators_config."``.

    Raises:
        UserError: The value is not an object.
    """
    nested = config.get(key)
    if nested is None:
        return {}
    if not isinstance(nested, Mapping):
        raise UserError(f"{where}{key} is {nested!r}; it must be an object.")
    return nested


def body_fields(
    keys: Keys, names: Names, additions: Additions, defaults: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The ``DrafterConfig`` fields of the Qwen3-like layers.

    Args:
        keys: The config.
        names: The MLX names of the checkpoint's tensors, if known.
        additions: What the user adds.
        defaults: What missing keys are by the format's definition.

    Raises:
        UserError: A key is missing or contradictory.
    """
    defaults = defaults or {}

    fields = {}
    for key in (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "rms_norm_eps",
        "vocab_size",
    ):
        value = keys.get(key, default=defaults.get(key))
        fields[key] = keys.required(key) if value is None else value
    # The lists that are compared with it need it to be a number.
    check_integer("num_hidden_layers", fields["num_hidden_layers"], 1, 1024)
    rope = keys.subset(ROPE_KEYS)
    fields |= {
        "head_dim": _head_dim(keys, fields, defaults.get("head_dim")),
        "attention_bias": _attention_bias(keys, names),
        "rope": parse_rope(rope, additions.attention_factor, defaults.get("rope_theta")),
        "max_position_embeddings": keys.get("max_position_embeddings"),
    }
    return fields


def block_fields(keys: Keys, sample_from_anchor: bool | None = None) -> dict[str, Any]:
    """``block_size``, ``mask_token_id`` and ``sample_from_anchor``.

    A format in which the anchor's row predicts too counts its block as predictions; the MLX
    format always counts the anchor as well.

    Args:
        keys: The config.
        sample_from_anchor: Where the format, and not a key, decides it.

    Raises:
        UserError: A key is missing or not of its type.
    """
    shifted = sample_from_anchor
    if shifted is None:
        shifted = keys.get("sample_from_anchor", "shift_label", "draft_shift", default=False)
    check_bool("sample_from_anchor", shifted)
    block_size = keys.required("block_size")
    check_integer("block_size", block_size, 1 if shifted else 2, 255)
    mask_token_id = keys.required("mask_token_id")
    if isinstance(mask_token_id, str):
        raise UserError(
            f"mask_token_id is the text {mask_token_id!r}, which only the target's tokenizer can "
            "turn into an id; write the id into a local copy of the config."
        )
    return {
        "block_size": block_size + shifted,
        "mask_token_id": mask_token_id,
        "sample_from_anchor": shifted,
    }


def _head_dim(keys: Keys, fields: Mapping[str, Any], default: int | None) -> Any:
    """Explicit, or the plain quotient, which the shapes of the weights then confirm or refute."""
    explicit, values = keys.get("head_dim", default=default), keys.get("v_head_dim")
    hidden, heads = fields["hidden_size"], fields["num_attention_heads"]
    if explicit is None:
        if not (isinstance(hidden, int) and isinstance(heads, int)) or heads < 1 or hidden % heads:
            raise UserError(
                f"The config has no head_dim, and hidden_size {hidden!r} is not a multiple of "
                f"num_attention_heads {heads!r}; add the head_dim."
            )
        explicit = hidden // heads
    if values not in (None, explicit):
        raise UserError(
            f"v_head_dim is {values!r} but head_dim is {explicit!r}; this version runs only "
            "drafters in which they are equal."
        )
    return explicit


def _attention_bias(keys: Keys, names: Names) -> Any:
    """As the config says, else as the weights have it; a bias too many or too few is an error."""
    has_bias = names is not None and any(name.endswith("self_attn.q_proj.bias") for name in names)
    return keys.get("attention_bias", default=has_bias)


class Tables(NamedTuple):
    """``has_embed_tokens``, ``has_lm_head`` and ``draft_vocab_size`` of a ``DrafterConfig``."""

    has_embed_tokens: bool
    has_lm_head: bool
    draft_vocab_size: int | None


def own_tables(keys: Keys, names: Names, vocab_size: Any) -> Tables:
    """The tables that the drafter brings: as the config says, else as the weights have them.

    A shipped table is kept even if it looks like a copy of the target's: only the target, which
    is not here, could prove it one.

    Raises:
        UserError: The config denies a table that a reduced vocabulary needs.
    """
    shipped = frozenset(names or ())
    draft = keys.get("draft_vocab_size")
    if draft == vocab_size:
        draft = None
    head = keys.get("has_lm_head", default=draft is not None or "lm_head.weight" in shipped)
    if draft is not None and head is False:
        raise UserError(
            f"draft_vocab_size is {draft!r} of {vocab_size!r}, which needs the drafter's own head, "
            "but has_lm_head is false; one of the two is wrong."
        )
    embed = keys.get("has_embed_tokens", default="embed_tokens.weight" in shipped)
    return Tables(embed, head, draft)


def zero_based_taps(keys: Keys) -> tuple[int, ...]:
    """The taps by ``target_layer_ids`` (0-based) and by the ids that count from 1, or either.

    Raises:
        UserError: There are none, they contradict each other, or one is the embeddings.
    """
    ids, aux = keys.get("target_layer_ids"), keys.get(*_AUX_KEYS)
    tapped = keys.get("use_aux_hidden_state", default=True)
    check_bool("use_aux_hidden_state", tapped)
    if not tapped:
        if ids or aux:
            raise UserError(
                f"use_aux_hidden_state is false, but there are taps ({ids or aux}); correct one."
            )
        return ()
    if ids is None and aux is None:
        keys.required("target_layer_ids")
    for name, listed in (("target_layer_ids", ids), (_AUX_KEYS[0], aux)):
        if listed is not None and (
            not isinstance(listed, list) or not all(type(n) is int for n in listed) or not listed
        ):
            raise UserError(f"{name} is {listed!r}; it must be a list of target layers.")
    if aux is not None:
        # These engines count the embeddings as layer 0.
        shifted = [n - 1 for n in aux]
        if ids is not None and ids != shifted:
            raise UserError(
                f"{'/'.join(_AUX_KEYS)} is {aux!r}, but target_layer_ids {ids} need "
                f"{[n + 1 for n in ids]} there (it counts from 1); one of the two is wrong."
            )
        ids = shifted
    return checked_taps(ids, "target_layer_ids" if aux is None else _AUX_KEYS[0])


def checked_taps(ids: list[int], key: str) -> tuple[int, ...]:
    """0-based taps, increasing.

    Args:
        ids: Counted from 0.
        key: Where they come from, for the message.

    Raises:
        UserError: One is the embeddings, or they are not in order.
    """
    if min(ids) < 0:
        raise UserError(
            f"{key} taps the outputs of layers {ids} (counted from 0), of which {min(ids)} is the "
            "target's embeddings, which this version does not tap."
        )
    if any(a >= b for a, b in itertools.pairwise(ids)):
        raise UserError(
            f"{key} taps layers {ids} (counted from 0), which are not strictly increasing."
        )
    return tuple(ids)


def check_counts(keys: Keys, taps: tuple[int, ...], mask_token_id: Any) -> None:
    """Keys that repeat what another key says must say the same.

    Raises:
        UserError: Names both keys and their values.
    """
    copies = {
        "num_aux_layers": ("the number of target_layer_ids", len(taps)),
        "pard_token": ("mask_token_id", mask_token_id),
    }
    for key, (other, value) in copies.items():
        if keys.get(key) not in (None, value):
            raise UserError(f"{key} is {keys.get(key)!r} but {other} is {value!r}; correct one.")
