// device_requests.h: asks for values of one slot that its job keeps in device memory.
#pragma once

#include <chrono>
#include <cstdint>

#include "daemon/core/base/realtime.h"
#include "libprobe/ring/slot_ring_reader.h"

namespace cgdebug::ingest {

// The slot's window holds one value at a time, so there is one request at a time.
//
// Thread: the ingest thread, under a SigbusGuard.
class DeviceRequests {
 public:
  // `ring` outlives this. `capacity`: SlotRegistration::device_capacity.
  DeviceRequests(ring::SlotRingReader* ring, std::uint32_t capacity)
      : ring_(ring), capacity_(capacity) {}

  // Withdraws what an earlier daemon asked for.
  void Start();
  // Whether the values of the entry may still come.
  bool MayCome(std::uint64_t ordinal) const;
  // Asks for the values of `ordinal` as soon as those that somebody else asked for have come.
  void Ask(std::uint64_t ordinal);
  // The ordinal of the values that are here, if it is `at_least`; else 0, after asking for those of
  // the newest entry.
  std::uint64_t Newest(std::uint64_t at_least);
  // Withdraws a request whose values have come: the device would send them again and again.
  void EndAnswered();
  // Whether a recording wants the values of every new entry.
  void SetEvery(bool every);

 private:
  ring::SlotRingReader* ring_;
  std::uint32_t capacity_;
  bool every_ = false;
  std::uint64_t asked_ = 0;     // WindowRequest::ordinal
  std::uint64_t asked_at_ = 0;  // with kWantsNewest: the newest ordinal then
  std::chrono::steady_clock::time_point asked_time_ = {};
  // Grows with each request. An earlier daemon has not used these numbers.
  std::uint64_t newest_requests_ = static_cast<std::uint64_t>(RealtimeNs());
};

}  // namespace cgdebug::ingest
