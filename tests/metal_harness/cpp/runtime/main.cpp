// Reads a manifest, runs the kernel over the grid, and writes the outputs.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "memory.h"
#include "report.h"
#include "sanitizers.h"
#include "scheduler.h"

void leave(int status) {
  fflush(stderr);
  _exit(status);
}

void msl::fail(const char* check, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "emulator: [%s] ", check);
  vfprintf(stderr, format, arguments);
  fprintf(stderr, "\n");
  va_end(arguments);
  print_location();
  leave(status_check_failed);
}

// One line for each item: `grid x y z`, `threadgroup x y z`, `schedule number seed`, `workers n`,
// and the arguments in order: `in | out | inout`, bytes, name, path (which takes the line's rest).
static bool read_manifest(const char* path, Launch& launch, unsigned& workers) {
  std::ifstream file(path);
  std::string key;
  while (file >> key) {
    int number;
    if (key == "grid") file >> launch.grid[0] >> launch.grid[1] >> launch.grid[2];
    else if (key == "threadgroup")
      file >> launch.threadgroup[0] >> launch.threadgroup[1] >> launch.threadgroup[2];
    else if (key == "schedule") file >> number >> launch.seed, launch.schedule = Schedule(number);
    else if (key == "workers") file >> workers;
    else {
      Buffer b;
      b.input = key == "in";
      b.filled = key != "out";
      file >> b.bytes >> b.name >> std::ws;
      std::getline(file, b.path);
      all_buffers.push_back(b);
    }
    if (!file) return false;
  }
  return all_buffers.size() <= 64;
}

// Every `workers`-th threadgroup, from the `first` on.
static void run_share(const Launch& launch, uint64_t total, uint64_t first, unsigned workers) {
  for (uint64_t k = first; k < total; k += workers)
    run_threadgroup(launch, launch.schedule == Schedule::reverse ? total - 1 - k : k);
}

// Threadgroups are independent, so processes share them; the sanitizers want only one.
static int run_all(const Launch& launch, uint64_t total, unsigned workers) {
  workers = unsigned(std::min<uint64_t>(workers, total));
  if (sanitizer::active || workers <= 1) {
    run_share(launch, total, 0, 1);
    return 0;
  }
  int worst = 0;
  std::vector<pid_t> children;
  for (unsigned w = 0; w < workers; w++) {
    const pid_t child = fork();
    if (child == 0) {
      run_share(launch, total, w, workers);
      leave(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    if (status) worst = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  return worst;
}

int main(int count, char** arguments) {
  // One write for each message, so that workers do not interleave theirs.
  setvbuf(stderr, nullptr, _IOFBF, 1 << 16);
  Launch launch{};
  unsigned workers = 1;
  if (count != 2 || !read_manifest(arguments[1], launch, workers)) return 2;

  for (size_t i = 0; i < all_buffers.size(); i++) {
    if (!all_buffers[i].allocate()) return 2;
    msl::buffers[i] = all_buffers[i].base;
  }
  uint64_t total = 1, threads = 1;
  for (int d = 0; d < 3; d++) {
    launch.threadgroup[d] = std::min(launch.threadgroup[d], launch.grid[d]);  // as MLX dispatches
    launch.groups[d] = (launch.grid[d] + launch.threadgroup[d] - 1) / launch.threadgroup[d];
    threads *= launch.threadgroup[d];
    total *= launch.groups[d];
  }
  if (threads > 1024)
    msl::fail("limits", "%llu threads in a threadgroup; 1024 is the most",
              (unsigned long long)threads);

  install_fault_handler();
  start_scheduler();
  if (const int status = run_all(launch, total, workers)) leave(status);
  finish_scheduler();
  for (const Buffer& b : all_buffers) {
    if (b.input) continue;
    b.check_canary();
    if (!b.save()) return 2;
  }
  return 0;
}
