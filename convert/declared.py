"""Which encodings a checkpoint declares for its weights, by each tool's own way of saying so.

Declarations are ``quantization_config`` in config.json (Hugging Face; ``quant_method`` names the
tool), ModelOpt's ``hf_quant_config.json``, and MLX's ``quantization``, of which it writes a second
copy as ``quantization_config``, without a ``quant_method``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..drafter.checks import reject, shown
from ..errors import UserError
from ..files import read_json_object
from .keys import contradict

FP8, NVFP4, MXFP4, MXFP8, INT4, MLX = "FP8", "NVFP4", "MXFP4", "MXFP8", "INT4", "MLX"

_BLOCK = (128, 128)
_MLX_KEYS = {"group_size", "bits"}
# The group sizes and bits of each of MLX's modes.
_MLX_MODES = {
    "affine": ((32, 64, 128), (2, 3, 4, 5, 6, 8)),
    "mxfp4": ((32,), (4,)),
    "mxfp8": ((32,), (8,)),
    "nvfp4": ((16,), (4,)),
}
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
# (type, bits, group size) of compressed-tensors, the first that fits; a size of None is any.
_COMPRESSED = (
    (("float", 8, 32), MXFP8),
    (("float", 8, None), FP8),
    (("float", 4, 16), NVFP4),
    (("float", 4, 32), MXFP4),
    (("int", 4, None), INT4),
)
_READ = "MLX's own, FP8, NVFP4, MXFP4, MXFP8 and packed INT4"


@dataclass(frozen=True)
class Declared:
    """What a checkpoint says about its weights.

    Attributes:
        encodings: The encodings that occur, such as ``NVFP4``; others are not encoded.
        block: Rows and columns of a block that shares a scale, where FP8 has blocks.
        mlx: MLX's declaration: ``group_size``, ``bits`` and ``mode``, and those of single layers by
            their names.
        present: Whether it says anything; it may be about activations and their cache alone.
    """

    encodings: frozenset[str] = frozenset()
    block: tuple[int, int] = _BLOCK
    mlx: Mapping[str, Any] = field(default_factory=dict)
    present: bool = True

    def mlx_settings(self, module: str) -> dict[str, Any]:
        """``group_size``, ``bits`` and ``mode`` of a layer that MLX has quantized.

        Raises:
            UserError: MLX has no such quantization.
        """
        own = self.mlx.get(module)
        layer = own if isinstance(own, Mapping) else self.mlx
        mode = layer.get("mode", "affine")
        found = {"group_size": layer.get("group_size"), "bits": layer.get("bits"), "mode": mode}
        sizes, bits = _MLX_MODES.get(mode, ((), ())) if isinstance(mode, str) else ((), ())
        if found["group_size"] not in sizes or found["bits"] not in bits:
            raise UserError(
                f"{module} is quantized by MLX with {shown(found)} by config.json, which MLX does "
                "not have; correct its quantization."
            )
        return found


UNDECLARED = Declared(present=False)


def read_declared(folder: Path, config: Mapping[str, Any]) -> Declared:
    """The encodings that a checkpoint's configuration files declare.

    Args:
        folder: Which may hold a hf_quant_config.json.
        config: The parsed config.json.

    Raises:
        UserError: They declare one that is not read, in a way that is not known, or contradict
            one another.
    """
    found, file = [], folder / "hf_quant_config.json"
    if mlx := mlx_quantization(config):
        found.append(Declared(frozenset({MLX}), mlx=mlx))
    elif config.get("quantization_config") is not None:
        found.append(_from_config(_object("quantization_config", config, "quantization_config")))
    if file.is_file():
        other = _object(f"{file.name}'s quantization", read_json_object(file), "quantization")
        found.append(_from_modelopt(other, file.name))
    if len({entry.encodings for entry in found}) > 1:
        raise UserError(
            f"config.json declares {named(found[0].encodings)} weights, but {file.name} "
            f"{named(found[1].encodings)}; they do not belong together."
        )
    return found[0] if found else UNDECLARED


def mlx_quantization(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """How MLX has quantized a checkpoint, if its config says that it has.

    Raises:
        UserError: Its two copies differ.
    """
    copies = [config.get(key) for key in ("quantization", "quantization_config")]
    found = [copy for copy in copies if isinstance(copy, Mapping) and copy.keys() >= _MLX_KEYS]
    if found and None not in copies and copies[0] != copies[1]:
        contradict("quantization", copies[0], "quantization_config", copies[1])
    return found[0] if found else None


def named(encodings: Iterable[str]) -> str:
    """A list for messages."""
    return " and ".join(sorted(encodings)) or "unquantized"


def _from_config(quantization: Mapping[str, Any]) -> Declared:
    method = quantization.get("quant_method")
    if method == "modelopt":
        return _from_modelopt(quantization, "quantization_config")
    if method == "compressed-tensors":
        return _from_compressed(quantization)
    if method == "fp8":
        return Declared(frozenset({FP8}), _block(quantization.get("weight_block_size")))
    if method == "mxfp4":
        return Declared(frozenset({MXFP4}))
    raise UserError(
        f"The checkpoint's weights are quantized with {method!r} (quantization_config.quant_method)"
        f", which this version does not read; it reads {_READ}, of ModelOpt, compressed-tensors "
        "and 'fp8'. Use an unquantized checkpoint."
    )


def _from_modelopt(quantization: Mapping[str, Any], where: str) -> Declared:
    algorithms = [quantization.get("quant_algo")]
    if algorithms == ["MIXED_PRECISION"]:
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
    found, blocks = set(), set()
    for name in groups:
        where = f"quantization_config.config_groups.{name}"
        group = _object(where, groups, name)
        if group.get("weights") is None:
            continue
        weights = _object(f"{where}.weights", group, "weights")
        found.add(_compressed(where, weights))
        if weights.get("block_structure") is not None:
            blocks.add(_block(weights["block_structure"]))
    if len(blocks) > 1:
        raise UserError(
            f"quantization_config has blocks of {sorted(blocks)}; this version reads one size."
        )
    return Declared(frozenset(found), *blocks)


def _compressed(where: str, weights: Mapping[str, Any]) -> str:
    kind, bits, size = (weights.get(key) for key in ("type", "num_bits", "group_size"))
    fits = ((kind, bits, size), (kind, bits, None))
    encoding = next((found for key, found in _COMPRESSED if key in fits), None)
    if encoding is None:
        raise UserError(
            f"The checkpoint's weights are quantized to {bits}-bit {kind} in groups of {size} "
            f"({where}), which this version does not read; it reads {_READ}."
        )
    symmetric, order = weights.get("symmetric"), weights.get("actorder")
    if symmetric is False or order not in (None, "weight", "static"):
        raise UserError(
            f"{where} is asymmetric or reorders columns (symmetric {symmetric!r}, actorder "
            f"{order!r}), which this version does not read."
        )
    return encoding


def _block(size: Any) -> tuple[int, int]:
    if size is None:
        return _BLOCK
    numbers = isinstance(size, list) and all(type(n) is int and n > 0 for n in size)
    if not numbers or len(size) != 2:
        reject("the quantization's block size", size, "two numbers")
    return size[0], size[1]


def _object(what: str, values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = values.get(key)
    if not isinstance(found, Mapping):
        reject(what, found, "an object")
    return found
