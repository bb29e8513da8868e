"""The fields of a ``DrafterConfig`` that every format spells alike."""

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ..drafter.checks import check_bool, check_integer, reject
from ..drafter.config import DrafterConfig
from ..errors import UserError
from .keys import Additions, Keys, contradict, unsupported
from .rotary import rope_config

_AUX_KEYS = ("aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids")
_MOST_STREAMS = 64
# The MLX names of a checkpoint's tensors, or None as long as they are not known.
Names = Collection[str] | None


@dataclass(frozen=True)
class Parsed:
    """What a config of any format says, in the terms of the MLX format.

    Attributes:
        format: The format's short name, such as ``"z-lab"`` or ``"speculators"``.
        config: The drafter. What only the weights tell (own tables, a mask embedding, biases) is
            settled as far as the tensors' names were known.
        window: The format's own window rule in words.
        tap_base: What the format's tap ids call the output of the target's first layer: 0 or 1.
        verifier: ``name_or_path`` and ``architectures`` of the target, if the config names it.
        added: What the user added to the config.
    """

    format: str
    config: DrafterConfig
    window: str
    tap_base: int
    verifier: dict[str, Any]
    added: dict[str, Any]


def open_config(
    config: Mapping[str, Any],
    additions: Additions,
    nested_key: str = "dflash_config",
    defaults: Mapping[str, Any] | None = None,
) -> Keys:
    """The keys of a config that switches on nothing that this version does not run.

    Raises:
        UserError: It does, or the value of ``nested_key`` is not an object.
    """
    keys = Keys(config, nested_key, additions, defaults or {})
    keys.refuse_unsupported()
    return keys


def close_config(
    keys: Keys,
    fields: Mapping[str, Any],
    *,
    format: str,
    window: str,
    tap_base: int = 0,
    verifier: dict[str, Any] | None = None,
) -> Parsed:
    """What these fields and the rest of :class:`Parsed` make, once every key has been read.

    Raises:
        UserError: A key is left over, a field is out of range, or a tap is on the target's last
            layer and the user does not allow it.
    """
    keys.refuse_unread()
    config, additions = DrafterConfig(**fields), keys.additions
    taps, depth = config.target_layer_ids, config.num_target_layers
    if not additions.allow_final_tap and taps and taps[-1] + 1 == depth:
        raise UserError(
            f"This drafter has a tap on the target's last layer ({taps[-1]} of {depth}), and "
            "its config does not say whether before or after the final norm; if before, "
            "convert it with --allow-final-tap."
        )
    return Parsed(format, config, window, tap_base, verifier or {}, additions.given)


def body_fields(keys: Keys, names: Names) -> dict[str, Any]:
    """The fields of the Qwen3-like layers.

    Raises:
        UserError: A key is missing or contradictory.
    """
    fields = {
        key: keys.required(key)
        for key in (
            *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
            *("num_key_value_heads", "rms_norm_eps", "vocab_size"),
        )
    }
    # The lists that are compared with it need it to be a number.
    check_integer("num_hidden_layers", fields["num_hidden_layers"], 1, 1024)
    has_bias = names is not None and any(name.endswith("q_proj.bias") for name in names)
    return fields | {
        "head_dim": _head_dim(keys, fields["hidden_size"], fields["num_attention_heads"]),
        # As the config says, else as the weights have it.
        "attention_bias": keys.get("attention_bias", default=has_bias),
        "rope": rope_config(keys),
        "max_position_embeddings": keys.get("max_position_embeddings"),
        "has_mask_embedding": names is None or "mask_embedding" in names,
    }


def tap_width(keys: Keys, *, adapted: bool = False) -> Any:
    """The width of one tap: ``target_hidden_size``, else the drafter's own.

    Args:
        keys: The config.
        adapted: Whether each tap goes through a projection to the drafter's width, which then may
            be any.

    Raises:
        UserError: A tap is several of the target's hidden states at once.
    """
    hidden = keys.get("hidden_size")
    width = keys.get("target_hidden_size", default=hidden)
    sizes = type(hidden) is type(width) is int and hidden > 0
    streams = width // hidden if sizes and not adapted and width % hidden == 0 else 1
    # More are no streams but a mistake, which the weights tell.
    if 1 < streams <= _MOST_STREAMS:
        raise unsupported(
            f"taps of {streams} hyper-connection streams each (target_hidden_size {width}, "
            f"hidden_size {hidden})"
        )
    return width


