// open_slots.h: the slots that are open now: how far each has come, and what recordings want of it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "daemon/pipeline/sink.h"
#include "daemon/record/active_recording.h"
#include "proto/layout/slot_control.h"

namespace cgdebug::pipeline {

// Thread: one at a time (Recorder's mutex).
class OpenSlots {
 public:
  // Tells a slot whether a recording needs all of it, and whether one wants its values at all;
  // never blocks. Thread: any.
  using SetLossless =
      std::function<void(const SlotPtr& slot, layout::Lossless lossless, bool wants_values)>;
  using Recordings = std::vector<std::shared_ptr<ActiveRecording>>;

  explicit OpenSlots(SetLossless set_lossless) : set_lossless_(std::move(set_lossless)) {}

  // `seen`: the last ordinal that came before.
  void Open(const SlotPtr& slot, std::uint64_t seen, const Recordings& active);
  // Its snapshots up to this ordinal came, or are lost.
  void See(const SlotPtr& slot, std::uint64_t ordinal);
  void Close(const SlotPtr& slot) { slots_.erase(slot); }
  // If its memory was cut off, slots were not closed.
  void End(const SessionPtr& session);

  // Tells each slot what these recordings want of it now. One that lost nothing for a recording
  // goes back to what its actions want when that is over.
  void Tell(const Recordings& active);
  // Opens the slots that `recording` wants, which takes what comes after these heads.
  void Begin(const RingHeads& heads, ActiveRecording* recording) const;

 private:
  struct State {
    std::uint64_t seen = 0;                                       // the last ordinal
    layout::Lossless lossless = layout::Lossless::kAsRegistered;  // as it was told
    bool wants_values = false;
  };
  void Tell(const SlotPtr& slot, const Recordings& active, State* state) const;

  const SetLossless set_lossless_;
  std::map<SlotPtr, State> slots_;
};

}  // namespace cgdebug::pipeline
