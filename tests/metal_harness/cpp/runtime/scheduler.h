// Runs one threadgroup at a time, its threads taking turns at barriers and simdgroup operations.
#pragma once
#include <stdint.h>

enum class Schedule { forward, reverse, random };

struct Launch {
  uint32_t grid[3];         // in threads
  uint32_t threadgroup[3];  // already no larger than the grid
  uint32_t groups[3];
  Schedule schedule;
  uint64_t seed;
};

// To be called once, before the first threadgroup.
void start_scheduler();

void run_threadgroup(const Launch& launch, uint64_t index);

// To be called once, after the last threadgroup. Doing this after each would put threadgroups in
// an order that the GPU does not give them.
void finish_scheduler();
