// vec<T, 2..4> with Metal's alignment, constructors, swizzles and element-wise operators.
#pragma once
#include "float16.h"

namespace metal {

template <class T, int N>
struct vec;

// One swizzle, living in the union of a vector's elements; it can be read and written.
template <class T, int N, int... I>
struct swizzle {
  T d[N];
  MSL_INLINE operator vec<T, sizeof...(I)>() const { return vec<T, sizeof...(I)>(d[I]...); }
  MSL_INLINE swizzle& operator=(const vec<T, sizeof...(I)>& v) {
    int k = 0;
    const int each[] = {(d[I] = v[k++], 0)...};
    (void)each;
    return *this;
  }
  MSL_INLINE swizzle& operator=(const swizzle& o) { return *this = vec<T, sizeof...(I)>(o); }
};

// The union's members assign by themselves, so copying the whole has to be spelled out.
#define MSL_COPYABLE(N)                                                                       \
  elements() = default;                                                                       \
  MSL_INLINE elements(const elements& o) { *this = o; }                                       \
  MSL_INLINE elements& operator=(const elements& o) {                                         \
    for (int i = 0; i < N; i++) d[i] = o.d[i];                                                \
    return *this;                                                                             \
  }

template <class T, int N>
struct elements;
template <class T>
struct alignas(2 * sizeof(T)) elements<T, 2> {
  union {
    T d[2];
    struct { T x, y; };
    struct { T r, g; };
    swizzle<T, 2, 0, 1> xy;
    swizzle<T, 2, 1, 0> yx;
  };
  MSL_COPYABLE(2)
};
template <class T>
struct alignas(4 * sizeof(T)) elements<T, 3> {
  union {
    T d[3];
    struct { T x, y, z; };
    struct { T r, g, b; };
    swizzle<T, 3, 0, 1> xy;
    swizzle<T, 3, 1, 2> yz;
    swizzle<T, 3, 0, 2> xz;
  };
  MSL_COPYABLE(3)
};
template <class T>
struct alignas(4 * sizeof(T)) elements<T, 4> {
  union {
    T d[4];
    struct { T x, y, z, w; };
    struct { T r, g, b, a; };
    swizzle<T, 4, 0, 1> xy;
    swizzle<T, 4, 1, 0> yx;
    swizzle<T, 4, 2, 3> zw;
    swizzle<T, 4, 0, 2> xz;
    swizzle<T, 4, 1, 3> yw;
    swizzle<T, 4, 0, 1, 2> xyz;
  };
  MSL_COPYABLE(4)
};
#undef MSL_COPYABLE

template <class T>
struct width : std::integral_constant<int, 1> {};
template <class T, int N>
struct width<vec<T, N>> : std::integral_constant<int, N> {};
template <class T, int N, int... I>
struct width<swizzle<T, N, I...>> : std::integral_constant<int, sizeof...(I)> {};
template <class... T>
struct total_width : std::integral_constant<int, 0> {};
template <class T, class... Rest>
struct total_width<T, Rest...>
    : std::integral_constant<int, width<T>::value + total_width<Rest...>::value> {};
template <class T>
using if_scalar = std::enable_if_t<std::is_convertible<T, float>::value, int>;

template <class T, int N>
struct vec : elements<T, N> {
  using elements<T, N>::d;

  vec() = default;
  template <class U, if_scalar<U> = 0>
  MSL_INLINE vec(U s) {
    for (int i = 0; i < N; i++) d[i] = T(s);
  }
  template <class A, class B, class... Rest,
            std::enable_if_t<total_width<A, B, Rest...>::value == N, int> = 0>
  MSL_INLINE vec(A a, B b, Rest... rest) {
    int at = 0;
    const int each[] = {put(a, at), put(b, at), put(rest, at)...};
    (void)each;
  }
  template <class U>
  MSL_INLINE explicit vec(const vec<U, N>& o) {
    for (int i = 0; i < N; i++) d[i] = T(o.d[i]);
  }

  MSL_INLINE T& operator[](int i) { return d[i]; }
  MSL_INLINE const T& operator[](int i) const { return d[i]; }

