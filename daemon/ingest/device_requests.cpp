#include "daemon/ingest/device_requests.h"

#include <utility>

#include "proto/layout/ring_layout.h"

namespace cgdebug::ingest {
namespace {

// How long the values that one client asked for keep those that another asks for waiting.
constexpr auto kAskPatience = std::chrono::milliseconds(500);

bool IsNewest(std::uint64_t asked) { return (asked & layout::kWantsNewest) != 0; }

}  // namespace

void DeviceRequests::Start() { ring_->Request(0, /*every=*/false); }

bool DeviceRequests::MayCome(std::uint64_t ordinal) const {
  if (ordinal < layout::OldestOnDevice(ring_->accepted(), capacity_)) return false;
  return asked_ != ordinal || ring_->refused() != ordinal;
}

void DeviceRequests::Ask(std::uint64_t ordinal) {
  if (asked_ == ordinal) return;
  const auto now = std::chrono::steady_clock::now();
  const bool has_come =
      asked_ == 0 || ring_->refused() == asked_ ||
      (IsNewest(asked_) ? ring_->window() >= asked_at_ : ring_->window() == asked_);
  if (!has_come && now - asked_time_ < kAskPatience) return;
  asked_ = ordinal;
  asked_at_ = ring_->accepted();
  asked_time_ = now;
  ring_->Request(asked_, every_);
}

std::uint64_t DeviceRequests::Newest(std::uint64_t at_least) {
  const std::uint64_t window = ring_->window();
  if (window >= at_least) return window;
  // An answer to a client that has given up may be older than what this one asks for.
  const bool is_coming = IsNewest(asked_) && window < asked_at_;
  if (!is_coming) Ask(layout::kWantsNewest | ++newest_requests_);
  return 0;
}

void DeviceRequests::EndAnswered() {
  if (asked_ == 0 || IsNewest(asked_) || ring_->window() != asked_) return;
  asked_ = 0;
  ring_->Request(0, every_);
}

void DeviceRequests::SetEvery(bool every) {
  if (std::exchange(every_, every) != every) ring_->Request(asked_, every);
}

}  // namespace cgdebug::ingest
