"""What the context K/V kernels share: the layers they work for, pieces of source, the launches.

A threadgroup of the kernels that project makes one head of one layer, K or V, for all rows: it
gathers the head's products in ``tile``, and then each simdgroup finishes whole rows of it.
"""

from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn

from .metal import SIMD, SIMDGROUPS, metal_kernel
from .norm_rope import NORM_ROPE, NormRope

KV = tuple[mx.array, mx.array]


@dataclass(eq=False)
class ContextLayers:
    """What makes context K/V of all drafter layers: ``rope(k_norm(W_k c))`` and ``W_v c``.

    Attributes:
        projection: linear, from ``hidden`` to ``layers * 2 * kv_heads * head_dim``, K before V in
            each layer.
        k_norm: the layers' K norm weights, ``[layers, head_dim]`` float32.
        norm_rope: of the keys.
    """

    projection: nn.Module
    k_norm: mx.array
    norm_rope: NormRope

    @property
    def count(self) -> int:
        """How many layers there are."""
        return self.k_norm.shape[0]

    @property
    def head_dim(self) -> int:
        return self.k_norm.shape[1]

    @property
    def kv_heads(self) -> int:
        return self.projection.weight.shape[0] // (2 * self.k_norm.size)

    @property
    def hidden(self) -> int:
        columns = self.projection.weight.shape[1]
        if isinstance(self.projection, nn.QuantizedLinear):
            return columns * 32 // self.projection.bits
        return columns


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
    offset: mx.array,
    layers: ContextLayers,
) -> KV:
    """Launch a kernel that projects and finishes, one threadgroup a layer, K or V, and head.

    Args:
        variant: names the kernel.
        body: source that fills ``tile [rows, STRIDE]`` (threadgroup, float32) with the products.
        template: what ``body`` is specialised for, beyond what all kernels know.
        c, offset, layers: see :class:`.context_kv.ContextKV`.
    """
    projection = layers.projection
    inputs = {"context": c, "weight": projection.weight}
    template = [("H", layers.hidden), *template]
    load, kind = _LOAD_DENSE, "dense"
    if isinstance(projection, nn.QuantizedLinear):
        load, kind = _LOAD_AFFINE, "affine"
        inputs |= {"scales": projection.scales, "biases": projection.biases}
        template += [("BITS", projection.bits), ("GROUP", projection.group_size)]
    source, groups = _BEGIN + body + _FINISH, (1, layers.count * 2 * layers.kv_heads)
    return launch(f"{variant}_{kind}", source, inputs, template, groups, c, offset, layers, load)


def launch(
    variant: str,
    source: str,
    inputs: dict[str, mx.array],
    template: list[tuple[str, int]],
    groups: tuple[int, int],
    c: mx.array,
    offset: mx.array,
    layers: ContextLayers,
    load: str = "",
) -> KV:
    """Launch a kernel of ``groups`` threadgroups that ends in the norm and RoPE of heads.

    Returns:
        Keys and values, each ``[layers, B, kv_heads, n, head_dim]`` in the dtype of ``c``.
    """
    norm_rope = layers.norm_rope
    inputs = inputs | {
        "k_norm": layers.k_norm,
        "periods": norm_rope.periods,
        "offset": offset,
        "eps": norm_rope.eps,
    }
    kernel = metal_kernel(
        f"dflash_context_{variant}", [*inputs], ["keys", "values"], source, NORM_ROPE + load
    )
    shape = (layers.count, c.shape[0], layers.kv_heads, c.shape[1], layers.head_dim)
    keys, values = kernel(
        inputs=[*inputs.values()],
        template=[
            ("T", c.dtype),
            ("KV_HEADS", layers.kv_heads),
            ("D", layers.head_dim),
            ("SIMDGROUPS", SIMDGROUPS),
            *template,
        ],
        grid=(SIMD * SIMDGROUPS * groups[0], groups[1], 1),
        threadgroup=(SIMD * SIMDGROUPS, 1, 1),
        output_shapes=[shape, shape],
        output_dtypes=[c.dtype, c.dtype],
    )
    return keys, values
