// shown_session.h: what a job's segment says of the job as a whole, shown to registry and sinks.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "daemon/ingest/destination.h"
#include "daemon/ingest/segment_slots.h"
#include "libprobe/ring/segment/segment_view.h"
#include "proto/layout/not_seen.h"

namespace cgdebug::ingest {

// Thread: the ingest thread. Requires of all calls: the caller holds a SigbusGuard, and looks at
// it.
class ShownSession {
 public:
  // Lifetime: `view` and `slots` outlive the last call.
  ShownSession(ring::SegmentView* view, const SegmentSlots* slots, const Destination& destination,
               pipeline::SessionPtr session)
      : view_(view), slots_(slots), destination_(destination), session_(std::move(session)) {}

  // An earlier daemon compared replicas that are in no ring any more. NaN, Inf and mismatches are
  // told of again by their slots.
  void ShowToldReplica();
  // Its sums, and what nobody sees of it.
  void Show(bool is_alive);
  void ShowGraphs();
  // Its memory is gone, so that nothing else can be said of it.
  void ShowCutOff();

 private:
  // Tells the sinks what they were not told before. `all`: but for the slots that are not read.
  void TellNotSeen(std::vector<layout::NotSeen> all);

  ring::SegmentView* const view_;
  const SegmentSlots* const slots_;
  const Destination destination_;
  const pipeline::SessionPtr session_;
  std::map<layout::NotSeenKind, layout::NotSeen> told_;
};

}  // namespace cgdebug::ingest
