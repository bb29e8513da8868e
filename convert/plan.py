"""The tensors that a z-lab v1 drafter consists of, and how to explain one that does not fit."""

from typing import NamedTuple

from ..drafter.config import DrafterConfig

MASK_EMBEDDING = "mask_embedding"


class Expected(NamedTuple):
    """A tensor's shape, and the config keys that the shape comes from."""

    shape: tuple[int, ...]
    keys: tuple[str, ...]


def expected_tensors(config: DrafterConfig) -> dict[str, Expected]:
    """Every tensor of a drafter, by its name in the checkpoint.

    Layout: ``z-lab/dflash`` (class ``DFlashDraftModel``), also written by SpecForge and ModelOpt.
    """
    hidden = Expected((config.hidden_size,), ("hidden_size",))
    taps = len(config.target_layer_ids)
    tensors = {
        "fc.weight": Expected(
            (config.hidden_size, taps * config.target_hidden_size),
            ("hidden_size", "target_layer_ids", "target_hidden_size"),
        ),
        "hidden_norm.weight": hidden,
        "norm.weight": hidden,
    }
    if config.has_mask_embedding:
        tensors[MASK_EMBEDDING] = hidden
    layer = _layer_tensors(config)
    for i in range(config.num_hidden_layers):
        tensors.update({f"layers.{i}.{name}": expected for name, expected in layer.items()})
    return tensors


def _layer_tensors(config: DrafterConfig) -> dict[str, Expected]:
    hidden, inner = config.hidden_size, config.intermediate_size
    q_rows = config.num_attention_heads * config.head_dim
    kv_rows = config.num_key_value_heads * config.head_dim
    q_keys = ("num_attention_heads", "head_dim", "hidden_size")
    kv_keys = ("num_key_value_heads", "head_dim", "hidden_size")
    mlp_keys = ("intermediate_size", "hidden_size")
    tensors = {
        "input_layernorm.weight": Expected((hidden,), ("hidden_size",)),
        "post_attention_layernorm.weight": Expected((hidden,), ("hidden_size",)),
        "self_attn.q_proj.weight": Expected((q_rows, hidden), q_keys),
        "self_attn.k_proj.weight": Expected((kv_rows, hidden), kv_keys),
        "self_attn.v_proj.weight": Expected((kv_rows, hidden), kv_keys),
        "self_attn.o_proj.weight": Expected((hidden, q_rows), q_keys),
        "self_attn.q_norm.weight": Expected((config.head_dim,), ("head_dim",)),
        "self_attn.k_norm.weight": Expected((config.head_dim,), ("head_dim",)),
        "mlp.gate_proj.weight": Expected((inner, hidden), mlp_keys),
        "mlp.up_proj.weight": Expected((inner, hidden), mlp_keys),
        "mlp.down_proj.weight": Expected((hidden, inner), mlp_keys),
    }
    if config.attention_bias:
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            weight = tensors[f"self_attn.{name}.weight"]
            tensors[f"self_attn.{name}.bias"] = Expected(weight.shape[:1], weight.keys)
    return tensors


def explain_shape(
    name: str, found: tuple[int, ...], wanted: Expected, config: DrafterConfig
) -> str:
    """One sentence about a tensor whose shape is not the expected one."""
    values = {key: getattr(config, key) for key in wanted.keys}
    listed = ", ".join(
        f"{key} {list(value) if isinstance(value, tuple) else value}"
        for key, value in values.items()
    )
    message = (
        f"{name} has shape {list(found)}, but the config needs {list(wanted.shape)} ({listed}); "
        "the weights and config.json do not belong together."
    )
    width, taps = config.target_hidden_size, len(config.target_layer_ids)
    if name == "fc.weight" and len(found) == 2 and found[1] % width == 0:
        message += f" {found[1]} inputs are {found[1] // width} taps of {width}, not {taps}."
    return message
