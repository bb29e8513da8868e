// The Metal language as declarations, for clang to judge a kernel's types by. Address spaces are
// real here: they do not convert into each other or into plain pointers.
#pragma once

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef uchar uint8_t;
typedef ushort uint16_t;
typedef uint uint32_t;
typedef ulong uint64_t;
typedef ulong size_t;
typedef _Float16 half;
typedef __bf16 bfloat;
typedef half float16_t;
typedef bfloat bfloat16_t;

#define LINT_DEVICE __attribute__((address_space(1)))
#define LINT_CONSTANT __attribute__((address_space(2)))
#define LINT_THREADGROUP __attribute__((address_space(3)))

namespace metal {

template <class T, int N>
struct lint_native {
  typedef T type __attribute__((ext_vector_type(N)));
};
template <class T, int N>
using vec = typename lint_native<T, N>::type;

#define LINT_VECTORS(T)                                                                       \
  typedef T T##2 __attribute__((ext_vector_type(2)));                                         \
  typedef T T##3 __attribute__((ext_vector_type(3)));                                         \
  typedef T T##4 __attribute__((ext_vector_type(4)));
LINT_VECTORS(float)
LINT_VECTORS(half)
LINT_VECTORS(bfloat)
LINT_VECTORS(char)
LINT_VECTORS(uchar)
LINT_VECTORS(short)
LINT_VECTORS(ushort)
LINT_VECTORS(int)
LINT_VECTORS(uint)
LINT_VECTORS(long)
LINT_VECTORS(ulong)
LINT_VECTORS(bool)
#undef LINT_VECTORS

#define LINT_UNARY(name)                                                                      \
  template <class T>                                                                          \
  T name(T);
#define LINT_BINARY(name)                                                                     \
  template <class T>                                                                          \
  T name(T, T);
#define LINT_LANE(name)                                                                       \
  template <class T>                                                                          \
  T name(T, ushort);
#define LINT_MATH                                                                             \
  LINT_UNARY(exp) LINT_UNARY(exp2) LINT_UNARY(exp10) LINT_UNARY(log) LINT_UNARY(log2)         \
  LINT_UNARY(log10) LINT_UNARY(sqrt) LINT_UNARY(rsqrt) LINT_UNARY(sin) LINT_UNARY(cos)        \
  LINT_UNARY(tan) LINT_UNARY(sinh) LINT_UNARY(cosh) LINT_UNARY(tanh) LINT_UNARY(asin)         \
  LINT_UNARY(acos) LINT_UNARY(atan) LINT_UNARY(floor) LINT_UNARY(ceil) LINT_UNARY(trunc)      \
  LINT_UNARY(rint) LINT_UNARY(round) LINT_UNARY(fabs) LINT_UNARY(fract) LINT_UNARY(sign)      \
  LINT_UNARY(saturate) LINT_BINARY(pow) LINT_BINARY(atan2) LINT_BINARY(fmod)                  \
  LINT_BINARY(divide)                                                                         \
  template <class T>                                                                          \
  T sincos(T, T&);
LINT_MATH
namespace precise {
LINT_MATH
}
namespace fast {
LINT_MATH
}
LINT_UNARY(abs)
LINT_BINARY(min)
LINT_BINARY(max)
LINT_BINARY(fmin)
LINT_BINARY(fmax)
template <class T>
T fma(T, T, T);
template <class T>
T clamp(T, T, T);
template <class T>
T mix(T, T, T);
template <class T>
T select(T, T, bool);
template <class T>
bool isnan(T);
template <class T>
bool isinf(T);
template <class T>
bool isfinite(T);
float dot(float2, float2);
float dot(float3, float3);
float dot(float4, float4);
uint popcount(uint);
uint clz(uint);
uint ctz(uint);
uint extract_bits(uint, uint, uint);

template <class T>
struct numeric_limits {
  static constexpr T max();
  static constexpr T lowest();
  static constexpr T min();
  static constexpr T infinity();
  static constexpr T quiet_NaN();
};

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
mem_flags operator|(mem_flags, mem_flags);
void threadgroup_barrier(mem_flags) __attribute__((convergent));
void simdgroup_barrier(mem_flags) __attribute__((convergent));

LINT_UNARY(simd_sum)
LINT_UNARY(simd_product)
LINT_UNARY(simd_max)
LINT_UNARY(simd_min)
LINT_UNARY(simd_and)
LINT_UNARY(simd_or)
LINT_UNARY(simd_xor)
LINT_UNARY(simd_broadcast_first)
LINT_UNARY(simd_prefix_inclusive_sum)
LINT_UNARY(simd_prefix_exclusive_sum)
LINT_UNARY(quad_sum)
LINT_LANE(simd_broadcast)
LINT_LANE(simd_shuffle)
LINT_LANE(simd_shuffle_xor)
LINT_LANE(simd_shuffle_up)
LINT_LANE(simd_shuffle_down)
LINT_LANE(simd_shuffle_rotate_up)
LINT_LANE(simd_shuffle_rotate_down)
LINT_LANE(quad_broadcast)
LINT_LANE(quad_shuffle)
LINT_LANE(quad_shuffle_xor)
bool simd_any(bool);
bool simd_all(bool);
bool simd_is_first();

template <class T, int Rows = 8, int Columns = 8>
struct simdgroup_matrix {
  typedef vec<T, 2> storage_type;
  simdgroup_matrix();
  explicit simdgroup_matrix(T);
  storage_type& thread_elements();
  const storage_type& thread_elements() const;
};
typedef simdgroup_matrix<float> simdgroup_float8x8;
typedef simdgroup_matrix<half> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat> simdgroup_bfloat8x8;
template <class T, int Rows, int Columns>
simdgroup_matrix<T, Rows, Columns> make_filled_simdgroup_matrix(T);
#define LINT_MATRIX_MEMORY(SPACE)                                                             \
  template <class T>                                                                          \
  void simdgroup_load(simdgroup_matrix<T>&, const SPACE T*, ulong = 8, ulong2 = 0, bool = false); \
  template <class T>                                                                          \
  void simdgroup_store(simdgroup_matrix<T>, SPACE T*, ulong = 8, ulong2 = 0, bool = false);
LINT_MATRIX_MEMORY(LINT_DEVICE)
LINT_MATRIX_MEMORY(LINT_THREADGROUP)
template <class D, class A, class B, class C>
void simdgroup_multiply_accumulate(simdgroup_matrix<D>&, simdgroup_matrix<A>, simdgroup_matrix<B>,
                                   simdgroup_matrix<C>);
template <class D, class A, class B>
void simdgroup_multiply(simdgroup_matrix<D>&, simdgroup_matrix<A>, simdgroup_matrix<B>);

enum memory_order { memory_order_relaxed };
template <class T>
struct atomic {
  T value;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;
#define LINT_FETCH(name, SPACE)                                                               \
  template <class T, class U>                                                                 \
  T atomic_fetch_##name##_explicit(volatile SPACE atomic<T>*, U, memory_order);
#define LINT_ATOMICS(SPACE)                                                                   \
  template <class T>                                                                          \
  T atomic_load_explicit(const volatile SPACE atomic<T>*, memory_order);                      \
  template <class T, class U>                                                                 \
  void atomic_store_explicit(volatile SPACE atomic<T>*, U, memory_order);                     \
  template <class T, class U>                                                                 \
  T atomic_exchange_explicit(volatile SPACE atomic<T>*, U, memory_order);                     \
  LINT_FETCH(add, SPACE) LINT_FETCH(sub, SPACE) LINT_FETCH(min, SPACE) LINT_FETCH(max, SPACE) \
  LINT_FETCH(and, SPACE) LINT_FETCH(or, SPACE) LINT_FETCH(xor, SPACE)
LINT_ATOMICS(LINT_DEVICE)
LINT_ATOMICS(LINT_THREADGROUP)

}  // namespace metal

using namespace metal;

template <class To, class From>
To as_type(From);

// `float4(a, b, c, d)` makes a native vector only in Metal, so the call goes through this.
template <class Vector>
struct lint_vector {
  template <class... Parts>
  static Vector of(Parts...);
};
#define float2(...) lint_vector<metal::float2>::of(__VA_ARGS__)
#define float3(...) lint_vector<metal::float3>::of(__VA_ARGS__)
#define float4(...) lint_vector<metal::float4>::of(__VA_ARGS__)
#define half2(...) lint_vector<metal::half2>::of(__VA_ARGS__)
#define half3(...) lint_vector<metal::half3>::of(__VA_ARGS__)
#define half4(...) lint_vector<metal::half4>::of(__VA_ARGS__)
#define int2(...) lint_vector<metal::int2>::of(__VA_ARGS__)
#define int4(...) lint_vector<metal::int4>::of(__VA_ARGS__)
#define uint2(...) lint_vector<metal::uint2>::of(__VA_ARGS__)
#define uint3(...) lint_vector<metal::uint3>::of(__VA_ARGS__)
#define uint4(...) lint_vector<metal::uint4>::of(__VA_ARGS__)
#define ulong2(...) lint_vector<metal::ulong2>::of(__VA_ARGS__)

#define METAL_FUNC inline
#define METAL_CONST static constexpr
#define __METAL__ 1
#define __METAL_VERSION__ 310
#define M_PI_F 3.14159265358979323846f
#define device LINT_DEVICE
#define constant LINT_CONSTANT
#define threadgroup LINT_THREADGROUP
#define thread
#define double error_double_does_not_exist_in_metal
#define goto error_goto_is_not_allowed_in_metal
#define new error_new_is_not_allowed_in_metal
#define try error_exceptions_are_not_allowed_in_metal
#define throw error_exceptions_are_not_allowed_in_metal
#define virtual error_virtual_is_not_allowed_in_metal
#define dynamic_cast error_dynamic_cast_is_not_allowed_in_metal
