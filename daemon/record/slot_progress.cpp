#include "daemon/record/slot_progress.h"

#include <algorithm>

#include "daemon/core/base/realtime.h"
#include "proto/layout/ring_layout.h"

namespace cgdebug::pipeline {

SlotProgress::Place SlotProgress::PlaceOf(std::uint64_t replay, std::uint64_t align,
                                          std::uint64_t replays) {
  if (first_replay == 0) {
    const bool aligned = align < 2 || replay % align == 0;
    if (!aligned) return Place::kBefore;
    first_replay = replay;
  }
  const bool after = replays != 0 && replay - first_replay >= replays;
  return after ? Place::kAfter : Place::kInside;
}

std::optional<recording::Loss> SlotProgress::Account(Missing missing) {
  missing.last_ordinal = std::min(missing.last_ordinal, until);
  if (missing.last_ordinal < next_ordinal) return std::nullopt;
  const std::uint64_t ordinals = missing.last_ordinal - next_ordinal + 1;
  std::uint64_t wanted = ordinals;
  if (every > 1 && !in_body && !last_forced && !missing.before_forced) {
    const std::uint64_t up_to = std::max(missing.last_replay, last_replay);
    wanted = std::min(ordinals,
                      layout::WantedUpTo(every, up_to) - layout::WantedUpTo(every, last_replay));
  }
  recording::Loss loss;
  loss.slot = id;
  loss.cause = missing.cause;
  loss.count = wanted;
  loss.first_ordinal = next_ordinal;
  loss.last_ordinal = missing.last_ordinal;
  const std::uint64_t out = in_body ? 1 : 0;  // see recording::Loss
  loss.after_replay = last_replay - std::min(last_replay, out);
  loss.before_replay = missing.before_replay == 0 ? 0 : missing.before_replay + out;
  loss.timestamp_ns = RealtimeNs();
  next_ordinal = missing.last_ordinal + 1;
  last_replay = std::max(last_replay, missing.last_replay);
  if (wanted == 0) {
    skipped += ordinals;
    return std::nullopt;
  }
  return loss;
}

std::uint64_t SlotProgress::KeptBackUpTo(std::uint64_t up_to, std::uint64_t lost) const {
  // A snapshot that the live control asked for tells nothing of the replays beside it.
  if (period == 0 || last_forced || up_to <= last_replay) return 0;
  const std::uint64_t wanted =
      layout::WantedUpTo(period, up_to) - layout::WantedUpTo(period, last_replay);
  return wanted - std::min(wanted, lost);
}

}  // namespace cgdebug::pipeline
