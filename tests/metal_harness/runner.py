"""What tests of kernels use: the GPU where there is one, the emulator elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from .compiler import Build
from .errors import KernelError
from .harness import Harness, Launch, Schedule
from .lint import lint

_BARRIER = re.compile(r"\b(?:threadgroup|simdgroup)_barrier\([^;]*\);")


def _without(source: str, part: re.Match) -> Callable[[str], str]:
    """An edit that takes a part out of one source and leaves others alone."""
    edited = source[: part.start()] + ";" + source[part.end() :]
    return lambda text: edited if text == source else text


def gpu_is_usable() -> bool:
    """Whether kernels can run on a real Apple GPU.

    The virtual GPU of hosted macOS machines has Metal, but neither bfloat nor simdgroup matrices.
    """
    if not mx.metal.is_available():
        return False
    return "paravirtual" not in str(mx.device_info(mx.gpu)).lower()


class Metal:
    """Runs calls of the project's wrappers and checks the kernels that they launch.

    Args:
        harness: Where kernels are emulated.
        on_gpu: Whether :meth:`run` uses the GPU.

    Attributes:
        on_gpu: As given.
        launches: The launches of the latest call.
    """

    def __init__(self, harness: Harness, on_gpu: bool) -> None:
        self.on_gpu = on_gpu
        self.launches: list[Launch] = []
        self._harness = harness

    def run(self, call: Callable[[], Any]) -> Any:
        """Runs ``call`` and returns what it returns, evaluated.

        On the CPU every launch runs under three schedules; on the GPU the call runs three times.
        Either way the results must agree bit for bit.
        """
        if self.on_gpu:
            return self._on_gpu(call)
        return self._emulated(call, Build.PLAIN, tuple(Schedule))

    def check(self, call: Callable[[], Any]) -> None:
        """Runs ``call`` on the CPU in the sanitizers' builds, and lints every kernel it launches.

        For small shapes: these builds are about fifty times slower.

        Raises:
            KernelError: When one of them finds something.
        """
        for build in (Build.ADDRESS, Build.THREAD):
            self._emulated(call, build, (Schedule.FORWARD,))
        for launch in self.launches:
            findings = lint(launch.source)
            if findings:
                raise KernelError("lint", f"{launch.name}:\n" + "\n".join(findings))

    def unneeded_barriers(self, call: Callable[[], Any]) -> list[str]:
        """Takes out each barrier of every kernel in turn and returns those that nobody misses.

        A barrier is missed when its absence is a race. What is left over either does nothing, or
        shows that the shape is too small to need it.
        """
        self._emulated(call, Build.PLAIN, (Schedule.FORWARD,))
        unneeded = []
        for launch in {launch.source: launch for launch in self.launches}.values():
            for barrier in _BARRIER.finditer(launch.source):
                try:
                    with self._harness.emulating(
                        Build.THREAD, (Schedule.FORWARD,), _without(launch.source, barrier)
                    ):
                        mx.eval(call())
                except KernelError as error:
                    if error.check == "race":
                        continue
                line = launch.source.count("\n", 0, barrier.start()) + 1
                unneeded.append(f"{launch.name}, line {line}")
        return unneeded

    def _emulated(self, call: Callable, build: Build, schedules: tuple[Schedule, ...]) -> Any:
        with self._harness.emulating(build, schedules) as launches:
            result = call()
            mx.eval(result)
        self.launches = self._some(launches)
        return result

    def _on_gpu(self, call: Callable[[], Any]) -> Any:
        results = []
        for _ in range(3):
            with self._harness.recording() as launches:
                results.append(call())
                mx.eval(results[-1])
        self.launches = self._some(launches)
        for other in results[1:]:
            pairs = zip(tree_flatten(results[0]), tree_flatten(other), strict=True)
            for (name, first), (_, second) in pairs:
                unsigned = getattr(mx, f"uint{8 * first.dtype.size}")
                if not mx.array_equal(first.view(unsigned), second.view(unsigned)):
                    raise KernelError("schedule", f"result {name} differs from one run to the next")
        return results[0]

    @staticmethod
    def _some(launches: list[Launch]) -> list[Launch]:
        if not launches:
            raise RuntimeError(
                "the call launched no kernel: it took another path, or it uses a kernel that was "
                "made before mx.fast.metal_kernel was replaced"
            )
        return launches
