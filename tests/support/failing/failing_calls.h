// failing_calls.h: the page in a file that a test shares with a process under failing_calls.cpp.
#pragma once

#include <cstdint>

namespace cgdebug::test {

// As in SQLite's own tests: in the tested process, the n-th call of one kind fails, once.
//
//   CGDEBUG_FAIL_FILE   a file of at least sizeof(FailPlan), mapped by each process
//   CGDEBUG_FAIL_IN     the program in which it fails (its name in /proc/PID/comm)
//
// tests/python/losses/failing_world.py knows the same layout.
enum class FailKind : std::uint32_t {
  kNone = 0,
  kOpen = 1,       // open, openat, shm_open, fopen, opendir
  kMmap = 2,       // mmap
  kFallocate = 3,  // posix_fallocate, fallocate
  kWrite = 4,      // write, pwrite, writev, pwritev
  kSync = 5,       // fdatasync, fsync
  kRename = 6,     // rename
  kAccept = 7,     // accept, accept4
  kMalloc = 8,     // malloc, calloc, realloc, operator new
};
inline constexpr std::uint32_t kFailKinds = 9;

struct FailPlan {
  std::uint32_t kind;  // FailKind
  std::int32_t error;  // errno of the call that fails; 0: from the nth on they wait until kind is 0
  std::uint64_t nth;   // from 1; 0 = none fails
  std::uint64_t calls[kFailKinds];
  std::uint64_t failed;  // 1 when it has failed, or waits
  std::uint64_t frames;  // of the failed call, in `stack`
  char stack[24][128];   // "library+0xoffset", innermost first
};

}  // namespace cgdebug::test
