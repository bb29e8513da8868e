"""A block's queries, keys and values for attention, in one launch after their products."""

from typing import Literal

import mlx.core as mx

from . import norm_rope
from .metal import SIMD, SIMDGROUPS, metal_kernel, on_metal
from .path import Path, can_build

PathName = Literal["fused", "plain"]

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


def block_heads(
    q: mx.array,
    kv: mx.array,
    norms: mx.array,
    periods: mx.array,
    offset: mx.array,
    *,
    eps: float,
    traditional: bool = False,
    path: PathName | None = None,
) -> tuple[mx.array, mx.array, mx.array]:
    """``rope(q_norm(q))``, ``rope(k_norm(k))`` and ``v``, laid out for attention.

    Args:
        q: the query products, ``[B, n, heads * head_dim]`` float32, float16 or bfloat16.
        kv: the key products, then the value products, ``[B, n, 2 * kv_heads * head_dim]``.
        norms: the weights of Q norm and K norm, ``[2, head_dim]`` float32.
        periods: ``[rotated / 2]`` float32, as the ``freqs`` of ``mx.fast.rope``.
        offset: ``[B]`` int32, the position of each batch row's first row.
        eps: of the norms.
        traditional: whether planes are neighbouring values rather than those of two halves.
        path: computed this way; None leaves it to :func:`choose_path`.

    Returns:
        Queries ``[B, heads, n, head_dim]``, keys and values ``[B, kv_heads, n, head_dim]``.
    """
    path = path or choose_path(q.dtype, norms, periods, traditional).name
    if path == "plain":
        return block_heads_plain(q, kv, norms, periods, offset, eps, traditional)
    return _fused(q, kv, norms, periods, offset, eps)


def block_heads_plain(
    q: mx.array,
    kv: mx.array,
    norms: mx.array,
    periods: mx.array,
    offset: mx.array,
    eps: float,
    traditional: bool = False,
) -> tuple[mx.array, mx.array, mx.array]:
    """:func:`block_heads` in plain MLX, for any head size, rotated part and device."""
    B, n, _ = q.shape
    q = q.reshape(B, n, -1, norms.shape[1])
    k, v = mx.split(kv.reshape(B, n, -1, norms.shape[1]), 2, axis=2)
    q, k = (
        norm_rope.norm_rope(x, norm, periods, offset, eps, traditional)
        for x, norm in zip((q, k), norms, strict=True)
    )
    return q, k, v.transpose(0, 2, 1, 3)


def choose_path(
    dtype: mx.Dtype, norms: mx.array, periods: mx.array, traditional: bool = False
) -> Path:
    """The path of a call on the default device; see block_heads."""
    if not on_metal():
        return Path("plain", "not on a Metal device")
    if why := norm_rope.obstacle(dtype, norms.shape[1], 2 * periods.size, traditional):
        return Path("plain", why)
    return Path("fused", "one launch")


def warm_up(
    dtype: mx.Dtype,
    heads: int,
    kv_heads: int,
    norms: mx.array,
    periods: mx.array,
    *,
    eps: float,
    traditional: bool = False,
) -> bool:
    """Compile the pipelines that calls with these arguments need, by running each once.

    Returns:
        Whether the chosen path can be used on this machine. If not, a warning has said so.
    """
    if choose_path(dtype, norms, periods, traditional).name == "plain":
        return True
    head_dim = norms.shape[1]

    def call() -> list[mx.array]:
        outputs = []
        # Offsets of fewer than eight elements have another address space, so another pipeline.
        for batch in (1, 8):
            q, kv = (
                mx.zeros((batch, 1, width * head_dim), dtype) for width in (heads, 2 * kv_heads)
            )
            outputs += _fused(q, kv, norms, periods, mx.zeros(batch, mx.int32), eps)
        return outputs

    return can_build("block_heads", call)


def _fused(
    q: mx.array, kv: mx.array, norms: mx.array, periods: mx.array, offset: mx.array, eps: float
) -> tuple[mx.array, mx.array, mx.array]:
    B, n, width = q.shape
    head_dim = norms.shape[1]
    heads, kv_heads = width // head_dim, kv.shape[2] // (2 * head_dim)
    kernel = metal_kernel(
        "dflash_block_heads",
        ["q_products", "kv_products", "norms", "periods", "offset", "eps"],
        ["queries", "keys", "values"],
        _SOURCE,
        norm_rope.NORM_ROPE,
    )
    threads = SIMD * SIMDGROUPS
    groups = -(-B * n * (heads + 2 * kv_heads) // SIMDGROUPS)
    queries, keys, values = kernel(
        inputs=[q, kv, norms, periods, offset, eps],
        template=[
            ("T", q.dtype),
            ("HEADS", heads),
            ("KV_HEADS", kv_heads),
            ("D", head_dim),
            ("SIMDGROUPS", SIMDGROUPS),
        ],
        grid=(groups * threads, 1, 1),
        threadgroup=(threads, 1, 1),
        output_shapes=[(B, h, n, head_dim) for h in (heads, kv_heads, kv_heads)],
        output_dtypes=[q.dtype] * 3,
    )
    return queries, keys, values
