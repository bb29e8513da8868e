"""RMS norm and RoPE of heads: in plain MLX, and as the end of every kernel here."""

from dataclasses import dataclass

import mlx.core as mx

from .metal import UNROLL, on_metal

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


@dataclass(frozen=True)
class NormRope:
    """RMS norm and RoPE of heads, with the rounding points of the kernels.

    Attributes:
        periods: ``[rotated / 2]`` float32, the inverse of the angle that one position adds to each
            plane; what ``mx.fast.rope`` takes as ``freqs``.
        eps: of the norm.
        traditional: whether planes are neighbouring values rather than those of two halves.
    """

    periods: mx.array
    eps: float
    traditional: bool = False

    def __call__(self, x: mx.array, weight: mx.array, offset: mx.array) -> mx.array:
        """``rope(norm(x))`` in plain MLX.

        Args:
            x: ``[B, n, …, head_dim]``, where … are heads.
            weight: of the norm, float32; it broadcasts to ``x``.
            offset: ``[B]`` int32, the first position of each batch row.

        Returns:
            ``[B, heads, n, head_dim]`` in the dtype of ``x``.
        """
        # The norm's one rounding comes after its weight, as in mx.fast.rms_norm with a weight.
        normed = mx.fast.rms_norm(x.astype(mx.float32), None, self.eps) * weight
        heads = normed.astype(x.dtype).reshape(*x.shape[:2], -1, x.shape[-1])
        return mx.fast.rope(
            heads.transpose(0, 2, 1, 3),
            2 * self.periods.size,
            traditional=self.traditional,
            base=None,
            scale=1.0,
            offset=offset,
            freqs=self.periods,
        )

    def obstacle(self, dtype: mx.Dtype, head_dim: int) -> str | None:
        """Why the kernels cannot norm and rotate heads of this dtype and size here, or None."""
        rotated = 2 * self.periods.size
        if not on_metal():
            return "not on a Metal device"
        if dtype not in (mx.float32, mx.float16, mx.bfloat16):
            return f"the activations are {dtype}"
        if head_dim not in (64, 128):
            return f"head_dim is {head_dim}, not 64 or 128"
        if self.traditional:
            return "RoPE is traditional"
        if rotated != head_dim:
            return f"RoPE turns {rotated} of {head_dim} values"
        return None
