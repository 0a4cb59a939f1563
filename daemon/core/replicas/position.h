// position.h: where in a run a snapshot lies, the same on every rank.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace cgdebug::replicas {

struct Position {
  bool is_step = false;      // else a replay
  std::uint64_t number = 0;  // the step, or the replay
  std::uint64_t nth = 0;     // of the step, or the iteration in the replay
  bool is_call = false;      // the replay is an eager call

  auto operator<=>(const Position&) const = default;
};
// "step 20", "step 20 (number 2 of it)", "replay 7", "call 7".
std::string PositionText(const Position& position);

// Finds the positions of the snapshots of one slot, which it gets in order.
class PositionCounter {
 public:
  // `id`: the ordinal; one that is missing was lost. `may_begin_inside`: the first snapshot that is
  // counted need not be the first of its step.
  Position Next(std::uint64_t id, std::uint64_t replay, std::uint64_t iteration, std::int64_t step,
                bool may_begin_inside);
  // Whether the last position is certain: a loss may have taken snapshots of the same step.
  bool is_certain() const { return is_certain_; }

 private:
  std::uint64_t id_ = 0;
  std::int64_t step_ = -1;
  std::uint64_t nth_ = 0;
  bool is_certain_ = true;
};

}  // namespace cgdebug::replicas
