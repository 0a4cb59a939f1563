// slot_progress.h: how far a recording has one slot, and what of it is missing.
#pragma once

#include <cstdint>
#include <optional>

#include "daemon/core/recording/types.h"
#include "proto/layout/loss_cause.h"

namespace cgdebug::pipeline {

// Thread: one at a time (Recorder's mutex).
struct SlotProgress {
  static constexpr std::uint64_t kNoEnd = ~std::uint64_t{0};
  enum class Place { kBefore, kInside, kAfter };
  // Ordinals that never came to the recording.
  struct Missing {
    std::uint64_t last_ordinal = 0;
    std::uint64_t last_replay = 0;
    std::uint64_t before_replay = 0;  // 0: none came after
    layout::LossCause cause = layout::LossCause::kOverwritten;
    bool before_forced = false;
  };

  // Where a replay lies in a recording of `replays` replays (0: any number) that begins at a
  // multiple of `align`. The first one inside is its beginning.
  Place PlaceOf(std::uint64_t replay, std::uint64_t align, std::uint64_t replays);
  // Accounts for them: the recording has lost those that were wanted, which are returned. Between
  // snapshots that the live control asked for, all count as wanted.
  std::optional<recording::Loss> Account(Missing missing);
  // How many replays up to `last_replay` the slot's period wanted, but for `lost` that are
  // accounted for, and the live control kept back.
  std::uint64_t KeptBackUpTo(std::uint64_t last_replay, std::uint64_t lost) const;

  std::uint32_t id = 0;
  std::uint64_t next_ordinal = 1;  // the first one that is not accounted for yet
  std::uint64_t skipped = 0;
  std::uint32_t every = 1;         // replays 1, 1 + every, ... are wanted
  std::uint32_t period = 0;        // the slot's actions want these replays; 0: not a period
  std::uint64_t first_replay = 0;  // of the recording; 0: none yet
  std::uint64_t last_replay = 0;   // every replay up to it is accounted for
  std::uint64_t from_replay = 0;   // replays up to it came before
  std::uint64_t until = kNoEnd;    // the last ordinal that it takes
  std::uint64_t suppressed = 0;    // as the slot's head said last
  std::uint64_t kept_back = 0;     // of these, the ones that are accounted for or came before
  bool last_forced = false;        // the snapshot before was wanted by the live control
  bool in_body = false;            // of a conditional node: any number of snapshots a replay
  bool has_last = false;           // it has a snapshot of the last replay that was asked for
  bool done = false;               // it has all replays that were asked for
};

}  // namespace cgdebug::pipeline
