"""Context K/V in plain MLX: what the kernels equal, and what runs wherever they cannot."""

import mlx.core as mx
import mlx.nn as nn

from .norm_rope import norm_rope


def context_plain(
    c: mx.array,
    projection: nn.Module,
    k_norm: mx.array,
    periods: mx.array,
    offset: mx.array,
    eps: float,
    traditional: bool = False,
) -> tuple[mx.array, mx.array]:
    """``K = rope(k_norm(W_k c))`` and ``V = W_v c`` of all layers, by one product.

    Arguments and results are those of ``context_kv``; any linear layer, head size, rotated part
    and device will do.
    """
    B, n, _ = c.shape
    layers, head_dim = k_norm.shape
    kv = projection(c).reshape(B, n, layers, 2, -1, head_dim)
    # Rope has one offset a batch row, so the layers pass as further heads of their row.
    keys = norm_rope(kv[:, :, :, 0], k_norm[:, None], periods, offset, eps, traditional)
    keys = keys.reshape(B, layers, -1, n, head_dim).transpose(1, 0, 2, 3, 4)
    return keys, kv[:, :, :, 1].transpose(2, 0, 3, 1, 4)
