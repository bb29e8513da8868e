"""Checkpoint formats in, one MLX format out; and back to one of them."""

from .cached import convert_cached
from .convert import convert
from .export import export_drafter

__all__ = ["convert", "convert_cached", "export_drafter"]
