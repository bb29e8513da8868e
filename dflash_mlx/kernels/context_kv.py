"""Context K/V of all drafter layers, by the fastest way that fits the call."""

from functools import partial
from typing import Literal

import mlx.core as mx
import mlx.nn as nn

from . import norm_rope
from .context_epilogue import context_epilogue
from .context_fragments import MAX_ROWS as FRAGMENT_ROWS
from .context_fragments import context_fragments
from .context_plain import context_plain
from .context_rows import MAX_ROWS as DOT_ROWS
from .context_rows import context_rows
from .context_shared import Geometry
from .metal import on_metal
from .path import Path, can_build

PathName = Literal["rows", "fragments", "epilogue", "plain"]

# Batch and rows that reach every pipeline. MLX passes offsets of fewer than eight elements in
# another address space, which makes other pipelines of the same kernels.
_WARM_UP = (
    *((1, n) for n in (1, DOT_ROWS + 1, FRAGMENT_ROWS // 2 + 1, FRAGMENT_ROWS + 1)),
    *((8, n) for n in (1, 3, 5)),
)

_KERNELS = {"rows": context_rows, "fragments": context_fragments, "epilogue": context_epilogue}


def context_kv(
    c: mx.array,
    projection: nn.Module,
    k_norm: mx.array,
    periods: mx.array,
    offset: mx.array,
    *,
    eps: float,
    traditional: bool = False,
    path: PathName | None = None,
) -> tuple[mx.array, mx.array]:
    """``K = rope(k_norm(W_k c))`` and ``V = W_v c`` of all layers at once.

    Args:
        c: ``[B, n, hidden]`` float32, float16 or bfloat16, through ``fc`` and ``hidden_norm``.
        projection: ``nn.Linear`` or ``nn.QuantizedLinear`` from ``hidden`` to
            ``layers * 2 * kv_heads * head_dim``, K before V in each layer.
        k_norm: the layers' K norm weights, ``[layers, head_dim]`` float32.
        periods: ``[rotated / 2]`` float32, the inverse of the angle that one position adds to each
            plane; what ``mx.fast.rope`` takes as ``freqs``.
        offset: ``[B]`` int32, the position of each batch row's first row.
        eps: of the K norm.
        traditional: whether planes are neighbouring values rather than those of two halves.
        path: computed this way; None leaves it to :func:`choose_path`.

    Returns:
        Keys and values, each ``[layers, B, kv_heads, n, head_dim]`` in the dtype of ``c``.
    """
    if path is None:
        rows = c.shape[0] * c.shape[1]
        path = choose_path(rows, c.dtype, projection, k_norm, periods, traditional).name
    if path == "plain":
        return context_plain(c, projection, k_norm, periods, offset, eps, traditional)
    return _KERNELS[path](c, projection, k_norm, periods, offset, eps)


def choose_path(
    rows: int,
    dtype: mx.Dtype,
    projection: nn.Module,
    k_norm: mx.array,
    periods: mx.array,
    traditional: bool = False,
) -> Path:
    """The path of a call with ``rows`` rows in all, on the default device; see context_kv.

    One launch for the rows of a round; a matrix product and one launch for a prefill chunk, whose
    product is large enough for MLX's own tiles; plain MLX for everything else.
    """
    if not on_metal():
        return Path("plain", "not on a Metal device")
    if why := obstacle(dtype, projection, k_norm, periods, traditional):
        return Path("plain", why)
    if rows <= DOT_ROWS:
        return Path("rows", f"one launch for up to {DOT_ROWS} rows")
    if rows <= FRAGMENT_ROWS:
        return Path("fragments", f"one launch for up to {FRAGMENT_ROWS} rows")
    return Path("epilogue", f"a product and one launch for more than {FRAGMENT_ROWS} rows")


def obstacle(
    dtype: mx.Dtype,
    projection: nn.Module,
    k_norm: mx.array,
    periods: mx.array,
    traditional: bool = False,
) -> str | None:
    """What the kernels do not support about these arguments of context_kv, or None."""
    if type(projection) not in (nn.Linear, nn.QuantizedLinear):
        return f"the projection is a {type(projection).__name__}"
    if "bias" in projection:
        return "the projection has a bias"
    size = Geometry.of(projection, k_norm)
    if why := norm_rope.obstacle(dtype, size.head_dim, 2 * periods.size, traditional):
        return why
    if size.hidden % 64 != 0:
        return f"hidden is {size.hidden}, not a multiple of 64"
    return _weight_obstacle(dtype, projection)


def warm_up(
    dtype: mx.Dtype,
    projection: nn.Module,
    k_norm: mx.array,
    periods: mx.array,
    *,
    eps: float,
    traditional: bool = False,
) -> frozenset[PathName]:
    """Compile every pipeline that calls with these arguments may need, by running each once.

    Returns:
        The paths that cannot be built on this machine. A warning has named each.
    """
    unbuilt = set()
    hidden = Geometry.of(projection, k_norm).hidden
    for batch, n in _WARM_UP:
        name = choose_path(batch * n, dtype, projection, k_norm, periods, traditional).name
        if name == "plain" or name in unbuilt:
            continue
        c, offset = mx.zeros((batch, n, hidden), dtype), mx.zeros(batch, mx.int32)
        call = partial(_KERNELS[name], c, projection, k_norm, periods, offset, eps)
        if not can_build(f"context_{name}", call):
            unbuilt.add(name)
    return frozenset(unbuilt)


def _weight_obstacle(dtype: mx.Dtype, projection: nn.Module) -> str | None:
    if isinstance(projection, nn.Linear):
        weights = projection.weight.dtype
        return None if weights == dtype else f"weights are {weights} and activations {dtype}"
    bits, group = projection.bits, projection.group_size
    if projection.mode != "affine" or bits not in (4, 8) or group not in (32, 64, 128):
        return f"weights are quantized as {projection.mode}, {bits} bits in groups of {group}"
    scales = projection.scales.dtype
    return None if scales == dtype else f"scales are {scales} and activations {dtype}"
