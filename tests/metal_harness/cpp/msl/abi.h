// What a kernel, compiled as C++, asks of the runtime.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace msl {

// The ids of one GPU thread; the words are those of Metal's attributes.
struct Thread {
  uint32_t position_in_grid[3];
  uint32_t position_in_threadgroup[3];
  uint32_t threadgroup_position_in_grid[3];
  uint32_t threads_per_threadgroup[3];           // fewer at the edges of the grid
  uint32_t dispatch_threads_per_threadgroup[3];  // as asked for
  uint32_t threads_per_grid[3];
  uint32_t threadgroups_per_grid[3];
  uint32_t index_in_threadgroup;
  uint32_t index_in_simdgroup;
  uint32_t simdgroup_index;
  uint32_t simdgroups_per_threadgroup;
};

// A place in the kernel where threads meet. Names are string literals, compared by address.
struct Site {
  const char* operation;
  int line;
};

constexpr size_t slot_bytes = 64;  // what one lane can hand over in a simdgroup operation

extern Thread* self;     // the running thread
extern void* buffers[];  // the kernel's arguments

void barrier_threadgroup(int flags, int line);
void barrier_simdgroup(int flags, int line);

// Hands over `bytes` of this lane, waits for the simdgroup, and returns everyone's slots.
// Bit l of `present` tells whether lane l exists (the last simdgroup may be partial).
const unsigned char* exchange(Site site, const void* value, unsigned bytes, uint32_t* present);

// The storage of the threadgroup declaration number `id`: the same for the whole threadgroup.
void* threadgroup_storage(int id, size_t bytes, size_t alignment, int line);

[[noreturn]] void fail(const char* check, const char* format, ...);

void entry();  // generated: calls the kernel with the running thread's ids

}  // namespace msl
