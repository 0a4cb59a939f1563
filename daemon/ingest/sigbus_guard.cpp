#include "daemon/ingest/sigbus_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace cgdebug::ingest {
namespace {

thread_local volatile sig_atomic_t guard_depth = 0;
thread_local volatile sig_atomic_t guard_hit = 0;

void OnSigbus(int, siginfo_t* info, void*) {
  const int saved_errno = errno;
  if (guard_depth > 0 && info->si_code == BUS_ADRERR) {
    const auto page_bytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));  // ARM: also 64 KiB
    const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr) & ~(page_bytes - 1);
    if (mmap(reinterpret_cast<void*>(address), page_bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED) {
      guard_hit = 1;
      errno = saved_errno;
      return;
    }
  }
  signal(SIGBUS, SIG_DFL);  // the access repeats and ends the process
}

}  // namespace

void SigbusGuard::Install() {
  struct sigaction action = {};
  action.sa_sigaction = OnSigbus;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, nullptr);
}

SigbusGuard::SigbusGuard(bool* hit) noexcept : hit_(hit) {
  if (guard_depth == 0) guard_hit = 0;
  guard_depth = guard_depth + 1;
}

SigbusGuard::~SigbusGuard() {
  if (hit_ != nullptr && Hit()) *hit_ = true;
  guard_depth = guard_depth - 1;
}

bool SigbusGuard::Hit() noexcept { return guard_hit != 0; }

}  // namespace cgdebug::ingest
