"""The graph of a function as a Metal GPU would get it, taken from MLX without running anything.

``mx.export_function`` hands out the primitives that ``eval`` would run, with shapes; of equal nodes
with equal inputs it keeps one. On a CPU, MLX writes its fast operations and compiled functions out
as many small primitives; here each of them stands as the one kernel that it is on a GPU.

What a primitive launches is read off MLX 0.32's own dispatch code
(``mlx/backend/gpu/primitives.cpp``, ``mlx/backend/metal/slicing.cpp``,
``…/scaled_dot_product_attention.cpp``):

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
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import NamedTuple
from unittest.mock import patch

import mlx.core as mx
import numpy as np

from dflash_mlx.kernels import norm_rope

# Operations that are one kernel on a GPU and a graph of their own elsewhere.
FAST = {
    "RMSNorm": (mx.fast, "rms_norm"),
    "RoPE": (mx.fast, "rope"),
    "Attention": (mx.fast, "scaled_dot_product_attention"),
    "Dequantize": (mx, "dequantize"),
}
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


class Array(NamedTuple):
    """An array of the graph."""

    name: str
    shape: tuple[int, ...]
    dtype: mx.Dtype


@dataclass(frozen=True)
class Primitive:
    """A node of the graph.

    Attributes:
        kind: MLX's name for it, or that of a kernel.
        inputs: what it reads.
        outputs: what it makes.
        arguments: its parameters, in the order in which MLX exports them.
    """

    kind: str
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    arguments: tuple


@dataclass(frozen=True)
class Graph:
    """The primitives of a function, in an order in which they can run, and its outputs' names."""

    primitives: list[Primitive]
    outputs: list[str]

    def stages(self, counts: dict[str, int]) -> dict[str, list[Primitive]]:
        """Share the primitives out: each belongs to the first stage whose outputs need it.

        Args:
            counts: how many of the outputs, in order, are each stage's.
        """
        maker = {a.name: p for p in self.primitives for a in p.outputs}
        taken: set[int] = set()
        shared: dict[str, list[Primitive]] = {}
        outputs = iter(self.outputs)
        for stage, count in counts.items():
            found: set[int] = set()
            needed = [next(outputs) for _ in range(count)]
            while needed:
                primitive = maker.get(needed.pop())
                if primitive is not None and id(primitive) not in taken | found:
                    found.add(id(primitive))
                    needed += [a.name for a in primitive.inputs]
            shared[stage] = [p for p in self.primitives if id(p) in found]
            taken |= found
        return shared


def capture(function: Callable[..., Sequence[mx.array]], *inputs: mx.array) -> Graph:
    """The graph of ``function`` over ``inputs``, of which only shapes and dtypes matter."""
    graph = Graph([], [])
    kernels: list[str] = []

    def note(entry: dict) -> None:
        if entry["type"] == "outputs":
            graph.outputs.extend(name for name, *_ in entry["outputs"])
        elif entry["type"] == "primitive":
            ends = (tuple(Array(*a) for a in entry[end]) for end in ("inputs", "outputs"))
            kind, arguments = entry["name"], tuple(entry["arguments"])
            if kind == "CustomKernel":
                # MLX appends the template and the dtypes to the name that the kernel was given.
                full = arguments[0].removeprefix("custom_kernel_")
                kind = max((k for k in kernels if full.startswith(k)), key=len)
            graph.primitives.append(Primitive(kind, *ends, arguments))

    with _as_on_metal(kernels):
        mx.export_function(note, function, *inputs)
    return graph


@contextmanager
def kernels_chosen(fused: bool) -> Iterator[None]:
    """Whether our own kernels are chosen where they support the call, or the plain path."""
    with patch.object(norm_rope, "on_metal", lambda: fused):
        yield


