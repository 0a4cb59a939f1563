// verdict.h: what the comparison of a slot has found so far.
#pragma once

#include <cstdint>
#include <string>

#include "proto/layout/field.h"
#include "proto/layout/ring_layout.h"

namespace cgdebug::layout {

struct Verdict {
  VerdictState state = VerdictState::kNone;
  std::uint64_t compared = 0;    // snapshots
  std::uint64_t mismatched = 0;  // of those, the ones that failed
  std::uint64_t lost = 0;        // snapshots that could not be compared
  std::uint64_t first_failed_replay = 0;
  std::string text;  // of the first failure, cut to kVerdictTextBytes
  // Between the daemon and the probe only.
  std::uint64_t covered_replay = 0;  // every replay up to this one is in the counts

  // Numbers and names are those of `Verdict` in proto/control.proto.
  template <typename Self, typename Visitor>
  static constexpr void ForEachField(Self& self, Visitor&& visit) {
    visit(Field{1, "state"}, self.state);
    visit(Field{2, "compared"}, self.compared);
    visit(Field{3, "mismatched"}, self.mismatched);
    visit(Field{4, "lost"}, self.lost);
    visit(Field{5, "first_failed_replay"}, self.first_failed_replay);
    visit(Field{6, "text"}, self.text);
  }
};

// The daemon's verdict with the replays that passed on the device, which the daemon does not see.
// `has_unread`: the slot has entries that the daemon has not compared yet. Each is a replay that
// did not pass on the device, so nobody knows yet whether all have passed.
inline Verdict WithPassed(Verdict verdict, std::uint64_t passed, bool has_unread) {
  verdict.compared += passed;
  if (passed != 0 &&
      (verdict.state == VerdictState::kNone || verdict.state == VerdictState::kPass)) {
    verdict.state = has_unread ? VerdictState::kNone : VerdictState::kPass;
  }
  return verdict;
}

// What the device alone knows of a slot whose replays it compares: whether each of them matched.
// `daemon`: what the daemon has found so far, for the words about a failure. `first_failed` is
// SlotFailure::replay, 0 if there is none.
inline Verdict ByDevice(const Verdict& daemon, const SlotHead& head, std::uint64_t first_failed) {
  Verdict verdict;
  verdict.compared = head.compared;
  verdict.mismatched = head.failed;
  verdict.first_failed_replay = first_failed;
  verdict.state = head.failed != 0     ? VerdictState::kFail
                  : head.compared != 0 ? VerdictState::kPass
                                       : VerdictState::kNone;
  const bool same =
      daemon.state == VerdictState::kFail && daemon.first_failed_replay == first_failed;
  if (same) verdict.text = daemon.text;
  return verdict;
}

}  // namespace cgdebug::layout
