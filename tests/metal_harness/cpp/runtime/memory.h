// The kernel's buffers and its threadgroup memory, laid out so that straying is noticed.
#pragma once
#include <stddef.h>

#include <string>
#include <vector>

// In a plain build a buffer ends at a page that cannot be touched, inputs cannot be written, and
// a pattern around the rest must stay as it is. In a sanitizer's build it is a heap block, which
// has the sanitizer's own red zones to the byte.
struct Buffer {
  std::string name, path;
  size_t bytes = 0;
  bool input = false;   // cannot be written
  bool filled = false;  // starts with the file's content; otherwise with all ones, which is NaN
  char* base = nullptr;
  char* map = nullptr;
  size_t map_bytes = 0;

  bool allocate();
  bool save() const;
  void check_canary() const;
};

extern std::vector<Buffer> all_buffers;

// Turns a hit on a guard page into a message that names the buffer and the offset.
void install_fault_handler();

// Fresh threadgroup memory for the next threadgroup, all ones.
void reset_threadgroup_memory();
