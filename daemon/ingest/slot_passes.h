// slot_passes.h: which slots of a job are read next, and when their credit moves.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "daemon/ingest/segment_slots.h"
#include "daemon/ingest/slot/slot_consumer.h"
#include "daemon/pipeline/sink.h"
#include "libprobe/ring/segment/segment_view.h"

namespace cgdebug::ingest {

// Passes over the slots of one segment, as AttachedSegment has them.
//
// Thread: the ingest thread. Requires of all calls: the caller holds a SigbusGuard, and looks at
// it.
class SlotPasses {
 public:
  // `began_ns`: CLOCK_REALTIME of the job's start. Lifetime: `view` outlives the last pass.
  SlotPasses(const ring::SegmentView* view, SegmentSlots* slots, pipeline::Sink* sink,
             std::int64_t began_ns)
      : view_(view), slots_(slots), sink_(sink), began_ns_(began_ns) {}

  void Begin(bool thorough, std::vector<SlotConsumer*>* ready);
  void Commit(SlotConsumer* slot);
  // Credits move only after the sinks have written what they gathered from many slots.
  void Settle();
  bool End();
  // The next pass looks at the slots, whatever the activity word says.
  void LookAgain() { ever_polled_ = false; }

  // The job is gone, and passes read what it left: until it is drained. False if it left nothing.
  bool BeginDrain();
  void EndDrain() { drain_.is_on = false; }
  bool draining() const { return drain_.is_on; }
  bool drained() const { return drain_.is_on && drain_.is_over; }

 private:
  struct Pass {
    bool is_open = false;
    bool consumed_any = false;
    bool coming = false;        // an entry that is not whole yet
    bool put_off = false;       // slots for the next one
    bool awaits_clock = false;  // a slot does
    bool unscanned = false;     // the directory may have changed
  };
  // Of a job that is gone, while what it left is read.
  struct Drain {
    bool is_on = false;
    bool is_over = false;
    std::uint64_t last_order = 0;  // of the slot that was read last: the next pass begins after it
    std::uint64_t left = 0;        // at most so many snapshots can it have left
    std::size_t empty_passes = 0;  // in a row
  };
  // Consumed, but credit not moved yet.
  struct Unsettled {
    std::vector<SlotConsumer*> slots;
    std::uint64_t bytes = 0;
  };
  // The slots that have work, in the order in which this pass reads them.
  const std::vector<SlotConsumer*>& FindWork(bool all, std::int64_t looked_ns, bool is_active);
  // Whether the slot is not read yet, because its timestamps could be far off.
  bool AwaitsClock(const SlotConsumer& slot) const;

  const ring::SegmentView* const view_;
  SegmentSlots* const slots_;
  pipeline::Sink* const sink_;
  const std::int64_t began_ns_;
  std::uint64_t activity_ = 0;          // when the pass began
  std::uint64_t seen_activity_ = 0;     // everything up to here is read
  std::uint64_t retried_activity_ = 0;  // when a snapshot was last seen coming
  std::int64_t looked_ns_ = 0;          // when the slots, or the activity word, were last looked at
  bool ever_polled_ = false;
  Pass pass_;  // this one, or the last
  Drain drain_;
  Unsettled unsettled_;
  std::vector<SlotConsumer*> found_;                                  // by this pass
  std::optional<std::chrono::steady_clock::time_point> await_until_;  // set by the first pass
};

}  // namespace cgdebug::ingest
