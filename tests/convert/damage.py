"""One thing that is wrong with a checkpoint, and the check that must find it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx

Tensors = dict[str, mx.array]

# What a converter must check before it writes anything.
CHECKS = (
    "config.json is an object with unique keys",
    "the weight files are there and whole",
    "required keys",
    "copies agree",
    "heads and shapes",
    "fc",
    "taps",
    "block size and DFlash 2",
    "layers and features",
    "mask token",
    "vocabulary",
    "every tensor is accounted for",
    "dtypes and values",
    "rope",
    "other kinds of drafters",
    "unknown keys",
)
(
    JSON,
    FILES,
    REQUIRED,
    COPIES,
    SHAPES,
    FC,
    TAPS,
    BLOCK,
    LAYERS,
    MASK,
    VOCABULARY,
    ACCOUNTING,
    VALUES,
    ROPE,
    KINDS,
    UNKNOWN,
) = CHECKS


class Damage(NamedTuple):
    """One thing that is wrong with a checkpoint, and what the message must name."""

    check: str
    format_name: str
    what: str
    names: tuple[str, ...]
    to_config: Callable[[dict[str, Any]], object] = lambda config: None
    to_tensors: Callable[[Tensors], object] = lambda tensors: None
    to_folder: Callable[[Path], object] = lambda folder: None

    @property
    def id(self) -> str:
        return f"{self.format_name}: {self.check}: {self.what}"
