"""The graph of a function as a Metal GPU would get it, taken from MLX without running anything.

``mx.export_function`` hands out the primitives that ``eval`` would run, with shapes; of equal nodes
with equal inputs it keeps one. On a CPU, MLX writes its fast operations and compiled functions out
as many small primitives; here each of them stands as the one kernel that it is on a GPU.
"""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import mlx.core as mx
import numpy as np

from dflash_mlx.kernels import block_heads, context_kv

Shape = tuple[int, ...]

# Operations that are one kernel on a GPU and a graph of their own elsewhere.
FAST = {
    "RMSNorm": (mx.fast, "rms_norm"),
    "RoPE": (mx.fast, "rope"),
    "Attention": (mx.fast, "scaled_dot_product_attention"),
    "Dequantize": (mx, "dequantize"),
}


@dataclass(frozen=True)
class Array:
    """An array of the graph."""

    name: str
    shape: Shape
    dtype: mx.Dtype

    @property
    def size(self) -> int:
        return math.prod(self.shape)


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
        first = 0
        for stage, count in counts.items():
            found: set[int] = set()
            needed = list(self.outputs[first : first + count])
            first += count
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
    primitives: list[Primitive] = []
    outputs: list[str] = []
    kernels: list[str] = []

    def note(entry: dict) -> None:
        if entry["type"] == "outputs":
            outputs.extend(name for name, *_ in entry["outputs"])
        elif entry["type"] == "primitive":
            ends = (tuple(Array(*a) for a in entry[end]) for end in ("inputs", "outputs"))
            arguments = tuple(entry["arguments"])
            kind = entry["name"]
            if kind == "CustomKernel":
                # MLX appends the template and the dtypes to the name that the kernel was given.
                full = arguments[0].removeprefix("custom_kernel_")
                kind = max((k for k in kernels if full.startswith(k)), key=len)
            primitives.append(Primitive(kind, *ends, arguments))

    with as_on_metal(kernels):
        mx.export_function(note, function, *inputs)
    return Graph(primitives, outputs)


@contextmanager
def as_on_metal(kernels: list[str]) -> Iterator[None]:
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


@contextmanager
def kernels_chosen(fused: bool) -> Iterator[None]:
    """Whether our own kernels are chosen where they support the call, or the plain path."""
    with ExitStack() as stack:
        for module in (context_kv, block_heads):
            stack.enter_context(patch.object(module, "on_metal", lambda: fused))
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


class Layouts:
    """Where the elements of each array lie, so that views and copies can be told apart.

    The layouts are numpy's, over no memory: numpy has the same views, and tells what is contiguous.
    """

    def __init__(self) -> None:
        self._known: dict[str, np.ndarray] = {}

    def of(self, array: Array) -> np.ndarray:
        """The layout of an array; what nothing is known of lies in row order."""
        return self._known.get(array.name, fresh(array.shape))

    def put(self, array: Array, layout: np.ndarray) -> None:
        """Remember a layout."""
        assert layout.shape == array.shape, (array, layout.shape)
        self._known[array.name] = layout

    def distinct(self, array: Array) -> int:
        """How many elements lie in memory: a broadcast repeats them without storing them."""
        layout = self.of(array)
        return math.prod(n for n, s in zip(layout.shape, layout.strides, strict=True) if s)


def fresh(shape: Shape) -> np.ndarray:
    """The layout of a new array in row order."""
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return np.lib.stride_tricks.as_strided(np.zeros(1, np.int8), shape, strides)
