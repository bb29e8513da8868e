"""Checkpoint formats in, one MLX format out; and back to one of them."""

from .conversion import convert, convert_cached
from .export import export_drafter

__all__ = ["convert", "convert_cached", "export_drafter"]
