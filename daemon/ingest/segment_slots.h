// segment_slots.h: the slots of one job's segment that are read, those that are not and why, and
// those that are gone and still shown.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/ingest/destination.h"
#include "daemon/ingest/gpu_clock.h"
#include "daemon/ingest/slot/log_masks.h"
#include "daemon/ingest/slot/slot_consumer.h"
#include "daemon/ingest/slot/slot_watch.h"
#include "daemon/model/identity.h"
#include "libprobe/ring/segment/segment_view.h"

namespace cgdebug::ingest {

// Thread: the ingest thread. Requires of all calls: the caller holds a SigbusGuard, and looks at
// it.
class SegmentSlots {
 public:
  struct Refused {
    std::string reason;
    bool may_pass = false;  // it is tried again
  };

  // Lifetime: `view` outlives Clear().
  SegmentSlots(ring::SegmentView* view, const Destination& destination,
               pipeline::SessionPtr session)
      : view_(view), destination_(destination), session_(std::move(session)) {}

  // Opens and closes slots as the directory has them now.
  void Scan();
  // The same if the directory may have changed. With many slots it is put off for up to a
  // millisecond, so that commits of the CPU do not make each pass read the whole directory; false
  // if it was.
  bool ScanIfChanged();
  // Slots that were refused because the system refused something are tried by the next Scan();
  // false if there are none.
  bool RetryRefused();
  // Forgets all but those that are still shown. The view may go then.
  void Clear();

  SlotWatch& watch() { return watch_; }
  // In the order of the graphs.
  const std::vector<SlotConsumer*>& all() const { return graph_order_; }
  // By directory index.
  const std::map<std::uint32_t, Refused>& refused() const { return refused_; }
  // By device.
  std::map<int, GpuClock>& clocks() { return clocks_; }
  // The reader of a slot that is shown; null if it is read no more.
  SlotConsumer* ThatShows(const pipeline::SlotPtr& slot) const {
    const std::uint32_t index = pipeline::DirectoryIndexOf(*slot);
    const bool is_read = index < slots_.size() && slots_[index] && slots_[index]->Shows(slot);
    return is_read ? slots_[index].get() : nullptr;
  }
  // The slot with this order of registration, also if it is gone. One without a name if it is not
  // known.
  pipeline::SlotPtr WithOrder(std::uint64_t order) const;

 private:
  void Open(std::uint32_t index, std::uint64_t word);
  void Refuse(std::uint32_t index, const std::string& reason, bool may_pass);
  void Close(std::uint32_t index);
  // The one of the slot's timestamps; null: they come from the host's.
  GpuClock* ClockOf(const pipeline::SlotIdentity& slot);

  ring::SegmentView* const view_;
  const Destination destination_;
  const pipeline::SessionPtr session_;
  std::map<int, GpuClock> clocks_;
  LogMasks masks_;
  std::vector<std::uint64_t> words_;                  // of the directory, as last seen
  std::vector<std::unique_ptr<SlotConsumer>> slots_;  // by directory index; may be empty
  std::vector<SlotConsumer*> graph_order_;
  SlotWatch watch_;                    // of `graph_order_`
  std::uint64_t scanned_ = 0;          // host activity as Scan() began
  bool is_due_ = true;                 // Scan(), whatever that says
  SlotWatch::Clock::time_point next_;  // may be put off until then
  // Still shown, oldest first; the rows of an op log together.
  std::deque<std::vector<pipeline::SlotPtr>> given_up_;
  std::size_t given_up_count_ = 0;  // of the slots in it
  std::map<std::uint32_t, Refused> refused_;
};

}  // namespace cgdebug::ingest
