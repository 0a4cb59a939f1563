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
class CompareSink final : public pipeline::Sink {
 public:
  // `events` outlives the sink.
  explicit CompareSink(pipeline::EventLog* events) : events_(events) {}

  void OpenSlot(const pipeline::SlotPtr& slot, pipeline::SlotFeedback& feedback) override;
  void Consume(const pipeline::Delivery& delivery, pipeline::SlotFeedback& feedback) override;
  void CloseSlot(const pipeline::SlotPtr& slot, std::uint64_t last_replay,
                 pipeline::SlotFeedback& feedback) override;
  void ForgetSession(const pipeline::SessionPtr& session) override;
  void ForgetSlot(const pipeline::SlotPtr& slot) override;

 private:
  struct Slot {
    layout::Verdict verdict;
    bool usable = false;  // the expected tensor
    bool torn = false;    // an earlier daemon was killed while it wrote the verdict
  };
  bool CountMissed(Slot* slot, std::uint32_t every, std::uint64_t last_missed);
  // Requires: `delivery` has a comparison.
  void TakeComparison(const pipeline::Delivery& delivery, Slot* slot);

  pipeline::EventLog* events_;
  std::map<pipeline::SlotPtr, Slot> slots_;
};

}  // namespace cgdebug::sinks
