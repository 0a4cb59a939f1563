// process_segment.h: the segment of this process, made when it is first needed, and the census in
// it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "libprobe/ring/graph_census.h"
#include "libprobe/ring/segment/segment_writer.h"
#include "libprobe/slots/current_step.h"
#include "libprobe/slots/not_seen.h"

namespace cgdebug {

// Thread: one at a time (the probe table's lock).
class ProcessSegment {
 public:
  // Both outlive it.
  ProcessSegment(CurrentStep* step, NotSeen* not_seen) : step_(step), not_seen_(not_seen) {}

  // The first call makes it. Fails: throws SharedMemoryError.
  ring::SegmentWriter& Get();
  // The segment if there is one already, else nullptr.
  ring::SegmentWriter* writer() const { return writer_.get(); }
  // Whether a recording waited for this process, so that its slots lose nothing.
  bool lossless() const { return lossless_; }
  // Whether a daemon reads the segment.
  bool DaemonAlive() const { return writer_ != nullptr && writer_->gate()->ReaderAlive(); }

  // The census of graphs in the segment. The first call makes both; nullptr if there is no room.
  ring::GraphCensusWriter* Census() noexcept;
  // The same if it is there already.
  ring::GraphCensusWriter* census() { return census_ ? &*census_ : nullptr; }
  // Counts a probe's call in the census. A graph that nobody announced is in it from here on.
  void CountProbe(std::uint64_t graph_id, const std::string& label, std::uint64_t bytes);

 private:
  CurrentStep* step_;
  NotSeen* not_seen_;
  std::unique_ptr<ring::SegmentWriter> writer_;  // never destroyed, as the probe table is not
  std::optional<ring::GraphCensusWriter> census_;
  bool census_failed_ = false;
  bool lossless_ = false;
};

}  // namespace cgdebug
