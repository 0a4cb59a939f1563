#include "daemon/ingest/slot/slot_clock.h"

#include <algorithm>

#include "daemon/core/base/realtime.h"

namespace cgdebug::ingest {

void SlotClock::Watch(std::int64_t looked_ns) {
  if (clock_ == nullptr) return;
  const std::int64_t stamp_ns = ring_->last_timestamp_ns();
  if (seen_stamp_ns_ == stamp_ns) return;
  const std::int64_t now_ns = RealtimeNs();
  if (!ring_->valid()) return;
  const bool looked = seen_stamp_ns_.has_value();
  clock_->See(stamp_ns, looked ? std::optional(looked_ns) : std::nullopt, now_ns);
  seen_stamp_ns_ = stamp_ns;
}

std::int64_t SlotClock::ToHost(std::int64_t timestamp_ns, std::int64_t not_before_ns) const {
  if (clock_ == nullptr) return timestamp_ns;
  return std::min(std::max(clock_->ToHost(timestamp_ns), not_before_ns), RealtimeNs());
}

std::int64_t SlotClock::Next(std::int64_t timestamp_ns) {
  const std::int64_t host_ns = ToHost(timestamp_ns, made_ns_);
  made_ns_ = std::max(made_ns_, host_ns);
  return host_ns;
}

void SlotClock::SeeDelivered(std::int64_t host_ns) { last_ns_ = std::max(last_ns_, host_ns); }

void SlotClock::SeeHead(std::int64_t timestamp_ns) {
  const std::int64_t host_ns = ToHost(timestamp_ns, made_ns_);
  last_ns_ = clock_ == nullptr ? std::max(last_ns_, host_ns) : host_ns;
}

}  // namespace cgdebug::ingest
