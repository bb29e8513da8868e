"""Context K/V of one to four rows in one launch, by dot products.

A simdgroup takes four weight rows at a time; its lanes split the hidden dimension. Every weight is
read once, in runs of sixteen a lane.
"""

import mlx.core as mx

from .context_shared import KV, ContextLayers, launch_projection

MAX_ROWS = 4

# One pipeline serves 1 to 4 rows: what is past `rows` is skipped by branches that all lanes take
# alike, so that the accumulators stay in registers.
_BODY = """
  constexpr int ROWS = 4;                               // weight rows a pass
  threadgroup float tile[MAX_ROWS * STRIDE];
  for (int n = group * ROWS; n < D; n += SIMDGROUPS * ROWS) {
    float sums[ROWS * MAX_ROWS];
    UNROLL
    for (int i = 0; i < ROWS * MAX_ROWS; ++i) {
      sums[i] = 0.0f;
    }
    for (int k = int(lane) * 16; k < H; k += 32 * 16) {
      float x[MAX_ROWS * 16];
      UNROLL
      for (int m = 0; m < MAX_ROWS; ++m) {
        if (m < rows) {
          const device vec<T, 4>* from = (const device vec<T, 4>*)(context + m * H + k);
          UNROLL
          for (int i = 0; i < 4; ++i) {
            const vec<T, 4> four = from[i];
            UNROLL
            for (int j = 0; j < 4; ++j) {
              x[m * 16 + 4 * i + j] = float(four[j]);
            }
          }
        }
      }
      UNROLL
      for (int r = 0; r < ROWS; ++r) {
        float w[16];
        LOAD_WEIGHTS(size_t(slot) * D + n + r, k, w);
        UNROLL
        for (int m = 0; m < MAX_ROWS; ++m) {
          if (m < rows) {
            UNROLL
            for (int i = 0; i < 16; ++i) {
              sums[r * MAX_ROWS + m] = fma(w[i], x[m * 16 + i], sums[r * MAX_ROWS + m]);
            }
          }
        }
      }
    }
    UNROLL
    for (int r = 0; r < ROWS; ++r) {
      UNROLL
      for (int m = 0; m < MAX_ROWS; ++m) {
        const float sum = simd_sum(sums[r * MAX_ROWS + m]);
        if (lane == 0) {
          tile[m * STRIDE + n + r] = sum;
        }
      }
    }
  }
"""


def context_rows(c: mx.array, offset: mx.array, layers: ContextLayers) -> KV:
    """``context_plain`` for ``B * n <= 4``, where the kernels support the layers."""
    return launch_projection("rows", _BODY, [("MAX_ROWS", MAX_ROWS)], c, offset, layers)
