#include "scheduler.h"

#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <string>
#include <vector>

#include "fiber.h"
#include "memory.h"
#include "report.h"
#include "sanitizers.h"

msl::Thread* msl::self;
void* msl::buffers[64];

namespace {

enum class State : uint8_t { ready, waiting, returned };

struct GpuThread {
  Fiber fiber;
  msl::Thread ids;
  State state;
  msl::Site site;  // where it waits
};

struct Simdgroup {
  unsigned size, live, arrived;
  msl::Site site;
  uint32_t present;
  void* token;
  // Two tables: lanes may still read the last operation's while others fill the next.
  unsigned table;
  uint32_t table_present[2];
  alignas(16) unsigned char slots[2][32 * msl::slot_bytes];
};

// Threadgroups near each other in time use different identities for the race detector. With one
// set they would seem ordered, and two threadgroups that write one address would go unseen.
constexpr unsigned pool_count = sanitizer::finds_races ? 5 : 1;
std::vector<GpuThread> pools[pool_count];

GpuThread* threads;  // of the running threadgroup
unsigned thread_count, live, ready;
std::vector<Simdgroup> simdgroups;
struct {
  unsigned arrived;
  int line;
  void* token;
} barrier;

Fiber system_fiber;
GpuThread* running;  // null on the system's stack
Schedule schedule;
uint64_t random_state;
char start_token, end_token;  // order what the system's stack does before and after all threads

// A barrier that orders memory needs an address of its own for the race detector.
void* new_token() {
  if (!sanitizer::finds_races) return nullptr;
  constexpr size_t count = 1 << 20;
  static char* tokens = static_cast<char*>(malloc(count * 8));
  static size_t next = 0;
  return tokens + 8 * (next++ % count);
}

unsigned random_index() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return unsigned(random_state % thread_count);
}

// The next ready thread in the order of the schedule, counted from the running one.
GpuThread* pick() {
  if (!ready) return nullptr;
  const bool back = schedule == Schedule::reverse;
  unsigned i = running ? unsigned(running - threads) : back ? 0 : thread_count - 1;
  if (schedule == Schedule::random) i = random_index();
  for (unsigned k = 0; k < thread_count; k++) {
    i = back ? (i ? i - 1 : thread_count - 1) : (i + 1 == thread_count ? 0 : i + 1);
    if (threads[i].state == State::ready) return &threads[i];
  }
  return nullptr;
}

void run(GpuThread* next) {
  if (next == running) return;
  Fiber& from = running ? running->fiber : system_fiber;
  running = next;
  msl::self = next ? &next->ids : nullptr;
  switch_fiber(from, next ? next->fiber : system_fiber);
}

// Lists, for every simdgroup, which lanes wait where.
[[noreturn]] void report_deadlock() {
  std::string text;
  for (unsigned s = 0; s < simdgroups.size(); s++) {
    text += "\n  simdgroup " + std::to_string(s) + ":";
    for (unsigned l = 0, same = 0; l < simdgroups[s].size; l += same) {
      const GpuThread& t = threads[32 * s + l];
      const auto alike = [&](const GpuThread& o) {
        const bool there = o.site.operation == t.site.operation && o.site.line == t.site.line;
        return o.state == t.state && (there || t.state == State::returned);
      };
      for (same = 0; l + same < simdgroups[s].size && alike(threads[32 * s + l + same]);) same++;
      text += " " + std::to_string(same) + " lanes ";
      text += t.state == State::returned ? std::string("returned,")
                                         : "wait in " + std::string(t.site.operation) +
                                               " at line " + std::to_string(t.site.line) + ",";
    }
    text.pop_back();
  }
  msl::fail("divergence", "the threads wait for each other%s", text.c_str());
}

void wait_at(msl::Site site) {
  running->state = State::waiting;
  running->site = site;
  ready--;
  GpuThread* next = pick();
  if (!next) report_deadlock();
  run(next);
}

void wake(unsigned first, unsigned count) {
  for (unsigned i = first; i < first + count; i++) {
    if (threads[i].state != State::waiting) continue;
    threads[i].state = State::ready;
    ready++;
  }
}

Simdgroup& own_simdgroup() { return simdgroups[msl::self->simdgroup_index]; }

// Counts this lane in; true for the last one, who wakes the others.
bool arrive(Simdgroup& group, msl::Site site) {
  if (group.live != group.size)
    msl::fail("divergence", "%s at line %d after %u lanes returned", site.operation, site.line,
              group.size - group.live);
  if (group.arrived && (group.site.operation != site.operation || group.site.line != site.line))
    msl::fail("divergence", "lanes of one simdgroup are in %s at line %d and in %s at line %d",
              group.site.operation, group.site.line, site.operation, site.line);
  if (!group.arrived) group.site = site, group.present = 0;
  group.present |= 1u << msl::self->index_in_simdgroup;
  if (++group.arrived != group.size) return false;
  group.arrived = 0;
  wake(32 * msl::self->simdgroup_index, group.size);
  return true;
}

void run_thread() {
  begin(system_fiber);
  sanitizer::acquire(&start_token);
  msl::entry();
  sanitizer::release(&end_token);

  const Simdgroup& group = own_simdgroup();
  if (group.arrived)
    msl::fail("divergence", "a lane returned while others are in %s at line %d",
              group.site.operation, group.site.line);
  if (barrier.arrived)
    msl::fail("divergence", "a thread returned while others wait in threadgroup_barrier at line %d",
              barrier.line);
  own_simdgroup().live--;
  live--;
  ready--;
  running->state = State::returned;
  running->fiber.finished = true;
  GpuThread* next = live ? pick() : nullptr;
  if (live && !next) report_deadlock();
  run(next);
  abort();  // nobody resumes a thread that returned
}

