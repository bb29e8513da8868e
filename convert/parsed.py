"""What a checkpoint's config says, in the terms of the MLX format."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..drafter.config import DrafterConfig


@dataclass(frozen=True, kw_only=True)
class Parsed:
    """A config of any format, read.

    Attributes:
        format: The format's short name, such as ``"z-lab"`` or ``"speculators"``.
        config: The drafter in the MLX format. What only the weights tell (own tables, a mask
            embedding, biases) is settled as far as the tensors' names were known.
        tap_base: What the format's tap ids call the output of the target's first layer: 0 or 1.
        window: The format's own window rule in words.
        renames: Tensor names of this format, by which MLX name they go.
        verifier: ``name_or_path`` and ``architectures`` of the target, if the config names it.
    """

    format: str
    config: DrafterConfig
    tap_base: int
    window: str
    renames: Mapping[str, str]
    verifier: dict[str, Any] = field(default_factory=dict)
