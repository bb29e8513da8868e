"""Context K/V of a prefill chunk: one matrix product, then norm, RoPE and layout in one launch."""

import mlx.core as mx
import mlx.nn as nn

from .context_shared import Geometry
from .metal import SIMD, SIMDGROUPS, metal_kernel
from .norm_rope import NORM_ROPE

# A simdgroup takes one head of one row. It reads and writes each value once.
_SOURCE = """
  const uint lane = thread_index_in_simdgroup;
  const int batch = products_shape[0];
  const int length = products_shape[1];
  const uint item = threadgroup_position_in_grid.x * SIMDGROUPS + simdgroup_index_in_threadgroup;
  constexpr uint SLOTS = LAYERS * 2 * KV_HEADS;         // layer, then K or V, then head
  if (item >= uint(batch * length) * SLOTS) {
    return;                                             // all lanes alike
  }
  const uint slot = item % SLOTS;
  const uint head = slot % KV_HEADS;
  const bool is_value = (slot / KV_HEADS) % 2 == 1;
  const uint layer = slot / (2 * KV_HEADS);
  const int r = int(item / SLOTS);
  const int b = r / length;
  const int m = r % length;
  float x[D / 32];
  UNROLL
  for (int i = 0; i < D / 32; ++i) {
    x[i] = float(products[size_t(item) * D + lane + 32 * i]);
  }
  if (!is_value) {
    norm_rope<T, D>(x, k_norm + layer * D, periods, eps, float(offset[b] + m), lane);
  }
  const size_t row = (size_t(layer * batch + b) * KV_HEADS + head) * length + m;
  device T* to = (is_value ? values : keys) + row * D;
  UNROLL
  for (int i = 0; i < D / 32; ++i) {
    to[lane + 32 * i] = T(x[i]);
  }
"""


def context_epilogue(
    c: mx.array,
    projection: nn.Module,
    k_norm: mx.array,
    periods: mx.array,
    offset: mx.array,
    eps: float,
) -> tuple[mx.array, mx.array]:
    """``context_plain`` for any number of rows; arguments and results are the same.

    The caller has checked that the kernel supports them (``context_kv.obstacle``).
    """
    layers, kv_heads, head_dim, _ = Geometry.of(projection, k_norm)
    products = projection(c)
    kernel = metal_kernel(
        "dflash_context_epilogue",
        ["products", "k_norm", "periods", "offset", "eps"],
        ["keys", "values"],
        _SOURCE,
        NORM_ROPE,
    )
    B, n, _ = c.shape
    threads = SIMD * SIMDGROUPS
    groups = -(-B * n * layers * 2 * kv_heads // SIMDGROUPS)
    keys, values = kernel(
        inputs=[products, k_norm, periods, offset, eps],
        template=[
            ("T", c.dtype),
            ("LAYERS", layers),
            ("KV_HEADS", kv_heads),
            ("D", head_dim),
            ("SIMDGROUPS", SIMDGROUPS),
        ],
        grid=(groups * threads, 1, 1),
        threadgroup=(threads, 1, 1),
        output_shapes=[(layers, B, kv_heads, n, head_dim)] * 2,
        output_dtypes=[c.dtype] * 2,
    )
    return keys, values