void place_thread(GpuThread& t, unsigned i, const Launch& launch, const uint32_t group[3],
                  const uint32_t size[3]) {
  const uint32_t position[3] = {i % size[0], i / size[0] % size[1], i / size[0] / size[1]};
  for (int d = 0; d < 3; d++) {
    t.ids.position_in_threadgroup[d] = position[d];
    t.ids.threadgroup_position_in_grid[d] = group[d];
    t.ids.position_in_grid[d] = group[d] * launch.threadgroup[d] + position[d];
    t.ids.threads_per_threadgroup[d] = size[d];
    t.ids.dispatch_threads_per_threadgroup[d] = launch.threadgroup[d];
    t.ids.threads_per_grid[d] = launch.grid[d];
    t.ids.threadgroups_per_grid[d] = launch.groups[d];
  }
  t.ids.index_in_threadgroup = i;
  t.ids.index_in_simdgroup = i % 32;
  t.ids.simdgroup_index = i / 32;
  t.ids.simdgroups_per_threadgroup = unsigned(simdgroups.size());
  t.state = State::ready;
  prepare(t.fiber, run_thread);
}

}  // namespace

void start_scheduler() { adopt_system_stack(system_fiber); }

void run_threadgroup(const Launch& launch, uint64_t index) {
  uint32_t group[3], size[3];
  uint64_t rest = index;
  for (int d = 0; d < 3; d++) {
    group[d] = uint32_t(rest % launch.groups[d]);
    rest /= launch.groups[d];
    size[d] = std::min(launch.threadgroup[d], launch.grid[d] - group[d] * launch.threadgroup[d]);
  }
  thread_count = live = ready = size[0] * size[1] * size[2];
  schedule = launch.schedule;
  // Seeded by the threadgroup, so that the result does not depend on how workers share them.
  random_state = (launch.seed + index + 1) * 0x9e3779b97f4a7c15ull;

  simdgroups.resize((thread_count + 31) / 32);
  for (unsigned s = 0; s < simdgroups.size(); s++) {
    simdgroups[s].size = simdgroups[s].live = std::min(32u, thread_count - 32 * s);
    simdgroups[s].arrived = 0;
  }
  barrier.arrived = 0;
  reset_threadgroup_memory();
  auto& pool = pools[index % pool_count];
  if (pool.size() < thread_count) pool.resize(thread_count);
  threads = pool.data();
  for (unsigned i = 0; i < thread_count; i++) place_thread(threads[i], i, launch, group, size);

  sanitizer::release(&start_token);
  run(pick());
}

void finish_scheduler() { sanitizer::acquire(&end_token); }

void msl::barrier_threadgroup(int flags, int line) {
  if (live != thread_count)
    fail("divergence", "threadgroup_barrier at line %d after %u threads returned", line,
         thread_count - live);
  if (barrier.arrived && barrier.line != line)
    fail("divergence", "threads wait in threadgroup_barrier at line %d and at line %d",
         barrier.line, line);
  if (!barrier.arrived) barrier.line = line, barrier.token = flags ? new_token() : nullptr;
  void* token = barrier.token;
  sanitizer::release(token);
  if (++barrier.arrived == thread_count) {
    barrier.arrived = 0;
    wake(0, thread_count);
  } else {
    wait_at({"threadgroup_barrier", line});
  }
  sanitizer::acquire(token);
}

void msl::barrier_simdgroup(int flags, int line) {
  Simdgroup& group = own_simdgroup();
  if (!group.arrived) group.token = flags ? new_token() : nullptr;
  void* token = group.token;
  sanitizer::release(token);
  const Site site = {"simdgroup_barrier", line};
  if (!arrive(group, site)) wait_at(site);
  sanitizer::acquire(token);
}

const unsigned char* msl::exchange(Site site, const void* value, unsigned bytes,
                                   uint32_t* present) {
  Simdgroup& group = own_simdgroup();
  const unsigned table = group.table;
  // Byte by byte, not memcpy: that one is watched by the sanitizers even from here.
  volatile unsigned char* slot = group.slots[table] + slot_bytes * self->index_in_simdgroup;
  for (unsigned i = 0; i < bytes; i++) slot[i] = static_cast<const unsigned char*>(value)[i];
  if (arrive(group, site)) {
    group.table_present[table] = group.present;
    group.table ^= 1;
  } else {
    wait_at(site);
  }
  *present = group.table_present[table];
  return group.slots[table];
}

void print_location() {
  if (!running) return;
  const msl::Thread& t = running->ids;
  fprintf(stderr, "  in threadgroup (%u, %u, %u), thread %u: simdgroup %u, lane %u\n",
          t.threadgroup_position_in_grid[0], t.threadgroup_position_in_grid[1],
          t.threadgroup_position_in_grid[2], t.index_in_threadgroup, t.simdgroup_index,
          t.index_in_simdgroup);
}

bool in_stack_guard(const char* address) {
  for (unsigned i = 0; i < thread_count; i++)
    if (overflowed(threads[i].fiber, address)) return true;
  return false;
}
