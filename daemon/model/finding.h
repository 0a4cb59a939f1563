// finding.h: what is wrong with a slot's values, and where it was first.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "daemon/model/identity.h"

namespace cgdebug::pipeline {

// The first snapshot of its slot with such a fault, among all replays that any daemon saw.
struct Finding {
  SlotPtr slot;
  layout::FindingKind kind = layout::FindingKind::kNan;
  std::uint64_t replay = 0;
  std::uint64_t serial = 0;  // of the replay; 0: not known
  std::int64_t step = -1;
  std::int64_t timestamp_ns = 0;              // 0: an earlier daemon found it
  std::uint64_t count = 0;                    // elements; 0: not known
  std::string text = {};                      // of a mismatch or replica: how it differs
  std::optional<std::uint64_t> element = {};  // of a NaN or Inf: the first that is not finite
  bool has_values = false;  // of a NaN or Inf: the snapshot was seen, and with its values
};

// What to tell the job and whoever waits for it: what was found, where, and what to type next.
// `graph`: as SlotPlace.
std::string SentenceOf(const Finding& finding, const std::string& graph,
                       const std::string& qualifier);

}  // namespace cgdebug::pipeline
