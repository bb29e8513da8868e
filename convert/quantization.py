"""Which encodings a checkpoint declares for its weights, by each tool's own way of saying so.

Declarations are ``quantization_config`` in config.json (Hugging Face; ``quant_method`` names the
tool) and ModelOpt's ``hf_quant_config.json``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import read_json_object

FP8, NVFP4, MXFP4, MXFP8, INT4 = "FP8", "NVFP4", "MXFP4", "MXFP8", "INT4"

_BLOCK = (128, 128)
_MODELOPT = {
    "FP8": FP8,
    "FP8_PB_WO": FP8,
    "FP8_PER_CHANNEL_PER_TOKEN": FP8,
    "NVFP4": NVFP4,
    "W4A16_NVFP4": NVFP4,
    "W4A8_NVFP4_FP8": NVFP4,
    "MXFP4": MXFP4,
    "W4A8_MXFP4_FP8": MXFP4,
    "MXFP8": MXFP8,
}
# (type, bits, group size) of compressed-tensors; a group size of None is any.
_COMPRESSED = {
    ("float", 8, 32): MXFP8,
    ("float", 8, None): FP8,
    ("float", 4, 16): NVFP4,
    ("float", 4, 32): MXFP4,
    ("int", 4, None): INT4,
}
_READ = "FP8, NVFP4, MXFP4, MXFP8 and packed INT4"


@dataclass(frozen=True)
class Declared:
    """What a checkpoint says about its weights.

    Attributes:
        encodings: The encodings that occur, such as ``NVFP4``; others are not encoded.
        block: Rows and columns of a block that shares a scale, where FP8 has blocks.
        present: Whether it says anything; it may be about activations and their cache alone.
    """

    encodings: frozenset[str] = frozenset()
    block: tuple[int, int] = _BLOCK
    present: bool = True


def read_declared(folder: Path, config: Mapping[str, Any]) -> Declared:
    """What a checkpoint's folder declares; see :func:`declared_quantization`.

    Args:
        folder: Which may hold a hf_quant_config.json.
        config: The parsed config.json.

    Raises:
        UserError: As :func:`declared_quantization`.
    """
    file = folder / "hf_quant_config.json"
    return declared_quantization(config, read_json_object(file) if file.is_file() else None)


def declared_quantization(
    config: Mapping[str, Any], hf_quant_config: Mapping[str, Any] | None = None
) -> Declared:
    """The encodings that a checkpoint's configuration files declare.

    Args:
        config: The parsed config.json.
        hf_quant_config: The parsed hf_quant_config.json, if there is one.

    Raises:
        UserError: They declare one that is not read, in a way that is not known, or contradict
            one another.
    """
    declared = [_from_config(config)] if config.get("quantization_config") is not None else []
    if hf_quant_config is not None:
        quantization = _object(
            "hf_quant_config.json's quantization", hf_quant_config, "quantization"
        )
        declared.append(_from_modelopt(quantization, "hf_quant_config.json"))
    if len({entry.encodings for entry in declared}) > 1:
        raise UserError(
            f"config.json declares {names(declared[0].encodings)} weights, but "
            f"hf_quant_config.json {names(declared[1].encodings)}; they do not belong together."
        )
    return declared[0] if declared else Declared(present=False)


def names(encodings: Iterable[str]) -> str:
    """A list for messages."""
    return " and ".join(sorted(encodings)) or "unquantized"


def _from_config(config: Mapping[str, Any]) -> Declared:
    where = "quantization_config"
    quantization = _object(where, config, where)
    method = quantization.get("quant_method")
    if method == "modelopt":
        return _from_modelopt(quantization, where)
    if method == "compressed-tensors":
        return _from_compressed(quantization)
    if method == "fp8":
        return Declared(frozenset({FP8}), _block(quantization.get("weight_block_size")))
    if method == "mxfp4":
        return Declared(frozenset({MXFP4}))
    raise UserError(
        f"The checkpoint's weights are quantized with {method!r} ({where}.quant_method), which "
        f"this version does not read; it reads {_READ} of ModelOpt and compressed-tensors, and "
        "'fp8'. Use an unquantized checkpoint."
    )


def _from_modelopt(quantization: Mapping[str, Any], where: str) -> Declared:
    algorithm = quantization.get("quant_algo")
    algorithms = [algorithm]
    if algorithm == "MIXED_PRECISION":
        layers = _object(f"{where}'s quantized_layers", quantization, "quantized_layers")
        algorithms = [_object(layer, layers, layer).get("quant_algo") for layer in layers]
    # Without an algorithm only the key/value cache is quantized, which is not in the weights.
    algorithms = [name for name in algorithms if name is not None]
    if unknown := [name for name in algorithms if str(name) not in _MODELOPT]:
        raise UserError(
            f"The checkpoint's weights are quantized as {unknown[0]} ({where}, quant_algo), which "
            f"this version does not read; it reads {', '.join(_MODELOPT)}."
        )
    return Declared(frozenset(_MODELOPT[name] for name in algorithms))


def _from_compressed(quantization: Mapping[str, Any]) -> Declared:
    groups = _object("quantization_config.config_groups", quantization, "config_groups")
    found, blocks = set(), []
    for name in groups:
        group = _object(f"quantization_config.config_groups.{name}", groups, name)
        if group.get("weights") is None:
            continue
        weights = _object(f"the weights of quantization_config's {name}", group, "weights")
        found.add(_compressed(name, weights))
        if weights.get("block_structure") is not None:
            blocks.append(_block(weights["block_structure"]))
    if len(set(blocks)) > 1:
        raise UserError(f"quantization_config has blocks of {blocks}; this version reads one size.")
    return Declared(frozenset(found), blocks[0] if blocks else _BLOCK)


def _compressed(name: str, weights: Mapping[str, Any]) -> str:
    kind, bits, size = (weights.get(key) for key in ("type", "num_bits", "group_size"))
    exact = [_COMPRESSED[key] for key in _COMPRESSED if key == (kind, bits, size)]
    in_any_groups = [_COMPRESSED[key] for key in _COMPRESSED if key == (kind, bits, None)]
    encoding = next(iter(exact + in_any_groups), None)
    if encoding is None:
        raise UserError(
            f"The checkpoint's weights are quantized to {bits}-bit {kind} in groups of {size} "
            f"(quantization_config.config_groups.{name}), which this version does not read; it "
            f"reads {_READ}."
        )
    if weights.get("symmetric") is False or weights.get("actorder") not in (
        None,
        "weight",
        "static",
    ):
        raise UserError(
            f"quantization_config.config_groups.{name} is asymmetric or reorders columns "
            f"(symmetric {weights.get('symmetric')!r}, actorder {weights.get('actorder')!r}), "
            "which this version does not read."
        )
    return encoding


def _block(size: Any) -> tuple[int, int]:
    if size is None:
        return _BLOCK
    if (
        not isinstance(size, list)
        or len(size) != 2
        or any(type(n) is not int or n < 1 for n in size)
    ):
        raise UserError(f"The quantization's block size is {size!r}; it must be two numbers.")
    return size[0], size[1]


def _object(what: str, values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = values.get(key)
    if not isinstance(found, Mapping):
        raise UserError(f"{what} is {found!r}; it must be an object.")
    return found
