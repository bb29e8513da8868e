"""DFlash speculative decoding for Apple silicon, on MLX."""

from importlib import import_module
from typing import TYPE_CHECKING

from .errors import UserError

if TYPE_CHECKING:
    from .generation.auto_size import tune
    from .generation.engine_thread import Engine, EngineError, Handle
    from .generation.many import batch_generate
    from .generation.response import GenerationResponse
    from .generation.stream import generate, stream_generate
    from .loading.loader import load
    from .loading.pair import Pair

__version__ = "0.1.0"

__all__ = [
    "Engine",
    "EngineError",
    "GenerationResponse",
    "Handle",
    "Pair",
    "UserError",
    "__version__",
    "batch_generate",
    "generate",
    "load",
    "stream_generate",
    "tune",
]

# Imported when first asked for: MLX takes a second, which `dflash-mlx --help` should not wait for.
_MODULES = {
    "Engine": ".generation.engine_thread",
    "EngineError": ".generation.engine_thread",
    "GenerationResponse": ".generation.response",
    "Handle": ".generation.engine_thread",
    "Pair": ".loading.pair",
    "batch_generate": ".generation.many",
    "generate": ".generation.stream",
    "load": ".loading.loader",
    "stream_generate": ".generation.stream",
    "tune": ".generation.auto_size",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name], __name__), name)
