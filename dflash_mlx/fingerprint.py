"""A model's identity as far as its speed goes."""

import hashlib

import mlx.nn as nn
from mlx.utils import tree_flatten


def fingerprint(module: nn.Module) -> str:
    """A short hash of a model's class and its parameters' names, shapes, types and quantization.

    Nothing is read from the weights: two fine-tunes of one model are the same here, as they cost
    the same.
    """
    lines = [f"{type(module).__module__}.{type(module).__name__}"]
    for name, array in tree_flatten(module.parameters()):
        lines.append(f"{name} {array.shape} {array.dtype}")
    for name, part in module.named_modules():
        if "scales" in part:
            lines.append(f"{name} {part.bits} {part.group_size} {part.mode}")
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]
