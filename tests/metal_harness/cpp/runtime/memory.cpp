#include "memory.h"

#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "report.h"
#include "sanitizers.h"

std::vector<Buffer> all_buffers;

namespace {

constexpr unsigned char canary = 0xcb;
constexpr size_t alignment = 16;  // of every buffer, as the largest vector load needs

size_t page_bytes() { return size_t(sysconf(_SC_PAGESIZE)); }
size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

bool read_file(const std::string& path, char* to, size_t bytes) {
  const int file = open(path.c_str(), O_RDONLY);
  size_t done = 0;
  while (file >= 0 && done < bytes) {
    const ssize_t n = read(file, to + done, bytes - done);
    if (n <= 0) break;
    done += size_t(n);
  }
  close(file);
  return done == bytes;
}

}  // namespace

bool Buffer::allocate() {
  if (sanitizer::active) {
    base = static_cast<char*>(malloc(bytes ? bytes : 1));
  } else {
    const size_t page = page_bytes(), body = round_up(bytes ? bytes : 1, page);
    map_bytes = body + 2 * page;
    // Shared, so that the parent sees what forked workers wrote.
    void* p = mmap(nullptr, map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANON, -1, 0);
    if (p == MAP_FAILED) return false;
    map = static_cast<char*>(p);
    memset(map + page, canary, body);
    base = map + page + body - round_up(bytes, alignment);
    mprotect(map, page, PROT_NONE);
    mprotect(map + page + body, page, PROT_NONE);
  }
  if (!filled) memset(base, 0xff, bytes);
  else if (!read_file(path, base, bytes)) return false;
  if (map && input) mprotect(map + page_bytes(), map_bytes - 2 * page_bytes(), PROT_READ);
  return true;
}

bool Buffer::save() const {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  size_t done = 0;
  while (file >= 0 && done < bytes) {
    const ssize_t n = write(file, base + done, bytes - done);
    if (n <= 0) break;
    done += size_t(n);
  }
  close(file);
  return done == bytes;
}

void Buffer::check_canary() const {
  if (!map) return;
  const char *begin = map + page_bytes(), *end = map + map_bytes - page_bytes();
  for (const char* p = begin; p < end; p++) {
    if (p >= base && p < base + bytes) p = base + bytes;
    if (p < end && (unsigned char)*p != canary)
      msl::fail("canary", "byte %td of output '%s', which has %zu, was written", p - base,
                name.c_str(), bytes);
  }
}

static void on_fault(int, siginfo_t* info, void*) {
  const char* p = static_cast<const char*>(info->si_addr);
  for (const Buffer& b : all_buffers) {
    if (p < b.map || p >= b.map + b.map_bytes) continue;
    if (p >= b.base && p < b.base + b.bytes)
      msl::fail("read-only", "input '%s' written at byte %td", b.name.c_str(), p - b.base);
    msl::fail("bounds", "buffer '%s' of %zu bytes accessed at byte %td", b.name.c_str(), b.bytes,
              p - b.base);
  }
  if (in_stack_guard(p)) msl::fail("limits", "the stack of a GPU thread overflowed");
  msl::fail("bounds", "access to %p, which is no buffer", static_cast<const void*>(p));
}

void install_fault_handler() {
  if (sanitizer::active) return;  // they have their own
  stack_t stack{};
  stack.ss_size = 256 * 1024;
  stack.ss_sp = malloc(stack.ss_size);
  sigaltstack(&stack, nullptr);
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, nullptr);
  sigaction(SIGBUS, &action, nullptr);
}

namespace {

constexpr size_t arena_bytes = 128 * 1024;  // the limit, and gaps between the declarations
constexpr size_t limit_bytes = 32 * 1024;
constexpr size_t gap_bytes = 64;

struct Declaration {
  void* storage = nullptr;
  size_t bytes = 0;
};

char* arena = nullptr;
size_t arena_top, bytes_used;
std::vector<Declaration> declarations;

}  // namespace

void reset_threadgroup_memory() {
  // Races are found by remembering accesses to an address, so each threadgroup gets new addresses
  // there; the memory is never freed, since freeing would count as an access.
  if (!arena || sanitizer::finds_races)
    arena = static_cast<char*>(aligned_alloc(4096, arena_bytes));
  sanitizer::unpoison(arena, arena_bytes);
  memset(arena, 0xff, arena_bytes);  // the gaps too: a stray read gives NaN
  sanitizer::poison(arena, arena_bytes);
  arena_top = gap_bytes;
  bytes_used = 0;
  declarations.clear();
}

void* msl::threadgroup_storage(int id, size_t bytes, size_t align, int line) {
  if (declarations.size() <= size_t(id)) declarations.resize(size_t(id) + 1);
  Declaration& d = declarations[size_t(id)];
  if (d.storage) {
    if (d.bytes != bytes) fail("limits", "line %d declares threadgroup memory of two sizes", line);
    return d.storage;
  }
  arena_top = round_up(arena_top, align < 16 ? 16 : align);
  bytes_used += round_up(bytes, 16);
  if (bytes_used > limit_bytes)
    fail("limits", "%zu bytes of threadgroup memory at line %d; a threadgroup has 32 KiB",
         bytes_used, line);
  d = {arena + arena_top, bytes};
  arena_top += bytes + gap_bytes;
  sanitizer::unpoison(d.storage, bytes);
  return d.storage;
}
