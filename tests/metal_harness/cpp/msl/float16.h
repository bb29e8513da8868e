// half and bfloat: classes that round after every operation, as the GPU does.
// Strict where Metal is strict: float to bfloat only explicitly, half and bfloat never mixed.
#pragma once
#include <limits>
#include <type_traits>
#include "abi.h"

using uchar = unsigned char;
using ushort = unsigned short;
using uint = unsigned int;
using ulong = unsigned long;

#define MSL_INLINE inline __attribute__((always_inline))

namespace msl {

template <class To, class From>
MSL_INLINE To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "as_type between types of different size");
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

#if defined(__aarch64__) && !defined(__clang__)
using NativeHalf = __fp16;  // g++ has no _Float16 there before 13
#else
using NativeHalf = _Float16;
#endif

struct HalfFormat {
  static MSL_INLINE float widen(uint16_t bits) { return float(bit_cast<NativeHalf>(bits)); }
  static MSL_INLINE uint16_t round(float x) { return bit_cast<uint16_t>(NativeHalf(x)); }
};

struct BfloatFormat {
  static MSL_INLINE float widen(uint16_t bits) { return bit_cast<float>(uint32_t(bits) << 16); }
  static MSL_INLINE uint16_t round(float x) {
    const uint32_t bits = bit_cast<uint32_t>(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t(bits >> 16 | 0x40);  // a quiet NaN
    return uint16_t((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);  // to nearest, ties to even
  }
};

template <class T>
using if_arithmetic = std::enable_if_t<std::is_arithmetic<T>::value, int>;
template <class T>
using if_integral = std::enable_if_t<std::is_integral<T>::value, int>;

// A float holds the exact result, or enough of it, of one operation on two such numbers,
// so rounding the float once gives the correctly rounded result.
template <class Format>
struct SmallFloat {
  uint16_t bits;

  static constexpr bool implicit = std::is_same<Format, HalfFormat>::value;

  SmallFloat() = default;
  template <class U, if_arithmetic<U> = 0, std::enable_if_t<implicit && sizeof(U), int> = 0>
  MSL_INLINE SmallFloat(U x) : bits(Format::round(float(x))) {}
  template <class U, if_arithmetic<U> = 0, std::enable_if_t<!implicit && sizeof(U), int> = 0,
            class = void>
  MSL_INLINE explicit SmallFloat(U x) : bits(Format::round(float(x))) {}
  template <class Other, std::enable_if_t<!std::is_same<Other, Format>::value, int> = 0>
  MSL_INLINE explicit SmallFloat(SmallFloat<Other> x) : bits(Format::round(float(x))) {}

  static MSL_INLINE SmallFloat from_bits(uint16_t b) {
    SmallFloat x;
    x.bits = b;
    return x;
  }
  static MSL_INLINE SmallFloat rounded(float x) { return from_bits(Format::round(x)); }

  MSL_INLINE operator float() const { return Format::widen(bits); }
  MSL_INLINE SmallFloat operator-() const { return from_bits(bits ^ 0x8000); }

  // With its own kind and with integers the result has this type; with float it is a float.
#define MSL_ARITHMETIC(op)                                                                    \
  friend MSL_INLINE SmallFloat operator op(SmallFloat a, SmallFloat b) {                      \
    return rounded(float(a) op float(b));                                                     \
  }                                                                                           \
  template <class U, if_integral<U> = 0>                                                      \
  friend MSL_INLINE SmallFloat operator op(SmallFloat a, U b) {                               \
    return rounded(float(a) op float(b));                                                     \
  }                                                                                           \
  template <class U, if_integral<U> = 0>                                                      \
  friend MSL_INLINE SmallFloat operator op(U a, SmallFloat b) {                               \
    return rounded(float(a) op float(b));                                                     \
  }                                                                                           \
  friend MSL_INLINE float operator op(SmallFloat a, float b) { return float(a) op b; }        \
  friend MSL_INLINE float operator op(float a, SmallFloat b) { return a op float(b); }        \
  template <class U>                                                                          \
  MSL_INLINE SmallFloat& operator op##=(U b) {                                                \
    return *this = *this op b;                                                                \
  }
  MSL_ARITHMETIC(+)
  MSL_ARITHMETIC(-)
  MSL_ARITHMETIC(*)
  MSL_ARITHMETIC(/)
#undef MSL_ARITHMETIC

#define MSL_COMPARISON(op)                                                                    \
  friend MSL_INLINE bool operator op(SmallFloat a, SmallFloat b) {                            \
    return float(a) op float(b);                                                              \
  }                                                                                           \
  template <class U, if_arithmetic<U> = 0>                                                    \
  friend MSL_INLINE bool operator op(SmallFloat a, U b) {                                     \
    return float(a) op float(b);                                                              \
  }                                                                                           \
  template <class U, if_arithmetic<U> = 0>                                                    \
  friend MSL_INLINE bool operator op(U a, SmallFloat b) {                                     \
    return float(a) op float(b);                                                              \
  }
  MSL_COMPARISON(<)
  MSL_COMPARISON(>)
  MSL_COMPARISON(<=)
  MSL_COMPARISON(>=)
  MSL_COMPARISON(==)
  MSL_COMPARISON(!=)
#undef MSL_COMPARISON
};

// Metal gives no meaning to half with bfloat; without these, both would turn into float.
#define MSL_NOT_MIXED(op)                                                                     \
  template <class A, class B, std::enable_if_t<!std::is_same<A, B>::value, int> = 0>          \
  void operator op(SmallFloat<A>, SmallFloat<B>) = delete;
MSL_NOT_MIXED(+)
MSL_NOT_MIXED(-)
MSL_NOT_MIXED(*)
MSL_NOT_MIXED(/)
#undef MSL_NOT_MIXED

}  // namespace msl

using half = msl::SmallFloat<msl::HalfFormat>;
using bfloat = msl::SmallFloat<msl::BfloatFormat>;
using float16_t = half;
using bfloat16_t = bfloat;

MSL_INLINE half operator""h(long double x) { return half(float(x)); }
MSL_INLINE bfloat operator""bf(long double x) { return bfloat(float(x)); }

namespace metal {

template <class T>
struct numeric_limits : std::numeric_limits<T> {};

template <class T, uint16_t Max, uint16_t Min, uint16_t Infinity, uint16_t NaN>
struct small_float_limits {
  static T max() { return T::from_bits(Max); }
  static T lowest() { return T::from_bits(Max | 0x8000); }
  static T min() { return T::from_bits(Min); }
  static T infinity() { return T::from_bits(Infinity); }
  static T quiet_NaN() { return T::from_bits(NaN); }
};
template <>
struct numeric_limits<half> : small_float_limits<half, 0x7bff, 0x0400, 0x7c00, 0x7e00> {};
template <>
struct numeric_limits<bfloat> : small_float_limits<bfloat, 0x7f7f, 0x0080, 0x7f80, 0x7fc0> {};

}  // namespace metal

template <class To, class From>
MSL_INLINE To as_type(const From& from) {
  return msl::bit_cast<To>(from);
}
