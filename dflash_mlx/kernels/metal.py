"""What every kernel's wrapper needs of MLX."""

from collections.abc import Callable, Sequence
from functools import lru_cache

import mlx.core as mx

SIMD = 32
SIMDGROUPS = 8
"""Simdgroups a threadgroup. 256 threads of some 100 registers fit every Apple GPU."""

# What is indexed by a loop's variable stays in registers only if the loop is unrolled.
UNROLL = """
#define UNROLL _Pragma("clang loop unroll(full)")
"""

Kernel = Callable[..., list[mx.array]]


def on_metal() -> bool:
    """Whether what is built now will run on a Metal GPU."""
    return mx.metal.is_available() and mx.default_device().type == mx.gpu


def metal_kernel(
    name: str, inputs: Sequence[str], outputs: Sequence[str], source: str, header: str
) -> Kernel:
    """The kernel of this source, made once.

    It is made by whatever ``mx.fast.metal_kernel`` is at the time of the call, so that the same
    wrappers run where something stands in for Metal.
    """
    names = {"input_names": tuple(inputs), "output_names": tuple(outputs)}
    return _made(mx.fast.metal_kernel, name=name, source=source, header=header, **names)


@lru_cache(maxsize=32)
def _made(make: Callable[..., Kernel], **options: object) -> Kernel:
    return make(**options)
