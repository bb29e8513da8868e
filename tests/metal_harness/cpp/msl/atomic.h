// Relaxed atomics: all that Metal had before 3.2.
#pragma once
#include "vector.h"

namespace metal {

enum memory_order { memory_order_relaxed = 0 };

template <class T>
struct atomic {
  T value;
};
using atomic_int = atomic<int>;
using atomic_uint = atomic<uint>;
using atomic_float = atomic<float>;
using atomic_bool = atomic<bool>;

template <class T>
MSL_INLINE T* msl_address(const volatile atomic<T>* object) {
  return const_cast<T*>(&object->value);
}

template <class T>
MSL_INLINE T atomic_load_explicit(const volatile atomic<T>* object, memory_order) {
  T value;
  __atomic_load(msl_address(object), &value, __ATOMIC_RELAXED);
  return value;
}
template <class T, class U>
MSL_INLINE void atomic_store_explicit(volatile atomic<T>* object, U desired, memory_order) {
  T value = T(desired);
  __atomic_store(msl_address(object), &value, __ATOMIC_RELAXED);
}
template <class T, class U>
MSL_INLINE T atomic_exchange_explicit(volatile atomic<T>* object, U desired, memory_order) {
  T value = T(desired), old;
  __atomic_exchange(msl_address(object), &value, &old, __ATOMIC_RELAXED);
  return old;
}

#define MSL_FETCH(name, expression)                                                           \
  template <class T, class U>                                                                 \
  MSL_INLINE T atomic_fetch_##name##_explicit(volatile atomic<T>* object, U by, memory_order) { \
    const T b = T(by);                                                                        \
    T a = atomic_load_explicit(object, memory_order_relaxed), next;                           \
    do next = T(expression);                                                                  \
    while (!__atomic_compare_exchange(msl_address(object), &a, &next, false, __ATOMIC_RELAXED, \
                                      __ATOMIC_RELAXED));                                     \
    return a;                                                                                 \
  }
MSL_FETCH(add, a + b)
MSL_FETCH(sub, a - b)
MSL_FETCH(min, b < a ? b : a)
MSL_FETCH(max, a < b ? b : a)
MSL_FETCH(and, a & b)
MSL_FETCH(or, a | b)
MSL_FETCH(xor, a ^ b)
#undef MSL_FETCH

}  // namespace metal