 private:
  template <class U>
  MSL_INLINE int put(const U& s, int& at) {
    return d[at++] = T(s), 0;
  }
  template <class U, int M>
  MSL_INLINE int put(const vec<U, M>& v, int& at) {
    for (int i = 0; i < M; i++) d[at++] = T(v.d[i]);
    return 0;
  }
  template <class U, int M, int... I>
  MSL_INLINE int put(const swizzle<U, M, I...>& s, int& at) {
    return put(vec<U, sizeof...(I)>(s), at);
  }
};

template <class U, class T>
using if_other_scalar =
    std::enable_if_t<std::is_convertible<U, T>::value || std::is_arithmetic<U>::value, int>;

#define MSL_OPERATOR(op)                                                                      \
  template <class T, int N>                                                                   \
  MSL_INLINE vec<T, N> operator op(const vec<T, N>& a, const vec<T, N>& b) {                  \
    vec<T, N> r;                                                                              \
    for (int i = 0; i < N; i++) r.d[i] = T(a.d[i] op b.d[i]);                                 \
    return r;                                                                                 \
  }                                                                                           \
  template <class T, int N, class U, if_other_scalar<U, T> = 0>                               \
  MSL_INLINE vec<T, N> operator op(const vec<T, N>& a, U s) {                                 \
    return a op vec<T, N>(T(s));                                                              \
  }                                                                                           \
  template <class T, int N, class U, if_other_scalar<U, T> = 0>                               \
  MSL_INLINE vec<T, N> operator op(U s, const vec<T, N>& a) {                                 \
    return vec<T, N>(T(s)) op a;                                                              \
  }                                                                                           \
  template <class T, int N, class U>                                                          \
  MSL_INLINE vec<T, N>& operator op##=(vec<T, N>& a, const U& b) {                            \
    return a = a op b;                                                                        \
  }
MSL_OPERATOR(+)
MSL_OPERATOR(-)
MSL_OPERATOR(*)
MSL_OPERATOR(/)
MSL_OPERATOR(%)
MSL_OPERATOR(&)
MSL_OPERATOR(|)
MSL_OPERATOR(^)
MSL_OPERATOR(<<)
MSL_OPERATOR(>>)
#undef MSL_OPERATOR

template <class T, int N>
MSL_INLINE vec<T, N> operator-(const vec<T, N>& a) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) r.d[i] = -a.d[i];
  return r;
}

#define MSL_COMPARISON(op)                                                                    \
  template <class T, int N>                                                                   \
  MSL_INLINE vec<bool, N> operator op(const vec<T, N>& a, const vec<T, N>& b) {               \
    vec<bool, N> r;                                                                           \
    for (int i = 0; i < N; i++) r.d[i] = a.d[i] op b.d[i];                                    \
    return r;                                                                                 \
  }
MSL_COMPARISON(<)
MSL_COMPARISON(>)
MSL_COMPARISON(<=)
MSL_COMPARISON(>=)
MSL_COMPARISON(==)
MSL_COMPARISON(!=)
#undef MSL_COMPARISON

template <int N>
MSL_INLINE bool any(const vec<bool, N>& v) {
  bool r = false;
  for (int i = 0; i < N; i++) r |= v.d[i];
  return r;
}
template <int N>
MSL_INLINE bool all(const vec<bool, N>& v) {
  bool r = true;
  for (int i = 0; i < N; i++) r &= v.d[i];
  return r;
}

// The same elements, aligned like one element.
template <class T, int N>
struct packed_vec {
  T d[N];
  packed_vec() = default;
  MSL_INLINE packed_vec(const vec<T, N>& v) {
    for (int i = 0; i < N; i++) d[i] = v.d[i];
  }
  MSL_INLINE operator vec<T, N>() const {
    vec<T, N> v;
    for (int i = 0; i < N; i++) v.d[i] = d[i];
    return v;
  }
  MSL_INLINE T& operator[](int i) { return d[i]; }
  MSL_INLINE const T& operator[](int i) const { return d[i]; }
};

#define MSL_NAMES(T)                                                                          \
  using T##2 = vec<T, 2>;                                                                     \
  using T##3 = vec<T, 3>;                                                                     \
  using T##4 = vec<T, 4>;                                                                     \
  using packed_##T##2 = packed_vec<T, 2>;                                                     \
  using packed_##T##3 = packed_vec<T, 3>;                                                     \
  using packed_##T##4 = packed_vec<T, 4>;
MSL_NAMES(float)
MSL_NAMES(half)
MSL_NAMES(bfloat)
MSL_NAMES(char)
MSL_NAMES(uchar)
MSL_NAMES(short)
MSL_NAMES(ushort)
MSL_NAMES(int)
MSL_NAMES(uint)
MSL_NAMES(long)
MSL_NAMES(ulong)
MSL_NAMES(bool)
#undef MSL_NAMES

}  // namespace metal
