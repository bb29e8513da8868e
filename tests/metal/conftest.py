"""What the tests of kernels share."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from metal_harness import Build, Harness, Metal, Schedule, gpu_is_usable


@pytest.fixture(scope="session")
def kernel_folder(request: pytest.FixtureRequest, tmp_path_factory) -> Path:
    """Where compiled kernels are kept: .pytest_cache/d/metal, so that a second run is quick."""
    cache = getattr(request.config, "cache", None)  # absent under -p no:cacheprovider
    return cache.mkdir("metal") if cache else tmp_path_factory.mktemp("metal")


@pytest.fixture(scope="session")
def harness(kernel_folder: Path) -> Harness:
    """The emulator."""
    harness = Harness(kernel_folder)
    harness.prune()
    return harness


@pytest.fixture
def metal(harness: Harness) -> Metal:
    """Runs kernels: on the GPU where there is one, else in the emulator."""
    return Metal(harness, on_gpu=gpu_is_usable())


@pytest.fixture
def emulate(harness: Harness) -> Callable[..., list[mx.array]]:
    """Runs the body of a kernel in the emulator, on any machine.

    The function takes the body, the inputs by name, and the outputs by name as (shape, dtype).
    """

    def run(
        body: str,
        inputs: dict[str, mx.array],
        outputs: dict[str, tuple[Sequence[int], mx.Dtype]],
        *,
        grid: tuple[int, int, int] = (32, 1, 1),
        threadgroup: tuple[int, int, int] = (32, 1, 1),
        build: Build = Build.PLAIN,
        schedules: Sequence[Schedule] = tuple(Schedule),
        header: str = "",
        atomic_outputs: bool = False,
        **call: Any,
    ) -> list[mx.array]:
        with harness.emulating(build, schedules):
            kernel = mx.fast.metal_kernel(
                name="probe",
                input_names=list(inputs),
                output_names=list(outputs),
                source=body,
                header=header,
                atomic_outputs=atomic_outputs,
            )
            return kernel(
                inputs=list(inputs.values()),
                output_shapes=[shape for shape, _ in outputs.values()],
                output_dtypes=[dtype for _, dtype in outputs.values()],
                grid=grid,
                threadgroup=threadgroup,
                **call,
            )

    return run