def _head_dim(keys: Keys, hidden: Any, heads: Any) -> Any:
    """Explicit, or the plain quotient, which the shapes of the weights then confirm or refute."""
    explicit, values = keys.get("head_dim"), keys.get("v_head_dim")
    if explicit is None:
        if not (isinstance(hidden, int) and isinstance(heads, int)) or heads < 1 or hidden % heads:
            raise UserError(
                f"The config has no head_dim, and hidden_size {hidden!r} is not a multiple of "
                f"num_attention_heads {heads!r}; add the head_dim."
            )
        explicit = hidden // heads
    if values not in (None, explicit):
        raise unsupported(f"v_head_dim {values!r} beside head_dim {explicit!r}")
    return explicit


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
    block_size, mask_token_id = keys.required("block_size"), keys.required("mask_token_id")
    check_integer("block_size", block_size, 1 if shifted else 2, 255)
    if isinstance(mask_token_id, str):
        wanted = "an id, which the target's tokenizer has for a text; write it into a local copy"
        reject("mask_token_id", mask_token_id, wanted)
    return {
        "block_size": block_size + shifted,
        "mask_token_id": mask_token_id,
        "sample_from_anchor": shifted,
    }


def table_fields(keys: Keys, names: Names) -> dict[str, Any]:
    """The tables that the drafter brings: as the config says, else as the weights have them.

    A shipped table is kept even if it looks like a copy of the target's: only the target, which
    is not here, could prove it one.

    Raises:
        UserError: The config denies a table that a reduced vocabulary needs.
    """
    shipped, draft = frozenset(names or ()), keys.get("draft_vocab_size")
    if draft == keys.get("vocab_size"):
        draft = None
    head = keys.get("has_lm_head", default=draft is not None or "lm_head.weight" in shipped)
    if draft is not None and head is False:
        contradict("draft_vocab_size", draft, "has_lm_head, which that needs,", head)
    embed = keys.get("has_embed_tokens", default="embed_tokens.weight" in shipped)
    return {"has_embed_tokens": embed, "has_lm_head": head, "draft_vocab_size": draft}


def taps(keys: Keys) -> tuple[int, ...]:
    """The taps by ``target_layer_ids`` (0-based) and by the ids that count from 1, or either.

    Raises:
        UserError: There are none, they contradict each other, or one is the embeddings.
    """
    ids, aux = keys.get("target_layer_ids"), keys.get(*_AUX_KEYS)
    tapped = keys.get("use_aux_hidden_state", default=True)
    check_bool("use_aux_hidden_state", tapped)
    if not tapped:
        if ids or aux:
            contradict("use_aux_hidden_state", tapped, "the list of taps", ids or aux)
        return ()
    if aux is None:
        keys.required("target_layer_ids")
        return zero_based(ids, "target_layer_ids", 0)
    found = zero_based(aux, _AUX_KEYS[0], 1)
    if ids not in (None, list(found)):
        counted = "target_layer_ids, which counts from 0 and the other from 1,"
        contradict("/".join(_AUX_KEYS), aux, counted, ids)
    return found


def zero_based(ids: Any, key: str, base: int) -> tuple[int, ...]:
    """Taps counted from 0, increasing.

    Args:
        ids: What the config has.
        key: Under which key, for the message.
        base: What it calls the output of the first layer.

    Raises:
        UserError: They are no list of layers, one is the embeddings, or they are not in order.
    """
    if not isinstance(ids, list) or not ids or any(type(n) is not int for n in ids):
        reject(key, ids, "a list of target layers")
    found = tuple(n - base for n in ids)
    if min(found) < 0:
        raise UserError(
            f"{key} is {ids}, counted from {base}, of which {min(ids)} is the target's embeddings, "
            "which this version does not tap."
        )
    if any(a >= b for a, b in itertools.pairwise(found)):
        reject(key, ids, "strictly increasing")
    return found
