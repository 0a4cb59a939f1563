#include "libprobe/ring/reader_gate.h"

#include <time.h>

#include <algorithm>

#include "libprobe/ring/credit.h"
#include "libprobe/ring/record_lock.h"

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

bool ReaderGate::AwaitReader(std::chrono::nanoseconds deadline) const noexcept {
  const auto start = Clock::now();
  while (!ReaderAlive()) {
    if (Clock::now() - start >= deadline) return false;
    const timespec nap = {0, kNapNs};
    nanosleep(&nap, nullptr);
  }
  return true;
}

bool ReaderGate::Refused(std::uint64_t order) const noexcept {
  return LoadRelaxed(refusals_[order % layout::kRefusals]) == static_cast<layout::Refusal>(order);
}

ReaderGate::Result ReaderGate::WaitFor(const layout::SlotCredit& credit, std::uint64_t order,
                                       std::uint64_t needed, std::chrono::nanoseconds deadline,
                                       std::uint64_t* gave_up) noexcept {
  Clock::time_point start = {};
  Clock::time_point next_alive_check = {};
  std::chrono::nanoseconds waited{0};
  while (CreditedOrdinal(credit, order) < needed) {
    // Read before asking whether the daemon lives: a daemon that attaches after that answer moves
    // `progress` on, and one that moved it before is found alive (G2, pairs with G1).
    const std::uint64_t progress = LoadAcquire(consumer_->progress);
    const std::uint64_t mark =
        layout::GaveUpMark(LoadRelaxed(consumer_->generation), LoadRelaxed(credit.consumed));
    if (progress == LoadRelaxed(gave_up_at_progress_) || mark == *gave_up || Refused(order)) {
      return {false, waited};
    }
    const auto now = Clock::now();
    if (now >= next_alive_check) {
      if (!ReaderAlive()) {
        StoreRelaxed(gave_up_at_progress_, progress);
        return {false, waited};
      }
      if (start == Clock::time_point{}) start = now;
      next_alive_check = now + kAliveCheck;
    }
    waited = std::max<std::chrono::nanoseconds>(now - start, std::chrono::nanoseconds(1));
    if (waited >= deadline) {
      StoreRelaxed(gave_up_at_progress_, progress);
      *gave_up = mark;
      return {false, waited};
    }
    if (waited >= kSpin) {
      const timespec nap = {0, kNapNs};
      nanosleep(&nap, nullptr);
    }
  }
  return {true, waited};
}

}  // namespace cgdebug::ring
