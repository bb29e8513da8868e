// Functions of numbers: computed in float, rounded to the argument's type, vectors element-wise.
// precise:: and fast:: are the same here; fast:: is less accurate on a GPU, most of all for the
// sine of large angles.
#pragma once
#include "vector.h"

namespace metal {

template <class T>
using if_float = std::enable_if_t<std::is_same<T, float>::value || std::is_same<T, half>::value ||
                                      std::is_same<T, bfloat>::value, int>;

#define MSL_UNARY(name, expression)                                                           \
  template <class T, if_float<T> = 0>                                                         \
  MSL_INLINE T name(T value) {                                                                \
    const float x = float(value);                                                             \
    return T(float(expression));                                                              \
  }                                                                                           \
  template <class T, int N>                                                                   \
  MSL_INLINE vec<T, N> name(const vec<T, N>& v) {                                             \
    vec<T, N> r;                                                                              \
    for (int i = 0; i < N; i++) r.d[i] = name(v.d[i]);                                        \
    return r;                                                                                 \
  }
#define MSL_BINARY(name, expression)                                                          \
  template <class T, if_float<T> = 0>                                                         \
  MSL_INLINE T name(T first, T second) {                                                      \
    const float x = float(first), y = float(second);                                          \
    return T(float(expression));                                                              \
  }
#define MSL_MATH                                                                              \
  MSL_UNARY(exp, __builtin_expf(x))                                                           \
  MSL_UNARY(exp2, __builtin_exp2f(x))                                                         \
  MSL_UNARY(exp10, __builtin_powf(10.0f, x))                                                  \
  MSL_UNARY(log, __builtin_logf(x))                                                           \
  MSL_UNARY(log2, __builtin_log2f(x))                                                         \
  MSL_UNARY(log10, __builtin_log10f(x))                                                       \
  MSL_UNARY(sqrt, __builtin_sqrtf(x))                                                         \
  MSL_UNARY(rsqrt, 1.0f / __builtin_sqrtf(x))                                                 \
  MSL_UNARY(sin, __builtin_sinf(x))                                                           \
  MSL_UNARY(cos, __builtin_cosf(x))                                                           \
  MSL_UNARY(tan, __builtin_tanf(x))                                                           \
  MSL_UNARY(sinh, __builtin_sinhf(x))                                                         \
  MSL_UNARY(cosh, __builtin_coshf(x))                                                         \
  MSL_UNARY(tanh, __builtin_tanhf(x))                                                         \
  MSL_UNARY(asin, __builtin_asinf(x))                                                         \
  MSL_UNARY(acos, __builtin_acosf(x))                                                         \
  MSL_UNARY(atan, __builtin_atanf(x))                                                         \
  MSL_UNARY(floor, __builtin_floorf(x))                                                       \
  MSL_UNARY(ceil, __builtin_ceilf(x))                                                         \
  MSL_UNARY(trunc, __builtin_truncf(x))                                                       \
  MSL_UNARY(rint, __builtin_rintf(x))                                                         \
  MSL_UNARY(round, __builtin_roundf(x))                                                       \
  MSL_UNARY(fabs, __builtin_fabsf(x))                                                         \
  MSL_UNARY(fract, x - __builtin_floorf(x))                                                   \
  MSL_UNARY(sign, x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f)                                        \
  MSL_UNARY(saturate, x < 0 ? 0.0f : x > 1 ? 1.0f : x)                                        \
  MSL_BINARY(pow, __builtin_powf(x, y))                                                       \
  MSL_BINARY(atan2, __builtin_atan2f(x, y))                                                   \
  MSL_BINARY(fmod, __builtin_fmodf(x, y))                                                     \
  MSL_BINARY(divide, x / y)                                                                   \
  template <class T, if_float<T> = 0>                                                         \
  MSL_INLINE T sincos(T value, T& cosine) {                                                   \
    cosine = T(__builtin_cosf(float(value)));                                                 \
    return T(__builtin_sinf(float(value)));                                                   \
  }

MSL_MATH
namespace precise {
MSL_MATH
}
namespace fast {
MSL_MATH
}
#undef MSL_MATH
#undef MSL_BINARY
#undef MSL_UNARY

template <class T, if_float<T> = 0>
MSL_INLINE T fma(T a, T b, T c) {
  return T(__builtin_fmaf(float(a), float(b), float(c)));
}
template <class T, int N>
MSL_INLINE vec<T, N> fma(const vec<T, N>& a, const vec<T, N>& b, const vec<T, N>& c) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) r.d[i] = fma(a.d[i], b.d[i], c.d[i]);
  return r;
}

template <class T>
MSL_INLINE T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
MSL_INLINE T max(T a, T b) {
  return a < b ? b : a;
}
template <class T, int N>
MSL_INLINE vec<T, N> min(const vec<T, N>& a, const vec<T, N>& b) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) r.d[i] = min(a.d[i], b.d[i]);
  return r;
}
template <class T, int N>
MSL_INLINE vec<T, N> max(const vec<T, N>& a, const vec<T, N>& b) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) r.d[i] = max(a.d[i], b.d[i]);
  return r;
}
template <class T>
MSL_INLINE T fmin(T a, T b) {
  return a != a ? b : b != b ? a : min(a, b);
}
template <class T>
MSL_INLINE T fmax(T a, T b) {
  return a != a ? b : b != b ? a : max(a, b);
}
template <class T>
MSL_INLINE T clamp(T x, T low, T high) {
  return min(max(x, low), high);
}
template <class T>
MSL_INLINE T mix(T a, T b, T t) {
  return a + (b - a) * t;
}
template <class T>
MSL_INLINE T select(T a, T b, bool second) {
  return second ? b : a;
}
template <class T, int N>
MSL_INLINE vec<T, N> select(const vec<T, N>& a, const vec<T, N>& b, const vec<bool, N>& second) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) r.d[i] = second.d[i] ? b.d[i] : a.d[i];
  return r;
}
template <class T,
          std::enable_if_t<std::is_signed<T>::value || !std::is_arithmetic<T>::value, int> = 0>
MSL_INLINE T abs(T a) {
  return a < T(0) ? T(-a) : a;
}
template <class T>
MSL_INLINE bool isnan(T a) {
  return __builtin_isnan(float(a));
}
template <class T>
MSL_INLINE bool isinf(T a) {
  return __builtin_isinf(float(a));
}
template <class T>
MSL_INLINE bool isfinite(T a) {
  return __builtin_isfinite(float(a));
}
template <class T, int N>
MSL_INLINE T dot(const vec<T, N>& a, const vec<T, N>& b) {
  T sum = T(a.d[0] * b.d[0]);
  for (int i = 1; i < N; i++) sum = T(sum + a.d[i] * b.d[i]);
  return sum;
}
template <class T, int N>
MSL_INLINE T length_squared(const vec<T, N>& a) {
  return dot(a, a);
}

MSL_INLINE uint popcount(uint x) { return __builtin_popcount(x); }
MSL_INLINE uint clz(uint x) { return x ? __builtin_clz(x) : 32; }
MSL_INLINE uint ctz(uint x) { return x ? __builtin_ctz(x) : 32; }
MSL_INLINE uint extract_bits(uint x, uint offset, uint bits) {
  return bits == 0 ? 0 : (x >> offset) & (bits >= 32 ? ~0u : (1u << bits) - 1);
}

}  // namespace metal
