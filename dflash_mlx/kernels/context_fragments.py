"""Context K/V of up to 32 rows in one launch, by 8 x 8 simdgroup matrices.

The product is made transposed, outputs by rows, so that a weight is read once and no row beyond
the next multiple of eight is computed. Simdgroups share a head's outputs and the hidden dimension
between them; the parts of the latter are added up in threadgroup memory.
"""

import mlx.core as mx

from .context_shared import KV, ContextLayers, launch_projection

MAX_ROWS = 32

# Within 64 hidden columns, column c of a fragment at step s stands for 8 c + s, for the weights and
# for the rows alike. So each lane reads 16 consecutive weights of one output and 8 consecutive
# values of two rows, and quantized weights unpack in registers with one scale.
# The lane's place in a fragment is the one MLX's steel kernels rely on (BaseMMAFrag::get_coord).
# Fragments are float32 as in steel, so bfloat16 needs no matrix support of its own.
_BODY = """
  constexpr int PARTS = SIMDGROUPS / SLICES;            // simdgroups that share the features
  constexpr int TILES = D / 8 / PARTS;                  // of eight features, each simdgroup's own
  constexpr int SIZE = 8 * BLOCKS * STRIDE;
  threadgroup float tile[SLICES / 2 * SIZE];
  const int slice = group / PARTS;
  const int n0 = (group % PARTS) * (TILES * 8);
  const int quad = int(lane) / 4;
  const int frag_row = (quad & 4) + (int(lane) / 2) % 4;
  const int frag_col = (quad & 2) * 2 + (int(lane) % 2) * 2;
  const int blocks = (rows + 7) / 8;

  simdgroup_matrix<float, 8, 8> sums[TILES * BLOCKS];
  UNROLL
  for (int i = 0; i < TILES * BLOCKS; ++i) {
    sums[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  for (int k = slice * 64; k < H; k += SLICES * 64) {
    float2 x[8 * BLOCKS];
    UNROLL
    for (int b = 0; b < BLOCKS; ++b) {
      if (b < blocks) {
        // Rows past the last are computed from the last and never stored.
        const int m0 = metal::min(8 * b + frag_col, rows - 1);
        const int m1 = metal::min(8 * b + frag_col + 1, rows - 1);
        const device vec<T, 4>* from0 =
            (const device vec<T, 4>*)(context + m0 * H + k + 8 * frag_row);
        const device vec<T, 4>* from1 =
            (const device vec<T, 4>*)(context + m1 * H + k + 8 * frag_row);
        UNROLL
        for (int i = 0; i < 2; ++i) {
          const vec<T, 4> four0 = from0[i];
          const vec<T, 4> four1 = from1[i];
          UNROLL
          for (int j = 0; j < 4; ++j) {
            x[8 * b + 4 * i + j] = float2(float(four0[j]), float(four1[j]));
          }
        }
      }
    }
    UNROLL
    for (int n = 0; n < TILES; ++n) {
      float w[16];
      LOAD_WEIGHTS(size_t(slot) * D + n0 + 8 * n + frag_row, k + 8 * frag_col, w);
      UNROLL
      for (int s = 0; s < 8; ++s) {
        simdgroup_matrix<float, 8, 8> left, right;
        left.thread_elements()[0] = w[s];
        left.thread_elements()[1] = w[8 + s];
        UNROLL
        for (int b = 0; b < BLOCKS; ++b) {
          if (b < blocks) {
            right.thread_elements()[0] = x[8 * b + s].x;
            right.thread_elements()[1] = x[8 * b + s].y;
            simdgroup_multiply_accumulate(
                sums[n * BLOCKS + b], left, right, sums[n * BLOCKS + b]);
          }
        }
      }
    }
  }

  // The upper half of the slices hands its sums to the lower, until one slice has them all; it
  // then leaves them in the tile for everyone.
  for (int half_way = SLICES / 2; half_way >= 1; half_way /= 2) {
    if (slice >= half_way && slice < 2 * half_way) {
      threadgroup float* part = tile + (slice - half_way) * SIZE;
      UNROLL
      for (int n = 0; n < TILES; ++n) {
        UNROLL
        for (int b = 0; b < BLOCKS; ++b) {
          threadgroup float* to = part + (8 * b + frag_col) * STRIDE + n0 + 8 * n + frag_row;
          to[0] = sums[n * BLOCKS + b].thread_elements()[0];
          to[STRIDE] = sums[n * BLOCKS + b].thread_elements()[1];
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (slice < half_way) {
      threadgroup float* part = tile + slice * SIZE;
      UNROLL
      for (int n = 0; n < TILES; ++n) {
        UNROLL
        for (int b = 0; b < BLOCKS; ++b) {
          threadgroup float* at = part + (8 * b + frag_col) * STRIDE + n0 + 8 * n + frag_row;
          sums[n * BLOCKS + b].thread_elements()[0] += at[0];
          sums[n * BLOCKS + b].thread_elements()[1] += at[STRIDE];
          if (half_way == 1) {
            at[0] = sums[n * BLOCKS + b].thread_elements()[0];
            at[STRIDE] = sums[n * BLOCKS + b].thread_elements()[1];
          }
        }
      }
    }
    if (half_way > 1) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
  }
"""


def context_fragments(c: mx.array, offset: mx.array, layers: ContextLayers) -> KV:
    """``context_plain`` for ``B * n <= 32``, where the kernels support the layers."""
    # Two pipelines, for up to 16 and up to 32 rows. The larger one holds twice the sums, in
    # registers and in threadgroup memory, so fewer simdgroups split the hidden dimension.
    blocks, slices = (2, 4) if c.shape[0] * c.shape[1] <= 16 else (4, 2)
    template = [("BLOCKS", blocks), ("SLICES", slices)]
    return launch_projection("fragments", _BODY, template, c, offset, layers)
