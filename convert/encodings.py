"""Quantized weights as the plain tensors that they stand for.

A quantized weight is several tensors of the file: codes and scales. :func:`plain_tensors` finds
them by their names and dtypes, checks that they fit each other and what the configuration declares,
and describes each weight under its plain name, so that the rest of the converter sees an
unquantized checkpoint. Nothing is read for that but the files' headers.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx

from ..errors import UserError
from . import dequantize
from .declared import FP8, INT4, MLX, MXFP4, MXFP8, NVFP4, Declared, named
from .weights import TensorInfo

# What a dequantized weight counts as: 16 bits hold more than any of the encodings distinguishes.
_DTYPE = "BF16"
_FLOATS = ("BF16", "F16", "F32")
_EXPONENTS = ("U8", "F8_E8M0")
_CODES4, _CODES8 = ("U8",), ("F8_E4M3",)


class _Layout(NamedTuple):
    """How a tool stores an encoding: the dtypes that each part may have, codes and scale first."""

    encoding: str
    parts: dict[str, tuple[str, ...]]
    decode: Callable[..., mx.array]


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
    _Layout(
        MLX, {"weight": ("U32",), "scales": _FLOATS, "biases": _FLOATS}, dequantize.mlx_quantized
    ),
    _Layout(MLX, {"weight": ("U32",), "scales": ("U8",)}, dequantize.mlx_quantized),
)
# Parts of a weight beside "weight" itself, and parts of schemes that are not read.
_PARTS = {part for layout in _LAYOUTS for part in layout.parts} - {"weight"}
_UNREAD = {
    "qweight": "GPTQ or AWQ",
    "weight_zero_point": "an asymmetric scheme",
    "weight_g_idx": "a scheme that reorders columns",
    "pre_quant_scale": "AWQ",
    "absmax": "bitsandbytes",
}
# Activations and the key/value cache are not quantized here, so their scales mean nothing.
_ACTIVATION_SCALES = {
    *("input_scale", "input_global_scale", "output_scale"),
    *("q_scale", "k_scale", "v_scale", "prob_output_scale"),
}
_DROPPED = "scale of quantized activations, which this project does not quantize"


class Encoded(NamedTuple):
    """A quantized weight.

    Attributes:
        encoding: Such as ``NVFP4``.
        info: Its plain shape and the dtype it counts as.
        parts: Names of the tensors it consists of.
        decode: Takes these tensors, in this order, and returns the weight in float32, lazily.
        mlx: ``group_size``, ``bits`` and ``mode`` of a weight that MLX runs as it is.
    """

    encoding: str
    info: TensorInfo
    parts: tuple[str, ...]
    decode: Callable[..., mx.array]
    mlx: Mapping[str, Any] | None = None


class Plain(NamedTuple):
    """A checkpoint's tensors under their plain names.

    Attributes:
        tensors: All of them.
        encoded: Those of them that must be decoded.
        dropped: Tensors of the files that are left out, each with the reason.
        files: All files.
    """

    tensors: dict[str, TensorInfo]
    encoded: dict[str, Encoded]
    dropped: dict[str, str]
    files: list[Path]

    def load_parts(self) -> dict[str, mx.array]:
        """The tensors as they are in the files, lazily."""
        return {n: array for file in self.files for n, array in mx.load(str(file)).items()}

    def load(self) -> dict[str, mx.array]:
        """The values, lazily: one is read, and decoded, when it is first used."""
        arrays = self.load_parts()
        parts = {part for weight in self.encoded.values() for part in weight.parts}
        plain = {n: x for n, x in arrays.items() if n not in parts and n not in self.dropped}
        for name, weight in self.encoded.items():
            plain[name] = weight.decode(*(arrays[part] for part in weight.parts))
        return plain


def plain_tensors(tensors: Mapping[str, TensorInfo], declared: Declared) -> Plain:
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
        if leaf in _UNREAD:
            raise UserError(
                f"The checkpoint's weights are quantized with {_UNREAD[leaf]} (tensor {name}), "
                "which this version does not read; use an unquantized checkpoint."
            )
    encoded = {
        _join(module, "weight"): _encoded(module, leaves, declared)
        for module, leaves in modules.items()
        if _PARTS & leaves.keys()
        or ("weight" in leaves and leaves["weight"].dtype in ("F8_E4M3", "F8_E5M2"))
    }
    found = {weight.encoding for weight in encoded.values()}
    if found != declared.encodings:
        raise UserError(
            f"The checkpoint has {named(found)} weights, but its configuration declares "
            f"{named(declared.encodings)} ones (quantization_config or hf_quant_config.json); "
            "they do not belong together."
        )
    parts = {part for weight in encoded.values() for part in weight.parts}
    rest = {name: info for name, info in tensors.items() if name not in parts}
    scales = [name for name in rest if declared.present and _leaf(name) in _ACTIVATION_SCALES]
    dropped = {name: _DROPPED for name in scales}
    plain = {name: info for name, info in rest.items() if name not in dropped}
    files = sorted({info.file for info in tensors.values()})
    return Plain(plain | {n: w.info for n, w in encoded.items()}, encoded, dropped, files)


def plain_names(names: Iterable[str]) -> list[str]:
    """The plain names of a checkpoint's tensors, as far as their own names tell."""
    return sorted(
        {
            _join(name.rpartition(".")[0], "weight") if _leaf(name) in _PARTS else name
            for name in names
            if _leaf(name) not in _ACTIVATION_SCALES
        }
    )


