"""DFlash speculative decoding for Apple silicon, on MLX."""

from importlib import import_module
from typing import TYPE_CHECKING

from .errors import UserError

if TYPE_CHECKING:
    from .generation import generate, stream_generate
    from .loading import load
    from .pair import Pair
    from .response import GenerationResponse
    from .tuning import tune

__all__ = [
    "GenerationResponse",
    "Pair",
    "UserError",
    "generate",
    "load",
    "stream_generate",
    "tune",
]

# Imported when first asked for: MLX takes a second, which `dflash-mlx --help` should not wait for.
_MODULES = {
    "GenerationResponse": ".response",
    "Pair": ".pair",
    "generate": ".generation",
    "load": ".loading",
    "stream_generate": ".generation",
    "tune": ".tuning",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name], __name__), name)
