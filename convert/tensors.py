"""A checkpoint's tensors by their MLX names, checked against the drafter's own parameters."""

import json
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

import mlx.core as mx
from mlx.utils import tree_flatten

from ..drafter.config import DrafterConfig
from ..drafter.model import Drafter
from ..errors import UserError
from .weights import TensorInfo, listed

MASK_EMBEDDING = "mask_embedding"
DRAFT_TO_TARGET = "d2t"

# What a format calls a tensor, where that is not our name; vLLM reads AngelSpec's three anywhere.
_RENAMES = {
    "z-lab": {
        "context_proj.weight": "fc.weight",
        "context_norm.weight": "hidden_norm.weight",
        "final_norm.weight": "norm.weight",
    },
    "muse-assistant": {
        "encoder.fc.weight": "fc.weight",
        "encoder.output_norm_enc.weight": "hidden_norm.weight",
    },
}
_RENAMES_ANYWHERE = {
    "candidate_selector.predecessor_codebook": "candidate_selector.predecessor_codebook.weight",
    "candidate_selector.successor_codebook": "candidate_selector.successor_codebook.weight",
    "hidden_dim_adapter.proj.weight": "hidden_dim_adapter.weight",
}
# Tensors that no forward pass of the drafter needs.
_DROPPED = {
    "t2d": "the inverse of d2t, with which it was compared",
    "*rotary_emb.inv_freq": "follows from rope in config.json",
    "verifier_*": "the target's own, used in training alone",
}
_PREFIXES = ("model.", "module.", "draft_model.")
# Some exports put the body under a prefix and these beside it.
_OUTSIDE = frozenset({"lm_head.weight", "d2t", "t2d"})

_FLOATS, _INTEGERS = ("F16", "BF16", "F32"), ("I64", "I32")
# The config keys behind a shape that is not [hidden_size], by a part of the tensor's name.
_HEADS = ("num_attention_heads", "head_dim", "hidden_size")
_KV_HEADS = ("num_key_value_heads", "head_dim", "hidden_size")
_SIZES = {
    "fc.": ("hidden_size", "target_layer_ids", "target_hidden_size"),
    "hidden_dim_adapter.": ("hidden_size", "target_hidden_size"),
    "embed_tokens.": ("vocab_size", "hidden_size"),
    "lm_head.": ("draft_vocab_size", "vocab_size", "hidden_size"),
    "d2t": ("draft_vocab_size",),
    "_codebook.": ("vocab_size", "selector_rank"),
    "hidden_projection.": ("selector_rank", "hidden_size"),
    "base_kernel": ("conv_kernel_size", "hidden_size"),
    "kernel_projection.": ("conv_kernel_size", "hidden_size", "conv_group_size"),
    "q_proj.": _HEADS,
    "o_proj.": _HEADS,
    "k_proj.": _KV_HEADS,
    "v_proj.": _KV_HEADS,
    "q_norm.": ("head_dim",),
    "k_norm.": ("head_dim",),
    "mlp.": ("intermediate_size", "hidden_size"),
}


class NameMap(NamedTuple):
    """The tensors that are used, as ``{MLX name: name in the files}``, and those that are not.

    ``dropped`` says why, by the name in the files.
    """

    used: dict[str, str]
    dropped: dict[str, str]


def map_names(names: Iterable[str], kind: str) -> NameMap:
    """Give every tensor of a checkpoint its MLX name, or a reason to leave it out.

    Args:
        names: As in the files.
        kind: The format, as ``find_format`` calls it.

    Raises:
        UserError: Two tensors have the same MLX name, or a prefix is on some names alone.
    """
    names = sorted(names)
    prefix, renames = _prefix(names), _RENAMES_ANYWHERE | _RENAMES.get(kind, {})
    used: dict[str, str] = {}
    dropped: dict[str, str] = {}
    for name in names:
        short = name.removeprefix(prefix)
        if reasons := [why for like, why in _DROPPED.items() if fnmatchcase(short, like)]:
            dropped[name] = reasons[0]
            continue
        mlx_name = renames.get(short, short)
        if mlx_name in used:
            raise UserError(
                f"The checkpoint has both {used[mlx_name]} and {name}, which are the same tensor; "
                "remove one."
            )
        used[mlx_name] = name
    return NameMap(used, dropped)


