#include "daemon/core/base/terminate.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <exception>
#include <new>

namespace cgdebug {
namespace {

const char* program_name = "cgdebug";
void (*tell_end)(const char* message) = nullptr;
std::atomic<bool> ending = false;  // Atomic: two threads may end at once

constexpr char kNoMemory[] = "no memory is left: it ends here";
thread_local int may_run_out = 0;  // how many MayRunOutOfMemory there are

// Allocates nothing, because there may be no memory left.
[[noreturn]] void EndWith(const char* text) {
  if (ending.exchange(true)) _exit(2);
  char line[600];
  const int bytes = std::snprintf(line, sizeof(line), "%s: %s\n", program_name, text);
  [[maybe_unused]] const ssize_t written =
      write(STDERR_FILENO, line, static_cast<std::size_t>(bytes));
  try {
    if (tell_end != nullptr) tell_end(text);
  } catch (...) {
  }
  _exit(2);
}

[[noreturn]] void OnTerminate() {
  char text[512] = "no memory is left, or an internal error: it ends here";
  try {
    if (const std::exception_ptr exception = std::current_exception()) {
      std::rethrow_exception(exception);
    }
  } catch (const std::bad_alloc&) {
    EndWith(kNoMemory);
  } catch (const std::exception& error) {
    std::snprintf(text, sizeof(text), "an internal error; please report it: %s", error.what());
  } catch (...) {
  }
  EndWith(text);
}

void OnNoMemory() {
  if (may_run_out > 0) throw std::bad_alloc();
  EndWith(kNoMemory);
}

}  // namespace

void EndInsteadOfAborting(const char* program, void (*on_end)(const char* message)) noexcept {
  program_name = program;
  tell_end = on_end;
  std::set_terminate(&OnTerminate);
  std::set_new_handler(&OnNoMemory);
}

MayRunOutOfMemory::MayRunOutOfMemory() noexcept { ++may_run_out; }
MayRunOutOfMemory::~MayRunOutOfMemory() { --may_run_out; }

}  // namespace cgdebug
