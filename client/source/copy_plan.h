// copy_plan.h: what a copy of recordings has: each snapshot once, and as losses what none of them
// has.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "client/source/copy_recording.h"
#include "daemon/core/recording/recording_reader.h"

namespace cgdebug::source {

// A snapshot of one of the recordings, on its way to a slot of the copy.
struct CopiedItem {
  std::uint64_t ordinal;
  std::uint32_t slot;  // of the copy
  std::uint32_t reader;
  recording::SnapshotRef ref;
};

// A slot of the copy: the same in every recording that has it.
struct CopiedSlot {
  recording::Slot slot;
  std::string session_uuid;
  std::vector<CopiedItem> items = {};        // by ordinal, each once
  std::vector<CopiedItem> others = {};       // by ordinal: the same snapshots in another recording
  std::vector<recording::Loss> losses = {};  // by ordinal, once it is settled
  // The ordinals that each recording covers: after the first, up to the second.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> stretches = {};
  std::size_t written_losses = 0;  // counted from the first
};

class CopyPlan {
 public:
  // Lifetime: both outlive it.
  CopyPlan(const std::vector<const recording::RecordingReader*>& from, const CopyOptions& options);

  std::vector<CopiedSlot>& slots() { return slots_; }
  // The slot of the copy that has what `slot` of the process `uuid` has; nullptr: it is not copied.
  CopiedSlot* Find(const std::string& uuid, const recording::Slot& slot);
  std::uint64_t snapshots() const;
  std::uint64_t lost() const;
  // Whether only some replays are copied.
  bool is_range() const {
    return options_.first_replay > 1 || options_.last_replay < CopyOptions().last_replay;
  }
  // Makes a mark fit to a slot of which only some replays are copied. False: it is about another
  // one.
  bool FitToRange(const CopiedSlot& slot, recording::Mark* mark) const;

 private:
  bool Wants(const recording::Slot& slot, const recording::RecordingReader& reader) const;
  bool IsWanted(const recording::Loss& loss) const;
  // Takes in what a recording has.
  void Collect(std::uint32_t number, const recording::RecordingReader& reader);
  // Keeps each ordinal once, keeps as losses only what no source has, and finds where the slot
  // begins.
  void Settle(CopiedSlot* target) const;
  // Adds what the job produced between two recordings, while none was written.
  void AddHoles(CopiedSlot* target) const;

  const CopyOptions& options_;
  std::vector<CopiedSlot> slots_;
  std::map<std::tuple<std::string, std::uint32_t, std::uint64_t>, std::size_t> slot_of_;
};

}  // namespace cgdebug::source