def _encoded(module: str, leaves: Mapping[str, TensorInfo], declared: Declared) -> Encoded:
    """The one weight of a module, told by which parts there are and their dtypes."""
    dtypes = {leaf: info.dtype for leaf, info in leaves.items() if leaf in _PARTS | {"weight"}}
    for layout in _LAYOUTS:
        if dtypes.keys() == layout.parts.keys() and all(
            dtype in layout.parts[leaf] for leaf, dtype in dtypes.items()
        ):
            break
    else:
        found = ", ".join(f"{leaf} {dtype}" for leaf, dtype in sorted(dtypes.items()))
        raise UserError(
            f"{module or 'A weight'} is quantized in a way that this version does not know "
            f"({found}); use an unquantized checkpoint."
        )
    codes, scale, *rest = (leaves[part] for part in layout.parts)
    mlx = declared.mlx_settings(module) if layout.encoding == MLX else None
    shape = _shape(module, layout.encoding, codes.shape, scale.shape, mlx or declared.block)
    for info, leaf in zip(rest, list(layout.parts)[2:], strict=True):
        # A tensor's own scale is one number, and its shape two.
        wanted = {"weight_shape": [(2,)], "biases": [scale.shape]}.get(leaf, [(), (1,)])
        if info.shape not in wanted:
            raise UserError(
                f"{_join(module, leaf)} has shape {list(info.shape)}, but must have "
                f"{' or '.join(str(list(shape)) for shape in wanted)}."
            )
    if mlx is not None and (mlx["mode"] == "affine") is not ("biases" in leaves):
        raise UserError(
            f"{module} has {'' if 'biases' in leaves else 'no '}biases, but its mode is "
            f"{mlx['mode']!r} by config.json; correct its quantization."
        )
    decode, dtype = layout.decode, _DTYPE
    if layout.encoding == FP8:
        decode = partial(decode, block=declared.block)
    if layout.encoding == INT4:
        decode = partial(decode, module)
    if mlx is not None:
        decode = partial(decode, **mlx)
        dtype = scale.dtype if scale.dtype in _FLOATS else _DTYPE
    parts = tuple(_join(module, leaf) for leaf in layout.parts)
    return Encoded(layout.encoding, TensorInfo(codes.file, dtype, shape), parts, decode, mlx)


def _shape(
    module: str,
    kind: str,
    codes: tuple[int, ...],
    scale: tuple[int, ...],
    groups: tuple[int, int] | Mapping[str, Any],
) -> tuple[int, int]:
    """A weight's plain shape [out, in], once codes and scales are known to fit.

    Args:
        module: What messages call it.
        kind: The encoding.
        codes: The codes' shape.
        scale: The scales' shape.
        groups: FP8's block, or the settings of MLX's own.

    Raises:
        UserError: They do not.
    """
    if len(codes) != 2 or 0 in codes:
        raise UserError(f"{module} has {kind} weights of shape {list(codes)}, not [out, in].")
    rows, columns = codes[0], codes[1] * {NVFP4: 2, MXFP4: 2, INT4: 8}.get(kind, 1)
    if kind == FP8:
        row_blocks, column_blocks = -(-rows // groups[0]), -(-columns // groups[1])
        wanted = [(), (1,), (1, 1), (rows,), (rows, 1), (row_blocks, column_blocks)]
        fits = scale in (*wanted, (row_blocks, 1, column_blocks, 1))
    elif kind == INT4:
        fits = len(scale) == 2 and scale[1] > 0 and scale[0] == rows and columns % scale[1] == 0
    elif kind == MLX:
        columns = columns * 32 // groups["bits"]
        group = groups["group_size"]
        fits = columns % group == 0 and scale == (rows, columns // group)
    else:
        group = dequantize.NVFP4_GROUP if kind == NVFP4 else dequantize.MX_GROUP
        fits = columns % group == 0 and scale == (rows, columns // group)
    if not fits:
        raise UserError(
            f"{module} has {kind} weights for shape {[rows, columns]}, but scales of shape "
            f"{list(scale)}, which do not fit; download the checkpoint again."
        )
    return rows, columns


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]


def _join(module: str, leaf: str) -> str:
    return f"{module}.{leaf}" if module else leaf
