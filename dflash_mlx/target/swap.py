"""Another class for one instance: the way in which this package listens to mlx-lm's modules."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import mlx.nn as nn


def subclass(base: type[nn.Module], **members: object) -> type[nn.Module]:
    """A subclass of ``base`` with its name and place, in which ``members`` are redefined.

    An instance that is given it keeps its parameters, attributes and ``isinstance``; other
    instances of ``base`` are not touched.
    """
    return type(base.__name__, (base,), {"__module__": base.__module__, **members})


@contextmanager
def swapped(classes: Sequence[tuple[nn.Module, type[nn.Module]]]) -> Iterator[None]:
    """Give each module its class inside the block."""
    before = [type(module) for module, _ in classes]
    try:
        for module, cls in classes:
            module.__class__ = cls
        yield
    finally:
        for (module, _), cls in zip(classes, before, strict=True):
            module.__class__ = cls
