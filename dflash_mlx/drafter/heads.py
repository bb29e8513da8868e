"""A block's own queries, keys and values, normed and rotated."""

import mlx.core as mx

from ..kernels.block_heads import block_heads, choose_path, warm_up
from ..kernels.path import Path
from .rope import RoPE


class BlockHeads:
    """``rope(q_norm(q))``, ``rope(k_norm(k))`` and ``v`` of one layer.

    Args:
        q_norm: weights of the Q norm, ``[head_dim]``.
        k_norm: weights of the K norm, ``[head_dim]``.
        eps: of the norms.
        rope: the drafter's rotary embedding.
    """

    def __init__(self, q_norm: mx.array, k_norm: mx.array, eps: float, rope: RoPE):
        # The rotation is linear, so its amplitude may as well scale what goes into it.
        self._norms = mx.stack([q_norm, k_norm]).astype(mx.float32) * rope.amplitude
        mx.eval(self._norms)
        self._eps = eps
        self._rope = rope
        self._built = True

    def warm_up(self, dtype: mx.Dtype, heads: int, kv_heads: int) -> None:
        """Compile on Metal what calls with products of this dtype need; elsewhere do nothing."""
        self._built = warm_up(
            dtype,
            heads,
            kv_heads,
            self._norms,
            self._rope.periods,
            eps=self._eps,
            traditional=self._rope.traditional,
        )

    def path(self, dtype: mx.Dtype) -> Path:
        """How products of this dtype are treated, and why so."""
        if not self._built:
            return Path("plain", "the kernel block_heads cannot be built here")
        return choose_path(dtype, self._norms, self._rope.periods, self._rope.traditional)

    def __call__(
        self, q: mx.array, kv: mx.array, offset: mx.array
    ) -> tuple[mx.array, mx.array, mx.array]:
        """Queries, keys and values for attention, at positions ``offset + row``.

        Args:
            q: ``[B, n, heads * head_dim]``.
            kv: ``[B, n, 2 * kv_heads * head_dim]``, K before V.
            offset: ``[B]`` int32.

        Returns:
            ``[B, heads, n, head_dim]``, and twice ``[B, kv_heads, n, head_dim]``.
        """
        return block_heads(
            q,
            kv,
            self._norms,
            self._rope.periods,
            offset,
            eps=self._eps,
            traditional=self._rope.traditional,
            path=self.path(q.dtype).name,
        )
