"""Runs Metal kernels without a GPU: the text that MLX makes, compiled as C++ and checked.

A test asks for the fixture ``metal`` (see :class:`metal_harness.runner.Metal`) and calls the
project's own wrapper inside it; the object made by ``mx.fast.metal_kernel`` is what is replaced::

    def test_rows(metal):
        keys, values = metal.run(lambda: context_kv(...))   # three schedules, or the real GPU
        metal.check(lambda: context_kv(...))                # sanitizers and lint, always on the CPU

What an emulation cannot show: speed, register use, what Apple's compiler makes of the text, the
order in which a GPU adds up a ``simd_sum``, the accuracy of ``fast::`` functions, and whether a
barrier's flag names the right one of device and threadgroup memory.
"""

from .compiler import Build
from .errors import KernelError
from .harness import Harness, Launch, Schedule
from .lint import lint
from .runner import Metal, gpu_is_usable

__all__ = [
    "Build",
    "Harness",
    "KernelError",
    "Launch",
    "Metal",
    "Schedule",
    "gpu_is_usable",
    "lint",
]
