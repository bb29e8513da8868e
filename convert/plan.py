"""The tensors of a drafter in the MLX format, and how to explain one that does not fit."""

from typing import NamedTuple

from ..drafter.config import DrafterConfig

MASK_EMBEDDING = "mask_embedding"
DRAFT_TO_TARGET = "d2t"


class Expected(NamedTuple):
    """A tensor's shape, and the config keys that the shape comes from."""

    shape: tuple[int, ...]
    keys: tuple[str, ...]


def expected_tensors(config: DrafterConfig) -> dict[str, Expected]:
    """Every tensor of a drafter, by its MLX name.

    The names of the layers are those of ``z-lab/dflash`` (class ``DFlashDraftModel``).
    """
    hidden = Expected((config.hidden_size,), ("hidden_size",))
    tensors = {"hidden_norm.weight": hidden, "norm.weight": hidden} | _tap_tensors(config)
    if config.has_mask_embedding:
        tensors[MASK_EMBEDDING] = hidden
    tensors |= _table_tensors(config) | _selector_tensors(config)
    layer = _layer_tensors(config) | _convolution_tensors(config)
    for i in range(config.num_hidden_layers):
        tensors.update({f"layers.{i}.{name}": expected for name, expected in layer.items()})
    return tensors


def is_quantizable(module: str) -> bool:
    """Whether the weight of a linear layer or table may be quantized, by the module's name.

    DFlash 2's kernels and selector are small or decide between near ties, and stay as they are.
    """
    return not module.startswith("candidate_selector.") and "_conv." not in module


def _tap_tensors(config: DrafterConfig) -> dict[str, Expected]:
    """The adapter of each tap, and ``fc``, which a drafter without taps does not have."""
    taps, hidden = len(config.target_layer_ids), config.hidden_size
    tensors = {}
    width_key = "target_hidden_size"
    if config.has_hidden_dim_adapter:
        tensors["hidden_dim_adapter.weight"] = Expected(
            (hidden, config.target_hidden_size), ("hidden_size", "target_hidden_size")
        )
        width_key = "hidden_size"
    if taps:
        tensors["fc.weight"] = Expected(
            (hidden, taps * getattr(config, width_key)),
            tuple(dict.fromkeys(("hidden_size", "target_layer_ids", width_key))),
        )
    return tensors


def _table_tensors(config: DrafterConfig) -> dict[str, Expected]:
    """The drafter's own embedding table, head and vocabulary, as far as it has them."""
    tensors = {}
    if config.has_embed_tokens:
        tensors["embed_tokens.weight"] = Expected(
            (config.vocab_size, config.hidden_size), ("vocab_size", "hidden_size")
        )
    if config.has_lm_head:
        key = "vocab_size" if config.draft_vocab_size is None else "draft_vocab_size"
        tensors["lm_head.weight"] = Expected(
            (getattr(config, key), config.hidden_size), (key, "hidden_size")
        )
    if config.draft_vocab_size is not None:
        tensors[DRAFT_TO_TARGET] = Expected((config.draft_vocab_size,), ("draft_vocab_size",))
    return tensors


def _selector_tensors(config: DrafterConfig) -> dict[str, Expected]:
    """DFlash 2's candidate selector."""
    if config.selector_rank is None:
        return {}
    codebook = Expected((config.vocab_size, config.selector_rank), ("vocab_size", "selector_rank"))
    return {
        "candidate_selector.predecessor_codebook.weight": codebook,
        "candidate_selector.successor_codebook.weight": codebook,
        "candidate_selector.hidden_projection.weight": Expected(
            (config.selector_rank, config.hidden_size), ("selector_rank", "hidden_size")
        ),
    }


def _convolution_tensors(config: DrafterConfig) -> dict[str, Expected]:
    """DFlash 2's two convolutions of a layer: before and after its attention, and its MLP."""
    if config.conv_kernel_size is None:
        return {}
    taps, hidden = config.conv_kernel_size, config.hidden_size
    rows = 2 * taps * (hidden // config.conv_group_size)
    keys = ("conv_kernel_size", "hidden_size")
    tensors = {}
    for name in ("attention_conv", "mlp_conv"):
        tensors[f"{name}.base_kernel"] = Expected((2, taps, hidden), keys)
        tensors[f"{name}.kernel_projection.weight"] = Expected(
            (rows, hidden), (*keys, "conv_group_size")
        )
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
    if name == "fc.weight" and len(found) == 2 and found[0] == wanted.shape[0]:
        message += _explain_inputs(found[1], wanted.shape[1], config)
    return message


def _explain_inputs(found: int, wanted: int, config: DrafterConfig) -> str:
    """What ``fc``'s inputs would be, if they are a multiple of anything."""
    taps = len(config.target_layer_ids)
    width = wanted // taps
    if found > wanted and found % wanted == 0:
        return (
            f" {found} inputs are {taps} taps of {found // wanted} hyper-connection streams of "
            f"{width}, which this version does not run."
        )
    if found % width == 0:
        return f" {found} inputs are {found // width} taps of {width}, not {taps}."
    return ""
