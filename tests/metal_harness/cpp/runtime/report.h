// How the runtime says that a check failed: one line "emulator: [check] …", then where.
#pragma once
#include "../msl/abi.h"

// Prints the running GPU thread, or nothing outside a kernel.
void print_location();
// Whether the address is in the guard page under a GPU thread's stack.
bool in_stack_guard(const char* address);
// Prints what is still buffered and ends this process.
[[noreturn]] void leave(int status);

constexpr int status_check_failed = 3;
