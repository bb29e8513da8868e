"""What a primitive costs on Metal: launches, bytes and floating point operations.

The rules are read off MLX 0.32's own dispatch code (``mlx/backend/gpu/primitives.cpp``,
``mlx/backend/metal/slicing.cpp``, ``…/scaled_dot_product_attention.cpp``):

* A view (broadcast, transpose, slice, split, expand, squeeze) launches nothing. A reshape is a view
  too if the layout of its input allows one, and otherwise a copy.
* A concatenation launches one copy an input; a slice update at a device-side offset launches two
  kernels, one that computes the address and one that copies (the buffer itself is donated).
* An output without elements launches nothing.
* A kernel of ours whose input does not lie in row order launches a copy of that input first.
* Everything else is one launch. MLX may split a product of few rows over the inner dimension, which
  is a second launch, and long attention in two passes; neither is counted.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from graph import Array, Layouts, Primitive, fresh

RESHAPES = ("Reshape", "Flatten", "Unflatten")
VIEWS = {
    "Broadcast": lambda x, shape: np.broadcast_to(x, shape),
    "Transpose": lambda x, axes: x.transpose(axes),
    "ExpandDims": lambda x, axes: np.expand_dims(x, tuple(axes)),
    "Squeeze": lambda x, axes: np.squeeze(x, tuple(axes)),
    "Slice": lambda x, start, stop, step: x[tuple(map(slice, start, stop, step))],
    "Split": lambda x, at, axis: np.split(x, list(at), axis),
    "StopGradient": lambda x: x,
    "Depends": lambda x: x,
    "Copy": lambda x: x,
}
PRODUCTS = ("Matmul", "AddMM", "QuantizedMatmul")
# These read what they pick, not all of what they pick from.
PICKS = ("Gather", "GatherAxis")
# These change a buffer that they are given, and touch no more of it than they write.
WRITES_INTO = ("DynamicSliceUpdate", "SliceUpdate")


@dataclass(frozen=True)
class Cost:
    """What one primitive costs.

    Attributes:
        kind: of the primitive.
        launches: kernels that it launches; none if it is a view.
        bytes: read and written, every distinct element once.
        flops: of products and attention; other arithmetic is not worth counting.
        rows: of a product's left side, and 0 for what is not a product by MLX.
    """

    kind: str
    launches: int
    bytes: int = 0
    flops: int = 0
    rows: int = 0


def costs(primitives: Iterable[Primitive], layouts: Layouts) -> Iterator[Cost]:
    """The cost of each primitive.

    Args:
        primitives: in an order in which they can run.
        layouts: of what earlier primitives made; those of these are added.
    """
    for primitive in primitives:
        view = _view(primitive, layouts)
        if view is not None:
            for array, layout in zip(primitive.outputs, view, strict=True):
                layouts.put(array, layout)
            yield Cost(primitive.kind, 0)
            continue
        if primitive.kind == "Attention" and primitive.inputs[0].shape[2] > 8:
            # The kernel for many queries writes [B, n, heads, head_dim].
            (out,) = primitive.outputs
            B, heads, n, head_dim = out.shape
            layouts.put(out, fresh((B, n, heads, head_dim)).transpose(0, 2, 1, 3))
        copies = _copies(primitive, layouts)
        yield Cost(
            primitive.kind,
            _launches(primitive) + len(copies),
            _bytes(primitive, layouts) + sum(2 * _nbytes(a) for a in copies),
            _flops(primitive),
            math.prod(primitive.inputs[0].shape[:-1]) if primitive.kind in PRODUCTS else 0,
        )


def _view(primitive: Primitive, layouts: Layouts) -> list[np.ndarray] | None:
    """The layouts of the outputs if they are views of the input, else None."""
    if primitive.kind in RESHAPES:
        try:
            layout = layouts.of(primitive.inputs[0])
            return [np.reshape(layout, primitive.outputs[0].shape, copy=False)]
        except ValueError:  # numpy would have to copy, and so has MLX
            return None
    if primitive.kind not in VIEWS:
        return None
    made = VIEWS[primitive.kind](layouts.of(primitive.inputs[0]), *primitive.arguments)
    return made if isinstance(made, list) else [made]


def _copies(primitive: Primitive, layouts: Layouts) -> list[Array]:
    """Inputs that are first copied into row order."""
    if not primitive.kind.startswith("dflash_"):
        return []
    return [a for a in primitive.inputs if not layouts.of(a).flags.c_contiguous]


def _launches(primitive: Primitive) -> int:
    if not any(a.size for a in primitive.outputs):
        return 0
    if primitive.kind == "Concatenate":
        return sum(a.size > 0 for a in primitive.inputs)
    return 2 if primitive.kind == "DynamicSliceUpdate" else 1


def _bytes(primitive: Primitive, layouts: Layouts) -> int:
    inputs, outputs = primitive.inputs, primitive.outputs
    if primitive.kind in PICKS:
        return _nbytes(inputs[1]) + 2 * _nbytes(outputs[0])
    if primitive.kind in WRITES_INTO:
        return 2 * _nbytes(inputs[1])
    read = sum(layouts.distinct(a) * a.dtype.size for a in inputs)
    return read + sum(map(_nbytes, outputs))


def _nbytes(array: Array) -> int:
    return array.size * array.dtype.size


def _flops(primitive: Primitive) -> int:
    first = primitive.inputs[0] if primitive.inputs else None
    if primitive.kind in PRODUCTS:
        return 2 * primitive.outputs[0].size * first.shape[-1]
    if primitive.kind == "Attention":
        _, keys, values, *_ = primitive.inputs
        return 2 * first.size * keys.shape[2] + 2 * primitive.outputs[0].size * values.shape[2]
    if primitive.kind.startswith(("dflash_context_rows", "dflash_context_fragments")):
        return 2 * first.shape[-1] * sum(a.size for a in primitive.outputs)
    return 0
