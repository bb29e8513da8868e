"""Stands in for ``mx.fast.metal_kernel``: wrappers run their kernels on the CPU, unchanged."""

from __future__ import annotations

import enum
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from .capture import metal_source
from .compiler import Build, Compiler
from .errors import KernelError
from .process import Argument, Process
from .translate import translate


class Schedule(enum.IntEnum):
    """The order in which the threads of a threadgroup run between two barriers."""

    FORWARD = 0
    REVERSE = 1
    RANDOM = 2


@dataclass(frozen=True)
class Launch:
    """One call of a kernel.

    Attributes:
        name: The name given to ``mx.fast.metal_kernel``.
        grid: The size of the grid, in threads.
        threadgroup: The size of a threadgroup, in threads.
        source: The Metal text; None on the GPU.
    """

    name: str
    grid: tuple[int, int, int]
    threadgroup: tuple[int, int, int]
    source: str | None


class Harness:
    """Replaces ``mx.fast.metal_kernel`` while one of its contexts is open.

    A kernel made inside a context keeps working afterwards: outside it goes to the GPU, inside any
    later context it is emulated again. So it does not matter whether the wrapper keeps its kernels.

    Args:
        folder: Where executables are kept.
        compiler: The command of a C++ compiler, to use another than the default.

    Attributes:
        launches: The launches of the latest context.
    """

    def __init__(self, folder: Path, compiler: str | None = None) -> None:
        self.launches: list[Launch] = []
        self._compiler = Compiler(folder, compiler)
        self._launch: Callable[[_Kernel, dict[str, Any]], list[mx.array]] | None = None
        self._original: Callable = mx.fast.metal_kernel

    def prune(self) -> None:
        """Removes executables that were not used for long."""
        self._compiler.prune()

    @contextmanager
    def emulating(
        self,
        build: Build = Build.PLAIN,
        schedules: Sequence[Schedule] = tuple(Schedule),
        edit: Callable[[str], str] | None = None,
    ) -> Iterator[list[Launch]]:
        """Runs every launch on the CPU, under all ``schedules``, which must agree bit for bit.

        Args:
            build: How kernels are compiled.
            schedules: The schedules.
            edit: Changes the Metal text before it is compiled, to see whether a test would notice.
        """

        def launch(kernel: _Kernel, call: dict[str, Any]) -> list[mx.array]:
            return self._emulate(kernel, call, build, schedules, edit)

        with self._replacing(launch):
            yield self.launches

    @contextmanager
    def recording(self) -> Iterator[list[Launch]]:
        """Lets launches go to the GPU and takes note of them."""

        def launch(kernel: _Kernel, call: dict[str, Any]) -> list[mx.array]:
            self._note(kernel, call, None)
            return kernel.real(**call)

        with self._replacing(launch):
            yield self.launches

    @contextmanager
    def _replacing(self, launch: Callable) -> Iterator[None]:
        if self._launch is not None:
            raise RuntimeError("one context of the harness is open already")
        self.launches = []
        self._launch = launch
        self._original = mx.fast.metal_kernel
        mx.fast.metal_kernel = self._make  # equal every time, for wrappers that compare it
        try:
            yield
        finally:
            mx.fast.metal_kernel = self._original
            self._launch = None

    def _make(self, *args: Any, **kwargs: Any) -> _Kernel:
        return _Kernel(self, self._original, *args, **kwargs)

    def _call(self, kernel: _Kernel, call: dict[str, Any]) -> list[mx.array]:
        if self._launch is None:
            return kernel.real(**call)
        return self._launch(kernel, call)

    def _note(self, kernel: _Kernel, call: dict[str, Any], source: str | None) -> None:
        grid, threadgroup = tuple(call["grid"]), tuple(call["threadgroup"])
        self.launches.append(Launch(kernel.name, grid, threadgroup, source))

    def _emulate(
        self,
        kernel: _Kernel,
        call: dict[str, Any],
        build: Build,
        schedules: Sequence[Schedule],
        edit: Callable[[str], str] | None,
    ) -> list[mx.array]:
        call = dict(call)
        inputs = [x if isinstance(x, mx.array) else mx.array(x) for x in call.pop("inputs")]
        # These two are no business of the emulator; the others MLX checks while it traces.
        verbose, _ = call.pop("verbose", False), call.pop("stream", None)
        source = metal_source(kernel.real, inputs, call)
        if verbose:
            print(source)
        self._note(kernel, call, source)
        translation = translate(edit(source) if edit else source)
        executable = self._compiler.executable(translation.cpp, build)
        arguments = _arguments(translation.buffers, kernel.input_names, inputs, call)
        with tempfile.TemporaryDirectory(prefix="metal-") as scratch:
            process = Process(executable, arguments, Path(scratch))
            results = [process.run(call["grid"], call["threadgroup"], s) for s in schedules]
        _require_agreement(kernel, schedules, results)
        return [
            _to_array(data, shape, dtype)
            for data, shape, dtype in zip(
                results[0], call["output_shapes"], call["output_dtypes"], strict=True
            )
        ]


