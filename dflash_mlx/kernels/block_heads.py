"""A block's queries, keys and values for attention, in one launch after their products."""

from typing import Literal

import mlx.core as mx

from .metal import SIMD, SIMDGROUPS, metal_kernel
from .norm_rope import NORM_ROPE, NormRope
from .route import Route, can_build

Heads = tuple[mx.array, mx.array, mx.array]

# A simdgroup takes one head of one row. It reads and writes each value once.
_SOURCE = """
  const uint lane = thread_index_in_simdgroup;
  const int batch = q_products_shape[0];
  const int length = q_products_shape[1];
  const uint item = threadgroup_position_in_grid.x * SIMDGROUPS + simdgroup_index_in_threadgroup;
  constexpr uint SLOTS = HEADS + 2 * KV_HEADS;          // heads of queries, of keys, of values
  if (item >= uint(batch * length) * SLOTS) {
    return;                                             // all lanes alike
  }
  const uint slot = item % SLOTS;
  const uint r = item / SLOTS;
  const uint b = r / uint(length);
  const uint m = r % uint(length);
  const bool is_query = slot < HEADS;
  const bool is_value = slot >= HEADS + KV_HEADS;
  const device T* from = is_query
      ? q_products + (size_t(r) * HEADS + slot) * D
      : kv_products + (size_t(r) * (2 * KV_HEADS) + slot - HEADS) * D;
  float x[D / 32];
  UNROLL
  for (int i = 0; i < D / 32; ++i) {
    x[i] = float(from[lane + 32 * i]);
  }
  if (!is_value) {
    const float position = float(offset[b] + int(m));
    norm_rope<T, D>(x, norms + (is_query ? 0 : D), periods, eps, position, lane);
  }
  const uint heads = is_query ? HEADS : KV_HEADS;
  const uint head = is_query ? slot : (slot - HEADS) % KV_HEADS;
  device T* to = (is_query ? queries : is_value ? values : keys)
      + (size_t(b * heads + head) * length + m) * D;
  UNROLL
  for (int i = 0; i < D / 32; ++i) {
    to[lane + 32 * i] = T(x[i]);
  }
"""


class BlockHeads:
    """``rope(q_norm(q))``, ``rope(k_norm(k))`` and ``v`` of one layer, laid out for attention.

    Args:
        norms: the weights of Q norm and K norm, ``[2, head_dim]`` float32.
        norm_rope: of queries and keys.
    """

    def __init__(self, norms: mx.array, norm_rope: NormRope):
        self._norms = norms
        self._norm_rope = norm_rope
        self._built = True

    def __call__(
        self,
        q: mx.array,
        kv: mx.array,
        offset: mx.array,
        route: Literal["fused", "plain"] | None = None,
    ) -> Heads:
        """Queries, keys and values of a block's products.

        Args:
            q: the query products, ``[B, n, heads * head_dim]`` float32, float16 or bfloat16.
            kv: the key products, then the value products, ``[B, n, 2 * kv_heads * head_dim]``.
            offset: ``[B]`` int32, the first position of each batch row.
            route: computed this way; None leaves it to :meth:`route`.

        Returns:
            Queries ``[B, heads, n, head_dim]``, keys and values ``[B, kv_heads, n, head_dim]``.
        """
        if (route or self.route(q.dtype).name) == "plain":
            return self._plain(q, kv, offset)
        return self._fused(q, kv, offset)

    def route(self, dtype: mx.Dtype) -> Route:
        """How products of this dtype are treated on the default device, and why so."""
        if not self._built:
            return Route("plain", "the kernel block_heads cannot be built here")
        if why := self._norm_rope.obstacle(dtype, self._norms.shape[1]):
            return Route("plain", why)
        return Route("fused", "one launch")

    def warm_up(self, dtype: mx.Dtype, heads: int, kv_heads: int) -> None:
        """Compile the pipelines that products of this dtype need, by running each once.

        If that fails, a warning says so, and plain MLX runs from now on.
        """
        if self.route(dtype).name == "plain":
            return
        head_dim = self._norms.shape[1]

        def call() -> list[mx.array]:
            outputs = []
            # Offsets of fewer than eight elements have another address space, so another pipeline.
            for batch in (1, 8):
                q, kv = (
                    mx.zeros((batch, 1, width * head_dim), dtype) for width in (heads, 2 * kv_heads)
                )
                outputs += self._fused(q, kv, mx.zeros(batch, mx.int32))
            return outputs

        self._built = can_build("block_heads", call)

    def _plain(self, q: mx.array, kv: mx.array, offset: mx.array) -> Heads:
        """In plain MLX, for any head size, rotated part and device."""
        B, n, _ = q.shape
        q = q.reshape(B, n, -1, self._norms.shape[1])
        k, v = mx.split(kv.reshape(B, n, -1, self._norms.shape[1]), 2, axis=2)
        q, k = (
            self._norm_rope(x, norm, offset) for x, norm in zip((q, k), self._norms, strict=True)
        )
        return q, k, v.transpose(0, 2, 1, 3)

    def _fused(self, q: mx.array, kv: mx.array, offset: mx.array) -> Heads:
        B, n, width = q.shape
        head_dim = self._norms.shape[1]
        heads, kv_heads = width // head_dim, kv.shape[2] // (2 * head_dim)
        kernel = metal_kernel(
            "dflash_block_heads",
            ["q_products", "kv_products", "norms", "periods", "offset", "eps"],
            ["queries", "keys", "values"],
            _SOURCE,
            NORM_ROPE,
        )
        groups = -(-B * n * (heads + 2 * kv_heads) // SIMDGROUPS)
        queries, keys, values = kernel(
            inputs=[q, kv, self._norms, self._norm_rope.periods, offset, self._norm_rope.eps],
            template=[
                ("T", q.dtype),
                ("HEADS", heads),
                ("KV_HEADS", kv_heads),
                ("D", head_dim),
                ("SIMDGROUPS", SIMDGROUPS),
            ],
            grid=(groups * SIMD * SIMDGROUPS, 1, 1),
            threadgroup=(SIMD * SIMDGROUPS, 1, 1),
            output_shapes=[(B, h, n, head_dim) for h in (heads, kv_heads, kv_heads)],
            output_dtypes=[q.dtype] * 3,
        )
        return queries, keys, values
