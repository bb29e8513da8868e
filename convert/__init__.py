"""Checkpoint formats in, one MLX format out."""

from .cached import convert_cached
from .convert import convert

__all__ = ["convert", "convert_cached"]
