// compare_sink.h: keeps the verdict of every slot whose snapshots are compared.
#pragma once

#include <map>

#include "daemon/model/event_log.h"
#include "daemon/pipeline/sink.h"

namespace cgdebug::sinks {

// The verdict of a slot is pass only if every replay it wanted was compared and matched:
//   fail   one did not match; stays, with the first one's replay and text
//   error  some could not be compared (overwritten, half written, no usable expected tensor)
//   pass   compared > 0, and neither of these
// Each replay counts once, over all daemons that worked on the slot: the verdict in shared memory
// says up to which replay it counts.
//
// In the body of a conditional node a replay may have any number of snapshots, or none. There each
// ordinal counts once, and `covered_replay` is an ordinal. What of the lost ones the comparison
// wanted is not known, so all of them count. The same holds where the GPU compares: a replay that
// passed has no entry, and is not in this verdict (layout::WithPassed).
class CompareSink final : public pipeline::Sink {
 public:
  // `events` outlives the sink.
  explicit CompareSink(pipeline::EventLog* events) : events_(events) {}

  void OpenSlot(const pipeline::SlotPtr& slot, pipeline::SlotFeedback& feedback) override;
  void Consume(const pipeline::Delivery& delivery, pipeline::SlotFeedback& feedback) override;
  void Lose(const pipeline::Gap& gap) override;
  void CloseSlot(const pipeline::SlotPtr& slot, std::uint64_t last_replay,
                 pipeline::SlotFeedback& feedback) override;
  void ForgetSession(const pipeline::SessionPtr& session) override;
  void ForgetSlot(const pipeline::SlotPtr& slot) override;

 private:
  struct Slot {
    layout::Verdict verdict;
    bool usable = false;  // the expected tensor
    // Where entries count:
    std::uint64_t last_lost = 0;   // ordinal up to which the job's losses are known
    std::uint64_t suppressed = 0;  // of the runs kept back, those in the verdict
  };
  void AddMissed(Slot* slot, std::uint64_t missed);
  // Counts what a slot whose entries count has missed: lost ordinals up to `last_missed`, and runs
  // that the live control kept back.
  bool CountMissedEntries(Slot* slot, std::uint64_t last_missed, std::uint64_t suppressed);
  bool CountMissed(Slot* slot, std::uint32_t every, std::uint64_t last_missed);
  // Requires: `delivery` has a comparison.
  void TakeComparison(const pipeline::Delivery& delivery, Slot* slot);

  pipeline::EventLog* events_;
  std::map<pipeline::SlotPtr, Slot> slots_;
};

}  // namespace cgdebug::sinks
