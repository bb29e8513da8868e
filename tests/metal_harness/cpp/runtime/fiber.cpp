#include "fiber.h"

#include <string.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sanitizers.h"

// Saves the registers that a call must preserve, stores the stack pointer in *save, and returns
// into the fiber whose stack pointer is `to`. The name is given so that it is the same on macOS.
extern "C" void msl_switch(void** save, void* to) __asm__("msl_switch");

#if defined(__x86_64__)
__asm__(R"(
.text
.globl msl_switch
msl_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
static void* first_frame(char* top, void (*entry)()) {
  // Six registers, the return address, and one word more: an entered function expects its stack
  // to be 8 bytes off a multiple of 16.
  void** frame = reinterpret_cast<void**>(top) - 8;
  memset(frame, 0, 8 * sizeof *frame);
  frame[6] = reinterpret_cast<void*>(entry);
  return frame;
}
#elif defined(__aarch64__)
__asm__(R"(
.text
.globl msl_switch
.p2align 2
msl_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");
static void* first_frame(char* top, void (*entry)()) {
  void** frame = reinterpret_cast<void**>(top - 160);
  memset(frame, 0, 160);
  frame[11] = reinterpret_cast<void*>(entry);  // x30, where `ret` goes
  return frame;
}
#else
#error "This processor needs its own msl_switch."
#endif

static size_t guard_bytes() { return size_t(sysconf(_SC_PAGESIZE)); }

void prepare(Fiber& fiber, void (*entry)()) {
  if (!fiber.stack) {
    const size_t guard = guard_bytes();
    void* p =
        mmap(nullptr, guard + stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
    mprotect(p, guard, PROT_NONE);
    fiber.stack = static_cast<char*>(p) + guard;
    fiber.stack_size = stack_bytes;
#if MSL_THREAD
    fiber.thread_state = __tsan_create_fiber(0);
#endif
  }
  sanitizer::unpoison(fiber.stack, stack_bytes);
  fiber.address_state = nullptr;
  fiber.finished = false;
  fiber.stack_pointer = first_frame(fiber.stack + stack_bytes, entry);
}

void adopt_system_stack(Fiber& fiber) {
#if MSL_THREAD
  fiber.thread_state = __tsan_get_current_fiber();
#else
  (void)fiber;
#endif
}

void begin(Fiber& system) {
#if MSL_ADDRESS
  const void* bottom;
  size_t size;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
  // The first fiber to start comes from the system's stack and so learns where that is.
  if (!system.stack_size) {
    system.stack = static_cast<char*>(const_cast<void*>(bottom));
    system.stack_size = size;
  }
#else
  (void)system;
#endif
}

void switch_fiber(Fiber& from, Fiber& to) {
#if MSL_THREAD
  // The flag says: this switch orders nothing. Only barriers do, or races would go unseen.
  __tsan_switch_to_fiber(to.thread_state, __tsan_switch_to_fiber_no_sync);
#endif
#if MSL_ADDRESS
  __sanitizer_start_switch_fiber(from.finished ? nullptr : &from.address_state, to.stack,
                                 to.stack_size);
#endif
  msl_switch(&from.stack_pointer, to.stack_pointer);
#if MSL_ADDRESS
  __sanitizer_finish_switch_fiber(from.address_state, nullptr, nullptr);
#endif
}

bool overflowed(const Fiber& fiber, const char* address) {
  return fiber.stack && address < fiber.stack && address >= fiber.stack - guard_bytes();
}
