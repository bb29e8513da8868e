"""The buffers that a drafter keeps its context K/V in."""

from .linear import LinearCache
from .window import WindowCache

ContextBuffer = LinearCache | WindowCache
