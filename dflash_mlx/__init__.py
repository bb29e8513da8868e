"""DFlash speculative decoding for Apple silicon, on MLX."""

from .errors import UserError
from .generate import generate, stream_generate
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
