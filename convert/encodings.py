"""Quantized weights as the plain tensors that they stand for.

A quantized weight is several tensors of the file: codes and scales. :func:`logical_tensors` finds
them by their names and dtypes, checks that they fit each other and what the configuration declares,
and describes each weight under its plain name, so that the rest of the converter sees an
unquantized checkpoint. Nothing is read for that but the files' headers.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import mlx.core as mx

from ..errors import UserError
from . import dequantize
from .quantization import FP8, INT4, MXFP4, MXFP8, NVFP4, Declared, names
from .safetensors_file import TensorInfo

# What a dequantized weight counts as: 16 bits hold more than any of the encodings distinguishes.
_DTYPE = "BF16"
_FLOATS = ("BF16", "F16", "F32")
_EXPONENTS = ("U8", "F8_E8M0")

# Parts of a weight beside "weight" itself, and parts of schemes that are not read.
_PARTS = {
    "weight_packed",
    "weight_scale",
    "weight_scale_inv",
    "weight_scale_2",
    "weight_global_scale",
    "weight_shape",
}
_UNREAD = {
    "qweight": "GPTQ or AWQ",
    "weight_zero_point": "an asymmetric scheme",
    "weight_g_idx": "a scheme that reorders columns",
    "pre_quant_scale": "AWQ",
    "absmax": "bitsandbytes",
}
# Activations and the key/value cache are not quantized here, so their scales mean nothing.
_ACTIVATION_SCALES = {
    "input_scale",
    "input_global_scale",
    "output_scale",
    "k_scale",
    "q_scale",
    "v_scale",
    "prob_output_scale",
}
DROPPED = "scale of quantized activations, which this project does not quantize"


class _Layout(NamedTuple):
    """How a tool stores an encoding: the dtypes that each part may have, codes and scale first."""

    encoding: str
    parts: dict[str, tuple[str, ...]]
    decode: Callable[..., mx.array]

    def fits(self, dtypes: Mapping[str, str]) -> bool:
        return dtypes.keys() == self.parts.keys() and all(
            dtype in self.parts[leaf] for leaf, dtype in dtypes.items()
        )


_CODES4, _CODES8 = ("U8",), ("F8_E4M3",)
_LAYOUTS = (
    _Layout(FP8, {"weight": _CODES8, "weight_scale": _FLOATS}, dequantize.fp8),
    _Layout(FP8, {"weight": _CODES8, "weight_scale_inv": _FLOATS}, dequantize.fp8),
    _Layout(
        NVFP4,
        {"weight_packed": _CODES4, "weight_scale": _CODES8, "weight_global_scale": ("F32",)},
        partial(dequantize.nvfp4, divide=True),
    ),
    _Layout(
        NVFP4,
        {"weight": _CODES4, "weight_scale": _CODES8, "weight_scale_2": ("F32",)},
        partial(dequantize.nvfp4, divide=False),
    ),
    _Layout(MXFP4, {"weight_packed": _CODES4, "weight_scale": _EXPONENTS}, dequantize.mxfp4),
    _Layout(MXFP4, {"weight": _CODES4, "weight_scale": _EXPONENTS}, dequantize.mxfp4),
    _Layout(MXFP8, {"weight": _CODES8, "weight_scale": _EXPONENTS}, dequantize.mxfp8),
    _Layout(
        INT4,
        {"weight_packed": ("I32",), "weight_scale": _FLOATS, "weight_shape": ("I64", "I32")},
        dequantize.int4,
    ),
)


@dataclass(frozen=True)
class Encoded:
    """A quantized weight.

    Attributes:
        encoding: Such as ``NVFP4``.
        info: Its plain shape and the dtype it counts as.
        parts: Names of the tensors it consists of.
        decode: Takes these tensors, in this order, and returns the weight in float32, lazily.
    """

    encoding: str
    info: TensorInfo
    parts: tuple[str, ...]
    decode: Callable[..., mx.array]


class Logical(NamedTuple):
    """A checkpoint's tensors under their plain names.

    Attributes:
        tensors: All of them.
        encoded: Those of them that must be decoded.
        dropped: Tensors of the files that are left out, each with the reason.
    """

    tensors: dict[str, TensorInfo]
    encoded: dict[str, Encoded]
    dropped: dict[str, str]


def logical_tensors(tensors: Mapping[str, TensorInfo], declared: Declared) -> Logical:
    """Describe a checkpoint's tensors with every quantized weight as one plain tensor.

    Args:
        tensors: The tensors of the files.
        declared: What the configuration says of their encodings.

    Raises:
        UserError: An encoding that is not read, parts that do not fit together, or other
            encodings than the declared ones.
    """
    modules: dict[str, dict[str, TensorInfo]] = defaultdict(dict)
    for name, info in tensors.items():
        module, _, leaf = name.rpartition(".")
        modules[module][leaf] = info
    encoded = {}
    for module, leaves in modules.items():
        for leaf, scheme in _UNREAD.items():
            if leaf in leaves:
                raise UserError(
                    f"The checkpoint's weights are quantized with {scheme} (tensor "
                    f"{_join(module, leaf)}), which this version does not read; use an "
                    "unquantized checkpoint."
                )
        eight_bits = "weight" in leaves and leaves["weight"].dtype in ("F8_E4M3", "F8_E5M2")
        if eight_bits or _PARTS & set(leaves):
            weight = _encoded(module, leaves, declared.block)
            encoded[_join(module, "weight")] = weight
    found = {weight.encoding for weight in encoded.values()}
    if found != declared.encodings:
        raise UserError(
            f"The checkpoint has {names(found)} weights, but its configuration declares "
            f"{names(declared.encodings)} ones (quantization_config or hf_quant_config.json); "
            "they do not belong together."
        )
    return _logical(tensors, encoded, declared)


def plain_names(names: Iterable[str]) -> list[str]:
    """The plain names of a checkpoint's tensors, as far as their own names tell."""
    plain = set()
    for name in names:
        module, _, leaf = name.rpartition(".")
        if leaf not in _ACTIVATION_SCALES:
            plain.add(_join(module, "weight") if leaf in _PARTS else name)
    return sorted(plain)


