"""Launches that are only counted."""

import mlx.core as mx
import pytest

from dflash_mlx.kernels import norm_rope


def as_on_metal(patch: pytest.MonkeyPatch, yes: bool = True) -> None:
    """The kernels are chosen as on a Metal GPU, or as elsewhere."""
    patch.setattr(norm_rope, "on_metal", lambda: yes)


class Launches:
    """Stands in for ``mx.fast.metal_kernel``: notes launches, and returns zeros.

    Args:
        broken: part of the names of kernels whose launch fails.
    """

    def __init__(self, broken: str = "nothing"):
        self.broken = broken
        self.names: list[str] = []

    def __call__(self, name: str, **_: object):
        def launch(output_shapes, output_dtypes, **_):
            if self.broken in name:
                raise RuntimeError("[metal::Device] Unable to build metal library from source")
            self.names.append(name)
            return [mx.zeros(s, t) for s, t in zip(output_shapes, output_dtypes, strict=True)]

        return launch
