"""What the context K/V kernels share: geometry, pieces of their source, and one launch.

A threadgroup of the kernels that project makes one head of one layer, K or V, for all rows: it
gathers the head's products in ``tile``, and then each simdgroup finishes whole rows of it.
"""

from typing import NamedTuple

import mlx.core as mx
import mlx.nn as nn

from .metal import SIMD, SIMDGROUPS, metal_kernel
from .norm_rope import NORM_ROPE


class Geometry(NamedTuple):
    """Sizes of a stacked context projection."""

    layers: int
    kv_heads: int
    head_dim: int
    hidden: int

    @classmethod
    def of(cls, projection: nn.Module, k_norm: mx.array) -> "Geometry":
        """Read off the weights.

        Args:
            projection: ``nn.Linear`` or ``nn.QuantizedLinear`` of
                ``layers * 2 * kv_heads * head_dim`` outputs.
            k_norm: ``[layers, head_dim]``.
        """
        layers, head_dim = k_norm.shape
        outputs, columns = projection.weight.shape
        if isinstance(projection, nn.QuantizedLinear):
            columns = columns * 32 // projection.bits
        return cls(layers, outputs // (2 * layers * head_dim), head_dim, columns)


# LOAD_WEIGHTS(row, k, w) puts the weights [row, k : k + 16] into w in float32.
_LOAD_DENSE = """
template <typename T, int H>
inline void load_weights(const device T* weight, size_t row, int k, thread float* w) {
  const device metal::vec<T, 4>* from = (const device metal::vec<T, 4>*)(weight + row * H + k);
  UNROLL
  for (int i = 0; i < 4; ++i) {
    const metal::vec<T, 4> four = from[i];
    UNROLL
    for (int j = 0; j < 4; ++j) {
      w[4 * i + j] = float(four[j]);
    }
  }
}
#define LOAD_WEIGHTS(row, k, w) load_weights<T, H>(weight, row, k, w)
"""

# MLX's affine format: the first weight in the lowest bits of a word, weight = q * scale + bias.
_LOAD_AFFINE = """
template <typename T, int H, int BITS, int GROUP>
inline void load_weights(
    const device uint32_t* weight,
    const device T* scales,
    const device T* biases,
    size_t row,
    int k,
    thread float* w) {
  constexpr int WORDS = BITS / 2;
  constexpr int PER_WORD = 32 / BITS;
  const size_t first = row * H + k;
  const metal::vec<uint, WORDS> words =
      *(const device metal::vec<uint, WORDS>*)(weight + first / PER_WORD);
  const float scale = float(scales[first / GROUP]);
  const float bias = float(biases[first / GROUP]);
  UNROLL
  for (int i = 0; i < WORDS; ++i) {
    UNROLL
    for (int j = 0; j < PER_WORD; ++j) {
      const uint q = (words[i] >> (BITS * j)) & ((1u << BITS) - 1u);
      w[PER_WORD * i + j] = metal::fma(float(q), scale, bias);
    }
  }
}
#define LOAD_WEIGHTS(row, k, w) load_weights<T, H, BITS, GROUP>(weight, scales, biases, row, k, w)
"""

_BEGIN = """
  const uint lane = thread_index_in_simdgroup;
  const int group = int(simdgroup_index_in_threadgroup);
  const uint slot = threadgroup_position_in_grid.y;     // layer, then K or V, then head
  const uint head = slot % KV_HEADS;
  const bool is_value = (slot / KV_HEADS) % 2 == 1;
  const uint layer = slot / (2 * KV_HEADS);
  const int batch = context_shape[0];
  const int length = context_shape[1];
  const int rows = batch * length;
  constexpr int STRIDE = D + 4;                         // of the tile: rows begin in other banks
"""

_FINISH = """
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int r = group; r < rows; r += SIMDGROUPS) {
    float x[D / 32];
    UNROLL
    for (int i = 0; i < D / 32; ++i) {
      x[i] = float(T(tile[r * STRIDE + lane + 32 * i]));
    }
    const int b = r / length;
    const int m = r % length;
    if (!is_value) {
      const float position = float(offset[b] + m);
      norm_rope<T, D>(x, k_norm + layer * D, periods, eps, position, lane);
    }
    const size_t row = (size_t(layer * batch + b) * KV_HEADS + head) * length + m;
    device T* to = (is_value ? values : keys) + row * D;
    UNROLL
    for (int i = 0; i < D / 32; ++i) {
      to[lane + 32 * i] = T(x[i]);
    }
  }
"""


def launch_projection(
    variant: str,
    body: str,
    template: list[tuple[str, int]],
    c: mx.array,
    projection: nn.Module,
    k_norm: mx.array,
    periods: mx.array,
    offset: mx.array,
    eps: float,
) -> tuple[mx.array, mx.array]:
    """Launch a kernel that projects and finishes, one threadgroup a layer, K or V, and head.

    Args:
        variant: names the kernel.
        body: source that fills ``tile [rows, STRIDE]`` (threadgroup, float32) with the products.
        template: what ``body`` is specialised for, beyond what all kernels know.
        c, projection, k_norm, periods, offset, eps: see ``context_kv``.

    Returns:
        Keys and values, each ``[layers, B, kv_heads, n, head_dim]`` in the dtype of ``c``.
    """
    layers, kv_heads, head_dim, hidden = Geometry.of(projection, k_norm)
    weights = {"weight": projection.weight}
    load, kind = _LOAD_DENSE, "dense"
    if isinstance(projection, nn.QuantizedLinear):
        load, kind = _LOAD_AFFINE, "affine"
        weights |= {"scales": projection.scales, "biases": projection.biases}
        template = [*template, ("BITS", projection.bits), ("GROUP", projection.group_size)]
    kernel = metal_kernel(
        f"dflash_context_{variant}_{kind}",
        ["context", *weights, "k_norm", "periods", "offset", "eps"],
        ["keys", "values"],
        _BEGIN + body + _FINISH,
        NORM_ROPE + load,
    )
    B, n, _ = c.shape
    threads = SIMD * SIMDGROUPS
    keys, values = kernel(
        inputs=[c, *weights.values(), k_norm, periods, offset, eps],
        template=[
            ("T", c.dtype),
            ("KV_HEADS", kv_heads),
            ("D", head_dim),
            ("H", hidden),
            ("SIMDGROUPS", SIMDGROUPS),
            *template,
        ],
        grid=(threads, layers * 2 * kv_heads, 1),
        threadgroup=(threads, 1, 1),
        output_shapes=[(layers, B, kv_heads, n, head_dim)] * 2,
        output_dtypes=[c.dtype] * 2,
    )
    return keys, values
