// Fibers: one stack for each GPU thread, and a switch between them of a dozen instructions.
// A barrier costs about 30 ns a thread this way; with system threads it costs a thousand times
// that.
#pragma once
#include <stddef.h>

constexpr size_t stack_bytes = 256 * 1024;

struct Fiber {
  void* stack_pointer = nullptr;
  char* stack = nullptr;  // null: the system's own stack
  size_t stack_size = 0;
  bool finished = false;
  void* address_state = nullptr;  // the address sanitizer's fake stack
  void* thread_state = nullptr;   // the thread sanitizer's identity
};

// Makes `fiber` start at `entry` at the next switch; allocates its stack at the first call.
void prepare(Fiber& fiber, void (*entry)());

// Must be called once, on the system's own stack, before the first switch.
void adopt_system_stack(Fiber& fiber);

// To be called first by every entry function, with the fiber of the system's stack.
void begin(Fiber& system);

void switch_fiber(Fiber& from, Fiber& to);

// Whether the address lies in the guard page under this fiber's stack.
bool overflowed(const Fiber& fiber, const char* address);
