#include "daemon/core/replicas/position.h"

#include <fmt/format.h>

#include <utility>

namespace cgdebug::replicas {

std::string PositionText(const Position& position) {
  const char* const unit = position.is_step ? "step" : position.is_call ? "call" : "replay";
  if (position.nth == 0) return fmt::format("{} {}", unit, position.number);
  return fmt::format("{} {} (number {} of it)", unit, position.number, position.nth + 1);
}

Position PositionCounter::Next(std::uint64_t id, std::uint64_t replay, std::uint64_t iteration,
                               std::int64_t step, bool may_begin_inside) {
  const std::uint64_t id_before = std::exchange(id_, id);
  if (step < 0) {
    is_certain_ = true;
    step_ = -1;
    return {false, replay, iteration};
  }
  const std::uint64_t lost = id - id_before - 1;
  if (id_before == 0) {
    is_certain_ = lost == 0 || !may_begin_inside;
    nth_ = 0;
  } else if (step == step_) {
    is_certain_ = is_certain_ && lost == 0;
    ++nth_;
  } else {
    // If each step between had one snapshot, none of this step is among those that are missing.
    // Unsigned: what a job says of its steps may be anything.
    const std::uint64_t steps_between =
        static_cast<std::uint64_t>(step) - static_cast<std::uint64_t>(step_) - 1;
    is_certain_ = lost == 0 || (is_certain_ && nth_ == 0 && step_ >= 0 && steps_between == lost);
    nth_ = 0;
  }
  step_ = step;
  return {true, static_cast<std::uint64_t>(step), nth_};
}

}  // namespace cgdebug::replicas