@contextmanager
def _as_on_metal(kernels: list[str]) -> Iterator[None]:
    """While a graph is traced: MLX's fast operations as one kernel each, and our kernels at all.

    Args:
        kernels: the names of the kernels that were made are added here.
    """
    make = mx.fast.metal_kernel

    def noted(name: str, **options: object) -> Callable[..., list[mx.array]]:
        kernels.append(name)
        return make(name=name, **options)

    with ExitStack() as stack:
        stack.enter_context(patch.object(mx.fast, "metal_kernel", noted))
        for name, (module, attribute) in FAST.items():
            stand_in = _stand_in(name, getattr(module, attribute))
            stack.enter_context(patch.object(module, attribute, stand_in))
        for module, attribute, compiled in list(_compiled_functions()):
            stand_in = _stand_in(f"Compiled_{attribute}", compiled)
            stack.enter_context(patch.object(module, attribute, stand_in))
        yield


def _stand_in(name: str, function: Callable) -> Callable:
    """``function`` as one kernel: the real one only tells the shape, and is then dropped."""

    def call(*args: object, **options: object) -> mx.array:
        result = function(*args, **options)
        arrays = [a for a in (*args, *options.values()) if isinstance(a, mx.array)]
        kernel = mx.fast.metal_kernel(
            name=name,
            input_names=[f"in{i}" for i in range(len(arrays))],
            output_names=["out"],
            source="",
        )
        (out,) = kernel(
            inputs=arrays,
            grid=(1, 1, 1),
            threadgroup=(1, 1, 1),
            output_shapes=[result.shape],
            output_dtypes=[result.dtype],
        )
        return out

    return call


def _compiled_functions() -> Iterator[tuple[object, str, Callable]]:
    """Where the results of ``mx.compile`` are kept: module, attribute, function."""
    kind = type(mx.compile(lambda x: x))
    for name, module in list(sys.modules.items()):
        if name.startswith(("mlx.nn", "mlx_lm.", "dflash_mlx.")):
            for attribute, value in list(vars(module).items()):
                if isinstance(value, kind):
                    yield module, attribute, value


Layouts = dict[str, np.ndarray]
"""Where the elements of arrays lie, by name, so that views and copies can be told apart.

The layouts are numpy's, over no memory: numpy has the same views, and tells what is contiguous.
"""


def launches(primitives: Iterable[Primitive], layouts: Layouts) -> Counter[str]:
    """How many kernels the primitives launch, by kind.

    Args:
        primitives: in an order in which they can run.
        layouts: of what earlier primitives made; those of these are added.
    """
    found: Counter[str] = Counter()
    for p in primitives:
        views = _views(p, layouts)
        if views is not None:
            layouts |= {a.name: layout for a, layout in zip(p.outputs, views, strict=True)}
            continue
        if p.kind == "Attention" and p.inputs[0].shape[2] > 8:
            # The kernel for many queries writes [B, n, heads, head_dim].
            (out,) = p.outputs
            B, heads, n, head_dim = out.shape
            layouts[out.name] = _fresh((B, n, heads, head_dim)).transpose(0, 2, 1, 3)
        found[p.kind] += _own_launches(p)
        if p.kind.startswith("dflash_"):
            found[p.kind] += sum(not _layout(a, layouts).flags.c_contiguous for a in p.inputs)
    return +found


def _own_launches(primitive: Primitive) -> int:
    if not any(math.prod(a.shape) for a in primitive.outputs):
        return 0
    if primitive.kind == "Concatenate":
        return sum(math.prod(a.shape) > 0 for a in primitive.inputs)
    return 2 if primitive.kind == "DynamicSliceUpdate" else 1


def _views(primitive: Primitive, layouts: Layouts) -> list[np.ndarray] | None:
    """The layouts of the outputs if they are views of the input, else None."""
    if primitive.kind in RESHAPES:
        try:
            layout = _layout(primitive.inputs[0], layouts)
            return [np.reshape(layout, primitive.outputs[0].shape, copy=False)]
        except ValueError:  # numpy would have to copy, and so has MLX
            return None
    if primitive.kind not in VIEWS:
        return None
    made = VIEWS[primitive.kind](_layout(primitive.inputs[0], layouts), *primitive.arguments)
    return made if isinstance(made, list) else [made]


def _layout(array: Array, layouts: Layouts) -> np.ndarray:
    """What nothing is known of lies in row order."""
    return layouts.get(array.name, _fresh(array.shape))


def _fresh(shape: tuple[int, ...]) -> np.ndarray:
    """The layout of a new array in row order."""
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return np.lib.stride_tricks.as_strided(np.zeros(1, np.int8), shape, strides)