def _prefix(names: list[str]) -> str:
    inside = [name for name in names if name not in _OUTSIDE]
    for prefix in _PREFIXES:
        prefixed = sum(name.startswith(prefix) for name in inside)
        if prefixed not in (0, len(inside)):
            raise UserError(
                f"{prefixed} of {len(inside)} tensors have the prefix {prefix!r}; "
                "either all or none must have it."
            )
        if prefixed:
            return prefix
    return ""


def model_parameters(config: DrafterConfig) -> dict[str, mx.array]:
    """Every tensor of a drafter by its MLX name, of random values that are never computed.

    Raises:
        UserError: The config's sizes are beyond any array's.
    """
    try:
        return dict(tree_flatten(Drafter(config).parameters()))
    except OverflowError as error:
        raise UserError(
            f"The sizes in config.json make tensors that no machine holds ({error}); correct them."
        ) from error


def is_quantizable(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor is the weight of a linear layer or table that quantization is for.

    DFlash 2's kernels and selector are small or decide between near ties, and stay as they are.
    """
    if name.startswith("candidate_selector.") or "_conv." in name:
        return False
    return name.endswith(".weight") and len(shape) == 2


def check_tensors(
    found: Mapping[str, TensorInfo], used: Mapping[str, str], config: DrafterConfig, *apart: str
) -> None:
    """Account for every tensor: none missing, none left over, shapes and dtypes as they must be.

    Args:
        found: The tensors of the files, by their names there.
        used: These names, by MLX name.
        config: The drafter that they must make.
        apart: MLX names of tensors that are not in these files.

    Raises:
        UserError: Names the tensors, what was found and what the config needs.
    """
    expected = {k: array for k, array in model_parameters(config).items() if k not in apart}
    unexpected = sorted(used[name] for name in used.keys() - expected.keys())
    if missing := sorted(expected.keys() - used.keys()):
        extra = f"; it has the unknown {listed(unexpected)}" if unexpected else ""
        raise UserError(f"The checkpoint lacks {listed(missing)}{extra}. Download it again.")
    if unexpected:
        raise UserError(
            f"The checkpoint has {listed(unexpected)}, which a DFlash drafter with this "
            "config does not have; the weights and config.json do not belong together."
        )
    for name, parameter in expected.items():
        _, dtype, shape = found[used[name]]
        if shape != parameter.shape:
            raise _wrong_shape(used[name], name, shape, parameter.shape, config)
        wanted = _INTEGERS if parameter.dtype == mx.int32 else _FLOATS
        if dtype not in wanted:
            raise UserError(
                f"{used[name]} has dtype {dtype}; this version converts only {listed(wanted)}."
            )


def _wrong_shape(
    stored: str, name: str, found: tuple[int, ...], wanted: tuple[int, ...], config: DrafterConfig
) -> UserError:
    keys = next((keys for part, keys in _SIZES.items() if part in name), ("hidden_size",))
    values = {key: getattr(config, key) for key in keys}
    sizes = ", ".join(f"{key} {json.dumps(x)}" for key, x in values.items() if x is not None)
    message = (
        f"{stored} has shape {list(found)}, but the config needs {list(wanted)} ({sizes}); "
        "the weights and config.json do not belong together."
    )
    if name == "fc.weight" and len(found) == 2 and found[0] == wanted[0]:
        message += _explain_inputs(found[1], wanted[1], len(config.target_layer_ids))
    return UserError(message)


def _explain_inputs(found: int, wanted: int, taps: int) -> str:
    """What ``fc``'s inputs would be, if they are a multiple of anything."""
    width = wanted // taps
    if found > wanted and found % wanted == 0:
        return (
            f" {found} inputs are {taps} taps of {found // wanted} hyper-connection streams of "
            f"{width}, which this version does not run."
        )
    if found % width == 0:
        return f" {found} inputs are {found // width} taps of {width}, not {taps}."
    return ""
