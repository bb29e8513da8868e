"""The default pair: SmolLM2-135M-Instruct and a small DFlash drafter for it."""

from .default_pair import (
    DRAFTER_NAME,
    TARGET_NAME,
    embedded_drafter,
    embedded_target,
    is_embedded_target,
)

__all__ = [
    "DRAFTER_NAME",
    "TARGET_NAME",
    "embedded_drafter",
    "embedded_target",
    "is_embedded_target",
]