class _Kernel:
    """What the replaced ``mx.fast.metal_kernel`` returns: MLX's own kernel, with a detour."""

    def __init__(
        self,
        harness: Harness,
        make: Callable,
        name: str,
        input_names: Sequence[str],
        output_names: Sequence[str],
        source: str,
        header: str = "",
        ensure_row_contiguous: bool = True,
        **options: Any,
    ) -> None:
        if not ensure_row_contiguous:
            raise NotImplementedError("the emulator has only row-contiguous inputs")
        self.name = name
        self.input_names = list(input_names)
        self.real = make(
            name=name,
            input_names=self.input_names,
            output_names=list(output_names),
            source=source,
            header=header,
            **options,
        )
        self._harness = harness

    def __call__(self, **call: Any) -> list[mx.array]:
        return self._harness._call(self, call)


def _arguments(
    buffers: Sequence[str], input_names: Sequence[str], inputs: list[mx.array], call: dict[str, Any]
) -> list[Argument]:
    """The contents of a kernel's buffers: inputs, the shapes MLX adds to them, then outputs."""
    data = dict(zip(input_names, map(_to_numpy, inputs), strict=True))
    known: dict[str, np.ndarray] = {}
    for name, array in data.items():
        known[f"{name}_shape"] = np.array(array.shape, np.int32)
        known[f"{name}_strides"] = np.array(array.strides, np.int64) // array.itemsize
        known[f"{name}_ndim"] = np.array(array.ndim, np.int32)
    known |= data  # last: an input may be called like what MLX adds to another one

    count = len(call["output_shapes"])
    arguments = [Argument(n, known[n].nbytes, known[n].tobytes()) for n in buffers[:-count]]
    start = call.get("init_value")
    for name, shape, dtype in zip(
        buffers[-count:], call["output_shapes"], call["output_dtypes"], strict=True
    ):
        size = int(np.prod(shape)) * dtype.size
        content = None if start is None else _to_numpy(mx.full(shape, start, dtype)).tobytes()
        arguments.append(Argument(name, size, content, output=True))
    return arguments


def _require_agreement(
    kernel: _Kernel, schedules: Sequence[Schedule], results: list[list[bytes]]
) -> None:
    for schedule, result in zip(schedules[1:], results[1:], strict=True):
        for index, (first, other) in enumerate(zip(results[0], result, strict=True)):
            if first == other:
                continue
            byte = next(i for i, (a, b) in enumerate(zip(first, other, strict=True)) if a != b)
            names = f"{schedules[0].name} and {schedule.name}".lower()
            raise KernelError(
                "schedule",
                f"output {index} of {kernel.name} differs between the schedules {names}, "
                f"first at byte {byte} of {len(first)}",
            )


def _to_numpy(array: mx.array) -> np.ndarray:
    """The array's bits; NumPy has no bfloat16, so that one comes as integers."""
    if array.dtype == mx.bfloat16:
        array = array.view(mx.uint16)
    return np.ascontiguousarray(np.array(array)).reshape(array.shape)


def _to_array(data: bytes, shape: Sequence[int], dtype: mx.Dtype) -> mx.array:
    if dtype == mx.bool_:
        return mx.array(np.frombuffer(data, np.bool_).reshape(shape))
    bits = np.frombuffer(data, f"uint{8 * dtype.size}")
    return mx.array(bits).view(dtype).reshape(shape)
