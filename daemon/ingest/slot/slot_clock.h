// slot_clock.h: when the snapshots of one slot were made, by the host's clock.
#pragma once

#include <cstdint>
#include <optional>

#include "daemon/ingest/gpu_clock.h"
#include "libprobe/ring/slot_ring_reader.h"

namespace cgdebug::ingest {

// Thread: as SlotConsumer.
class SlotClock {
 public:
  // Both outlive this. `clock`: of the slot's timestamps; null: they come from the host's.
  SlotClock(const ring::SlotRingReader* ring, GpuClock* clock) : ring_(ring), clock_(clock) {}

  // Shows the slot's newest timestamp to its clock. `looked_ns`: by the host's clock, when this was
  // last called, or later if nothing was committed since.
  void Watch(std::int64_t looked_ns);
  // Whether timestamps are known in the host's time.
  bool known() const { return clock_ == nullptr || clock_->known(); }
  // Converts the writer's timestamp; the result is never later than now.
  std::int64_t ToHost(std::int64_t timestamp_ns) const { return ToHost(timestamp_ns, 0); }
  // Likewise, of the next snapshot: it is not before the one before it.
  std::int64_t Next(std::int64_t timestamp_ns);
  // A snapshot was delivered, or the head names the newest one: sets last_ns().
  void SeeDelivered(std::int64_t host_ns);
  void SeeHead(std::int64_t timestamp_ns);
  // Of the newest snapshot, in the host's time.
  std::int64_t last_ns() const { return last_ns_; }

 private:
  std::int64_t ToHost(std::int64_t timestamp_ns, std::int64_t not_before_ns) const;

  const ring::SlotRingReader* ring_;
  GpuClock* clock_;
  std::optional<std::int64_t> seen_stamp_ns_;  // by Watch()
  std::int64_t last_ns_ = 0;
  std::int64_t made_ns_ = 0;  // the newest of the snapshots that were made
};

}  // namespace cgdebug::ingest
