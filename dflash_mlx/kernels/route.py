"""Which way a call goes, and what is said when a kernel cannot be built."""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import mlx.core as mx


class Route(NamedTuple):
    """How a call is computed, and why so."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


def can_build(name: str, call: Callable[[], tuple[mx.array, ...]]) -> bool:
    """Run ``call``, and so compile its pipelines; warn that kernel ``name`` is off if it fails."""
    try:
        mx.eval(call())
    except (RuntimeError, ValueError) as error:
        warnings.warn(
            f"The Metal kernel {name} cannot be built here, so plain MLX runs in its place: "
            f"{error}",
            RuntimeWarning,
            stacklevel=3,
        )
        return False
    return True
