"""Context K/V of a prefill chunk: one matrix product, then norm, RoPE and layout in one launch."""

import mlx.core as mx

from .context_shared import KV, ContextLayers, launch
from .metal import SIMDGROUPS

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


def context_epilogue(c: mx.array, offset: mx.array, layers: ContextLayers) -> KV:
    """``context_plain`` for any number of positions, where the kernels support the layers."""
    heads = c.shape[0] * c.shape[1] * layers.count * 2 * layers.kv_heads
    return launch(
        "epilogue",
        _SOURCE,
        {"products": layers.projection(c)},
        [("LAYERS", layers.count)],
        (-(-heads // SIMDGROUPS), 1),
        c,
        offset,
        layers,
    )
