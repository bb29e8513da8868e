"""Context K/V of all drafter layers, by the fastest way that fits the call."""

from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import mlx.core as mx
import mlx.nn as nn

from .context_epilogue import context_epilogue
from .context_fragments import MAX_ROWS as FRAGMENT_ROWS
from .context_fragments import context_fragments
from .context_rows import MAX_ROWS as DOT_ROWS
from .context_rows import context_rows
from .context_shared import KV, ContextLayers
from .route import Route, can_build

RouteName = Literal["rows", "fragments", "epilogue", "plain"]

# Batch and block that reach every pipeline. MLX passes offsets of fewer than eight elements in
# another address space, which makes other pipelines of the same kernels.
_WARM_UP = (
    *((1, n) for n in (1, DOT_ROWS + 1, FRAGMENT_ROWS // 2 + 1, FRAGMENT_ROWS + 1)),
    *((8, n) for n in (1, 3, 5)),
)


@dataclass(eq=False)
class ContextKV(ContextLayers):
    """``K = rope(k_norm(W_k c))`` and ``V = W_v c`` of all layers at once."""

    _unbuilt: set[str] = field(default_factory=set, init=False)

    def __call__(self, c: mx.array, offset: mx.array, route: RouteName | None = None) -> KV:
        """Context keys and values of what follows ``offset``.

        Args:
            c: ``[B, n, hidden]`` float32, float16 or bfloat16, through ``fc`` and ``hidden_norm``.
            offset: ``[B]`` int32, the first position of each batch row.
            route: computed this way; None leaves it to :meth:`route`.

        Returns:
            Keys and values, each ``[layers, B, kv_heads, n, head_dim]`` in the dtype of ``c``.
        """
        name = route or self.route(c.shape[0] * c.shape[1], c.dtype).name
        return _ROUTES[name](c, offset, self)

    def route(self, positions: int, dtype: mx.Dtype) -> Route:
        """How a call with so many ``positions``, all batch rows together, is computed, and why.

        One launch for a round; a matrix product and one launch for a prefill chunk, whose product
        is large enough for MLX's own tiles; plain MLX for everything else.

        Args:
            positions: ``B * n``.
            dtype: of ``c``.
        """
        if why := self._obstacle(dtype):
            return Route("plain", why)
        if positions <= DOT_ROWS:
            route = Route("rows", f"one launch for up to {DOT_ROWS} rows")
        elif positions <= FRAGMENT_ROWS:
            route = Route("fragments", f"one launch for up to {FRAGMENT_ROWS} rows")
        else:
            more = f"more than {FRAGMENT_ROWS} rows"
            route = Route("epilogue", f"a product and one launch for {more}")
        if route.name in self._unbuilt:
            return Route("plain", f"the kernel context_{route.name} cannot be built here")
        return route

    def warm_up(self, dtype: mx.Dtype) -> None:
        """Compile every pipeline that calls with this dtype may need, by running each once.

        A kernel that cannot be built is warned of, and never asked for again.
        """
        for batch, n in _WARM_UP:
            name = self.route(batch * n, dtype).name
            if name == "plain":
                continue
            c, offset = mx.zeros((batch, n, self.hidden), dtype), mx.zeros(batch, mx.int32)
            if not can_build(f"context_{name}", partial(self, c, offset, name)):
                self._unbuilt.add(name)

    def _obstacle(self, dtype: mx.Dtype) -> str | None:
        """Why the kernels cannot work for these layers here, or None."""
        if why := self.norm_rope.obstacle(dtype, self.head_dim):
            return why
        if type(self.projection) not in (nn.Linear, nn.QuantizedLinear):
            return f"the projection is a {type(self.projection).__name__}"
        if "bias" in self.projection:
            return "the projection has a bias"
        if self.hidden % 64 != 0:
            return f"hidden is {self.hidden}, not a multiple of 64"
        return _weight_obstacle(dtype, self.projection)


def _weight_obstacle(dtype: mx.Dtype, projection: nn.Module) -> str | None:
    if isinstance(projection, nn.Linear):
        weights = projection.weight.dtype
        return None if weights == dtype else f"weights are {weights} and activations {dtype}"
    bits, group = projection.bits, projection.group_size
    if projection.mode != "affine" or bits not in (4, 8) or group not in (32, 64, 128):
        return f"weights are quantized as {projection.mode}, {bits} bits in groups of {group}"
    scales = projection.scales.dtype
    return None if scales == dtype else f"scales are {scales} and activations {dtype}"


def context_plain(c: mx.array, offset: mx.array, layers: ContextLayers) -> KV:
    """In plain MLX, by one product, what the kernels equal and what runs wherever they cannot.

    Any linear layer, head size, rotated part and device will do.
    """
    B, n, _ = c.shape
    kv = layers.projection(c).reshape(B, n, layers.count, 2, -1, layers.head_dim)
    # Rope has one offset a batch row, so the layers pass as further heads of their row.
    keys = layers.norm_rope(kv[:, :, :, 0], layers.k_norm[:, None], offset)
    keys = keys.reshape(B, layers.count, -1, n, layers.head_dim).transpose(1, 0, 2, 3, 4)
    return keys, kv[:, :, :, 1].transpose(2, 0, 3, 1, 4)


_ROUTES = {
    "rows": context_rows,
    "fragments": context_fragments,
    "epilogue": context_epilogue,
    "plain": context_plain,
}
