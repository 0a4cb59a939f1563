// gpu_clock.h: turns the timestamps of the direct lane, which come from a GPU's clock, into the
// host's time.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

namespace cgdebug::ingest {

// The clock of one device as one job reads it. The job sets it by the host's clock when it captures
// its first probe; from then on the two drift apart.
//
// The daemon looks at the rings again and again. A commit that it sees, and did not see when it
// looked before, happened between these two looks; so it knows between which bounds the lag of the
// GPU's clock lies. It keeps its estimate until a commit contradicts it, and then moves the
// estimate to the nearest bound: no correction is larger than what was seen demands. So a snapshot
// that is read late moves nothing, and a host's clock that is set shows with the next commits.
//
// Thread: one at a time; several may call the const functions.
class GpuClock {
 public:
  // `set_ns`: when the two clocks agreed, by the host's.
  explicit GpuClock(std::int64_t set_ns) : set_ns_(set_ns) {}

  // The daemon looks at the slots: what it has not seen yet was committed after the look before.
  void BeginLook() { seen_before_ns_ = newest_ns_; }

  // The newest timestamp of a slot, which may be anything. By the host's clock it was there at
  // `seen_ns`, and not yet at `absent_ns`; not set: nobody looked before.
  void See(std::int64_t timestamp_ns, std::optional<std::int64_t> absent_ns, std::int64_t seen_ns);

  // Whether it saw a commit come, and so knows how far the clocks are apart.
  bool known() const { return known_; }

  // Converts to the host's clock. Assumes that the GPU's clock drifted evenly from when it was set
  // until the first commit that was observed.
  std::int64_t ToHost(std::int64_t timestamp_ns) const;

 private:
  struct Lag {
    std::int64_t from_ns;  // by the GPU's clock
    std::int64_t lag_ns;   // how far it is behind the host's; negative: ahead of it
  };

  std::int64_t set_ns_;
  std::int64_t newest_ns_ = 0;       // the newest timestamp that was seen
  std::int64_t seen_before_ns_ = 0;  // the same, as this look began
  std::deque<Lag> lags_;             // oldest first
  bool known_ = false;
};

}  // namespace cgdebug::ingest
