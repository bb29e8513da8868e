"""Context K/V: the target's features projected for every drafter layer in one product."""

import copy

import mlx.core as mx
import mlx.nn as nn

from ..kernels.context_kv import PathName, choose_path, context_kv, warm_up
from ..kernels.path import Path
from .rope import RoPE


class ContextProjection:
    """``K = rope(k_norm(W_k c))`` and ``V = W_v c`` for all layers at once.

    Args:
        stacked: projection from ``hidden`` to ``layers * 2 * kv_heads * head_dim``, K before V.
        k_norm: the layers' K norm weights, ``[layers, head_dim]``.
        eps: of the K norm.
        rope: the drafter's rotary embedding.
    """

    def __init__(self, stacked: nn.Module, k_norm: mx.array, eps: float, rope: RoPE):
        self._stacked = stacked
        # The rotation is linear, so its amplitude may as well scale what goes into it.
        self._k_norm = k_norm.astype(mx.float32) * rope.amplitude
        mx.eval(self._k_norm)
        self._eps = eps
        self._rope = rope
        self._unbuilt: frozenset[PathName] = frozenset()

    def warm_up(self, dtype: mx.Dtype) -> None:
        """Compile on Metal what calls with ``c`` of this dtype need; elsewhere do nothing.

        A kernel that cannot be built is warned of, and never asked for again.
        """
        self._unbuilt = warm_up(
            dtype,
            self._stacked,
            self._k_norm,
            self._rope.periods,
            eps=self._eps,
            traditional=self._rope.traditional,
        )

    def path(self, rows: int, dtype: mx.Dtype) -> Path:
        """How a call with ``rows`` rows in all, of this dtype, is computed, and why so."""
        path = choose_path(
            rows, dtype, self._stacked, self._k_norm, self._rope.periods, self._rope.traditional
        )
        if path.name in self._unbuilt:
            return Path("plain", f"the kernel context_{path.name} cannot be built here")
        return path

    def __call__(self, c: mx.array, offset: mx.array) -> tuple[mx.array, mx.array]:
        """Context keys and values of rows at positions ``offset + row``.

        Args:
            c: ``[B, n, hidden]``, already through ``fc`` and ``hidden_norm``.
            offset: ``[B]`` int32.

        Returns:
            Keys and values, each ``[layers, B, kv_heads, n, head_dim]`` in the dtype of ``c``.
        """
        return context_kv(
            c,
            self._stacked,
            self._k_norm,
            self._rope.periods,
            offset,
            eps=self._eps,
            traditional=self._rope.traditional,
            path=self.path(c.shape[0] * c.shape[1], c.dtype).name,
        )


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