def decoded(
    arrays: Mapping[str, mx.array], encoded: Mapping[str, Encoded], dropped: Mapping[str, str]
) -> dict[str, mx.array]:
    """The arrays of the files as plain tensors; the decoding runs when a value is first used."""
    parts = {part for weight in encoded.values() for part in weight.parts}
    plain = {n: a for n, a in arrays.items() if n not in parts and n not in dropped}
    for name, weight in encoded.items():
        plain[name] = weight.decode(*(arrays[part] for part in weight.parts))
    return plain


def _logical(
    tensors: Mapping[str, TensorInfo], encoded: dict[str, Encoded], declared: Declared
) -> Logical:
    parts = {part for weight in encoded.values() for part in weight.parts}
    rest = {name: info for name, info in tensors.items() if name not in parts}
    dropped = {}
    if declared.present:
        dropped = {n: DROPPED for n in rest if n.rpartition(".")[2] in _ACTIVATION_SCALES}
    plain = {name: info for name, info in rest.items() if name not in dropped}
    return Logical(plain | {n: w.info for n, w in encoded.items()}, encoded, dropped)


def _encoded(module: str, leaves: Mapping[str, TensorInfo], block: tuple[int, int]) -> Encoded:
    """The one weight of a module, told by which parts there are and their dtypes."""
    dtypes = {leaf: info.dtype for leaf, info in leaves.items() if leaf in _PARTS | {"weight"}}
    layout = next((layout for layout in _LAYOUTS if layout.fits(dtypes)), None)
    if layout is None:
        listed = ", ".join(f"{leaf} {dtype}" for leaf, dtype in sorted(dtypes.items()))
        raise UserError(
            f"{module or 'A weight'} is quantized in a way that this version does not know "
            f"({listed}); use an unquantized checkpoint."
        )
    codes, scale, *rest = layout.parts
    info = TensorInfo(
        leaves[codes].file,
        _DTYPE,
        _shape(module, layout.encoding, leaves[codes], leaves[scale], block),
    )
    for leaf in rest:
        _check_small(module, leaf, leaves[leaf])
    decode = layout.decode
    if layout.encoding == FP8:
        decode = partial(decode, block=block)
    if layout.encoding == INT4:
        decode = partial(decode, module)
    parts = tuple(_join(module, leaf) for leaf in layout.parts)
    return Encoded(layout.encoding, info, parts, decode)


def _shape(
    module: str, kind: str, codes: TensorInfo, scale: TensorInfo, block: tuple[int, int]
) -> tuple[int, int]:
    """A weight's plain shape [out, in], once codes and scales are known to fit.

    Raises:
        UserError: They do not.
    """
    per_item = {NVFP4: 2, MXFP4: 2, INT4: 8}.get(kind, 1)
    if len(codes.shape) != 2 or 0 in codes.shape:
        raise UserError(f"{module} has {kind} weights of shape {list(codes.shape)}, not [out, in].")
    rows, columns = codes.shape[0], codes.shape[1] * per_item
    found = scale.shape
    if kind == FP8:
        row_blocks, column_blocks = -(-rows // block[0]), -(-columns // block[1])
        wanted = [(), (1,), (1, 1), (rows,), (rows, 1), (row_blocks, column_blocks)]
        wanted.append((row_blocks, 1, column_blocks, 1))
    elif kind == INT4:
        groups = found[1] if len(found) == 2 and found[1] else 1
        wanted = [(rows, groups)] if columns % groups == 0 else []
    else:
        group = dequantize.NVFP4_GROUP if kind == NVFP4 else dequantize.MX_GROUP
        wanted = [(rows, columns // group)] if columns % group == 0 else []
    if found not in wanted:
        raise UserError(
            f"{module} has {kind} weights for shape {[rows, columns]}, but scales of shape "
            f"{list(found)}, which do not fit; download the checkpoint again."
        )
    return rows, columns


def _check_small(module: str, leaf: str, info: TensorInfo) -> None:
    """A tensor's own scale is one number, and its shape two."""
    wanted = [(2,)] if leaf == "weight_shape" else [(), (1,)]
    if info.shape not in wanted:
        raise UserError(
            f"{_join(module, leaf)} has shape {list(info.shape)}, but must be "
            f"{'two numbers' if leaf == 'weight_shape' else 'one number'}."
        )


def _join(module: str, leaf: str) -> str:
    return f"{module}.{leaf}" if module else leaf
