"""Linear layers stacked into one, and one split into views."""

import copy

import mlx.core as mx
import mlx.nn as nn


def stack_linears(linears: list[nn.Module]) -> nn.Module:
    """One linear layer whose outputs are those of ``linears``, in their order.

    Layers that are quantized alike stay quantized; a mixture is dequantized first.
    """
    kinds = {
        (m.group_size, m.bits, m.mode) if isinstance(m, nn.QuantizedLinear) else None
        for m in linears
    }
    if len(kinds) > 1:
        linears = [_dequantized(m) for m in linears]
    return _rebuilt(linears[0], {k: mx.concatenate([m[k] for m in linears]) for k in linears[0]})


def split_linear(linear: nn.Module, parts: int) -> list[nn.Module]:
    """``parts`` linear layers over equal ranges of ``linear``'s outputs, sharing its memory."""
    pieces = {k: mx.split(w, parts) for k, w in linear.items() if isinstance(w, mx.array)}
    return [_rebuilt(linear, {k: w[i] for k, w in pieces.items()}) for i in range(parts)]


def _rebuilt(like: nn.Module, weights: dict[str, mx.array]) -> nn.Module:
    """A linear layer of the same kind and quantization as ``like``, with other weights."""
    module = copy.copy(like)
    for name, weight in weights.items():
        setattr(module, name, weight)
    return module


def _dequantized(linear: nn.Module) -> nn.Module:
    if not isinstance(linear, nn.QuantizedLinear):
        return linear
    weight = mx.dequantize(
        linear.weight,
        linear.scales,
        linear.get("biases"),
        linear.group_size,
        linear.bits,
        linear.mode,
    )
    dense = nn.Linear(weight.shape[1], weight.shape[0], bias="bias" in linear)
    dense.weight = weight
    if "bias" in linear:
        dense.bias = linear.bias
    return dense
