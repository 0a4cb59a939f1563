#include "libprobe/ring/reader_gate.h"

#include <time.h>

#include "libprobe/ring/record_lock.h"
#include "libprobe/ring/shared_copy.h"

namespace cgdebug::ring {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kSpin = std::chrono::microseconds(20);
constexpr auto kAliveCheck = std::chrono::milliseconds(2);
constexpr long kNapNs = 50'000;

}  // namespace

bool ReaderGate::ReaderAlive() const noexcept {
  return LoadRelaxed(consumer_->generation) != 0 && LockedByOther(fd_, layout::kReaderLockByte);
}

bool ReaderGate::WaitFor(const std::uint64_t& consumed, std::uint64_t needed,
                         std::chrono::nanoseconds deadline) noexcept {
  if (LoadAcquire(consumed) >= needed) return true;
  if (LoadRelaxed(consumer_->progress) == LoadRelaxed(gave_up_at_progress_)) return false;
  const auto start = Clock::now();
  auto next_alive_check = start;
  while (LoadAcquire(consumed) < needed) {
    const auto now = Clock::now();
    if (now >= next_alive_check) {
      if (!ReaderAlive()) return false;
      next_alive_check = now + kAliveCheck;
    }
    if (now - start >= deadline) {
      StoreRelaxed(gave_up_at_progress_, LoadRelaxed(consumer_->progress));
      return false;
    }
    if (now - start >= kSpin) {
      const timespec nap = {0, kNapNs};
      nanosleep(&nap, nullptr);
    }
  }
  return true;
}

}  // namespace cgdebug::ring
