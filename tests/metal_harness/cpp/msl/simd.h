// Barriers and simdgroup operations. In an operation every lane hands over its value, waits for
// the others, and then works out its own result from all of them. The source line comes in as a
// default argument, so that lanes which meet at different places are told apart.
#pragma once
#include "math.h"

#define MSL_LINE int line = __builtin_LINE()

namespace metal {

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
MSL_INLINE mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }

MSL_INLINE void threadgroup_barrier(mem_flags flags, MSL_LINE) {
  msl::barrier_threadgroup(int(flags), line);
}
MSL_INLINE void simdgroup_barrier(mem_flags flags, MSL_LINE) {
  msl::barrier_simdgroup(int(flags), line);
}

}  // namespace metal

namespace msl {

// What all lanes handed over.
template <class T>
struct Lanes {
  const unsigned char* slots;
  uint32_t present;
  Site site;

  MSL_INLINE bool has(uint lane) const { return lane < 32 && (present >> lane & 1); }
  MSL_INLINE T get(uint lane) const {
    T value;
    __builtin_memcpy(&value, slots + slot_bytes * lane, sizeof value);
    return value;
  }
  MSL_INLINE T operator[](uint lane) const {
    if (!has(lane))
      fail("lane", "%s at line %d reads lane %u, which is absent", site.operation, site.line, lane);
    return get(lane);
  }
  MSL_INLINE T get_or(uint lane, T otherwise) const { return has(lane) ? get(lane) : otherwise; }
  MSL_INLINE uint first() const { return uint(__builtin_ctz(present)); }
};

template <class T>
MSL_INLINE Lanes<T> gather(const char* operation, int line, const T& value) {
  static_assert(sizeof(T) <= slot_bytes, "too large for a simdgroup operation");
  Lanes<T> lanes;
  lanes.site = {operation, line};
  lanes.slots = exchange(lanes.site, &value, sizeof(T), &lanes.present);
  return lanes;
}

// Pairs lanes 16 apart, then 8, and so on, as a reduction by shuffles would.
template <class T, class Combine>
MSL_INLINE T reduce(const Lanes<T>& lanes, Combine combine) {
  T value[32];
  bool has[32];
  for (uint i = 0; i < 32; i++)
    if ((has[i] = lanes.has(i))) value[i] = lanes.get(i);
  for (int step = 16; step; step /= 2)
    for (int i = 0; i < step; i++) {
      if (!has[i + step]) continue;
      value[i] = has[i] ? combine(value[i], value[i + step]) : value[i + step];
      has[i] = true;
    }
  return value[0];
}

}  // namespace msl

namespace metal {

#define MSL_REDUCTION(name, expression)                                                       \
  template <class T>                                                                          \
  T name(T x, MSL_LINE) {                                                                     \
    return msl::reduce(msl::gather(#name, line, x), [](T a, T b) { return T(expression); });  \
  }
MSL_REDUCTION(simd_sum, a + b)
MSL_REDUCTION(simd_product, a * b)
MSL_REDUCTION(simd_max, a < b ? b : a)
MSL_REDUCTION(simd_min, b < a ? b : a)
MSL_REDUCTION(simd_and, a & b)
MSL_REDUCTION(simd_or, a | b)
MSL_REDUCTION(simd_xor, a ^ b)
#undef MSL_REDUCTION

// `lanes` holds everyone's x and `me` is this lane's index.
#define MSL_SHUFFLE(name, Argument, expression)                                               \
  template <class T>                                                                          \
  T name(T x, Argument n, MSL_LINE) {                                                         \
    const auto lanes = msl::gather(#name, line, x);                                           \
    const uint me = msl::self->index_in_simdgroup;                                            \
    (void)me;                                                                                 \
    return expression;                                                                        \
  }
MSL_SHUFFLE(simd_broadcast, ushort, lanes[n])
MSL_SHUFFLE(simd_shuffle, ushort, lanes[n])
MSL_SHUFFLE(simd_shuffle_xor, ushort, lanes[me ^ n])
MSL_SHUFFLE(simd_shuffle_down, ushort, lanes.get_or(me + n, x))
MSL_SHUFFLE(simd_shuffle_up, ushort, lanes.get_or(me - n, x))
MSL_SHUFFLE(simd_shuffle_rotate_down, ushort, lanes[(me + n) & 31])
MSL_SHUFFLE(simd_shuffle_rotate_up, ushort, lanes[(me - n) & 31])
MSL_SHUFFLE(quad_broadcast, ushort, lanes[(me & ~3u) + n])
MSL_SHUFFLE(quad_shuffle, ushort, lanes[(me & ~3u) + n])
MSL_SHUFFLE(quad_shuffle_xor, ushort, lanes[me ^ (n & 3u)])
#undef MSL_SHUFFLE

template <class T>
T simd_broadcast_first(T x, MSL_LINE) {
  const auto lanes = msl::gather("simd_broadcast_first", line, x);
  return lanes[lanes.first()];
}
template <class T>
T simd_prefix_exclusive_sum(T x, MSL_LINE) {
  const auto lanes = msl::gather("simd_prefix_exclusive_sum", line, x);
  T sum = T(0);
  for (uint l = 0; l < msl::self->index_in_simdgroup; l++) sum = T(sum + lanes[l]);
  return sum;
}
template <class T>
T simd_prefix_inclusive_sum(T x, MSL_LINE) {
  return T(simd_prefix_exclusive_sum(x, line) + x);
}
template <class T>
T quad_sum(T x, MSL_LINE) {
  const auto lanes = msl::gather("quad_sum", line, x);
  const uint first = msl::self->index_in_simdgroup & ~3u;
  return T(T(lanes[first] + lanes[first + 1]) + T(lanes[first + 2] + lanes[first + 3]));
}
inline bool simd_any(bool x, MSL_LINE) {
  return msl::reduce(msl::gather("simd_any", line, x), [](bool a, bool b) { return a || b; });
}
inline bool simd_all(bool x, MSL_LINE) {
  return msl::reduce(msl::gather("simd_all", line, x), [](bool a, bool b) { return a && b; });
}
inline bool simd_is_first(MSL_LINE) {
  return msl::gather("simd_is_first", line, true).first() == msl::self->index_in_simdgroup;
}

}  // namespace metal
