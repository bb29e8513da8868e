"""RMS norm and RoPE of heads: in plain MLX, and as the end of every kernel here."""

import mlx.core as mx

from .metal import UNROLL

# The rounding points are MLX's own: the product, the normed value after its weight, and the rotated
# value go through T; all between is float32.
# 1 / period, fast::cos and fast::sin are what mx.fast.rope computes from its freqs.
NORM_ROPE = (
    UNROLL
    + """
// RMS norm and RoPE of one head of D values, of which a lane holds lane + 32 * i.
template <typename T, int D>
inline void norm_rope(
    thread float* x,
    const device float* norm,
    const device float* periods,
    float eps,
    float position,
    uint lane) {
  constexpr int N = D / 32;
  float squares = 0.0f;
  UNROLL
  for (int i = 0; i < N; ++i) {
    squares += x[i] * x[i];
  }
  const float scale = metal::precise::rsqrt(metal::simd_sum(squares) / float(D) + eps);
  UNROLL
  for (int i = 0; i < N; ++i) {
    x[i] = float(T(x[i] * scale * norm[lane + 32 * i]));
  }
  UNROLL
  for (int i = 0; i < N / 2; ++i) {
    const float angle = position * (1.0f / periods[lane + 32 * i]);
    const float c = metal::fast::cos(angle);
    const float s = metal::fast::sin(angle);
    const float a = x[i];
    const float b = x[i + N / 2];
    x[i] = a * c - b * s;
    x[i + N / 2] = a * s + b * c;
  }
}
"""
)


def norm_rope(
    x: mx.array,
    norm: mx.array,
    periods: mx.array,
    offset: mx.array,
    eps: float,
    traditional: bool = False,
) -> mx.array:
    """``rope(norm(x))`` with the rounding points of the kernels.

    Args:
        x: ``[B, n, …, head_dim]``, where … are heads.
        norm: weights that broadcast to ``x``, float32.
        periods: ``[rotated / 2]`` float32, as the ``freqs`` of ``mx.fast.rope``.
        offset: ``[B]`` int32, the position of each batch row's first row.
        eps: of the norm.
        traditional: whether planes are neighbouring values rather than those of two halves.

    Returns:
        ``[B, heads, n, head_dim]`` in the dtype of ``x``.
    """
    # The norm's one rounding comes after its weight, as in mx.fast.rms_norm with a weight.
    normed = mx.fast.rms_norm(x.astype(mx.float32), None, eps) * norm
    heads = normed.astype(x.dtype).reshape(*x.shape[:2], -1, x.shape[-1]).transpose(0, 2, 1, 3)
    return mx.fast.rope(
        heads,
        2 * periods.size,
        traditional=traditional,
        base=None,
        scale=1.0,
        offset=offset,
        freqs=periods,
    )


def obstacle(dtype: mx.Dtype, head_dim: int, rotated: int, traditional: bool) -> str | None:
    """What the kernels' end does not support about heads of these sizes, or None.

    Args:
        dtype: of the activations.
        head_dim: values of a head.
        rotated: how many of them RoPE turns.
        traditional: whether planes are neighbouring values rather than those of two halves.
    """
    if dtype not in (mx.float32, mx.float16, mx.bfloat16):
        return f"the activations are {dtype}"
    if head_dim not in (64, 128):
        return f"head_dim is {head_dim}, not 64 or 128"
    if traditional:
        return "RoPE is traditional"
    if rotated != head_dim:
        return f"RoPE turns {rotated} of {head_dim} values"
    return None
