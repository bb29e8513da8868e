// What the sanitizers must be told about fibers and memory; nothing in a plain build.
// The runtime itself is compiled without instrumentation, so that only the kernel is judged.
#pragma once
#include <stddef.h>
#if MSL_ADDRESS
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if MSL_THREAD
#include <sanitizer/tsan_interface.h>
#endif

namespace sanitizer {

#if MSL_ADDRESS || MSL_THREAD
constexpr bool active = true;
#else
constexpr bool active = false;
#endif
#if MSL_THREAD
constexpr bool finds_races = true;
#else
constexpr bool finds_races = false;
#endif

// The functions, not the macros: those do nothing in a file compiled without instrumentation.
inline void poison(void* p, size_t bytes) {
#if MSL_ADDRESS
  __asan_poison_memory_region(p, bytes);
#else
  (void)p, (void)bytes;
#endif
}
inline void unpoison(void* p, size_t bytes) {
#if MSL_ADDRESS
  __asan_unpoison_memory_region(p, bytes);
#else
  (void)p, (void)bytes;
#endif
}

// What a thread did before release(token) happened before what another does after acquire(token).
inline void release(void* token) {
#if MSL_THREAD
  if (token) __tsan_release(token);
#else
  (void)token;
#endif
}
inline void acquire(void* token) {
#if MSL_THREAD
  if (token) __tsan_acquire(token);
#else
  (void)token;
#endif
}

}  // namespace sanitizer
