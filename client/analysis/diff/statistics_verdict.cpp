#include "client/analysis/diff/statistics_verdict.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "daemon/core/numerics/stats_difference.h"

namespace cgdebug::analysis {
namespace {

using Kind = StatisticsVerdict::Kind;

// `what` is known of values that were not recorded.
StatisticsVerdict Say(Kind kind, const std::string& what, std::vector<std::string> differing = {}) {
  return {.kind = kind,
          .reason = fmt::format("{}; the values were not recorded", what),
          .differing = std::move(differing)};
}

// Requires: all that both have is the same. Says whether that proves the same values.
StatisticsVerdict JudgeEqualOnes(const RecordedStats& a, const RecordedStats& b) {
  if (!a.stats.has_hash || !b.stats.has_hash) {
    return Say(Kind::kUnknown,
               fmt::format("{} has no xor_hash of it, and equal statistics alone do not prove "
                           "equal values",
                           (a.stats.has_hash ? b : a).path));
  }
  const bool has_order = a.stats.has_ordered_hash && b.stats.has_ordered_hash;
  if (!has_order && numerics::OrderMatters(a.stats)) {
    return Say(Kind::kUnknown,
               fmt::format("{} has no ordered_hash of it, and everything else is the same for the "
                           "same elements in any order: record it again with this version",
                           (a.stats.has_ordered_hash ? b : a).path));
  }
  return {};
}

}  // namespace

StatisticsVerdict JudgeStatistics(const RecordedStats& a, const RecordedStats& b,
                                  const numerics::CompareOptions& tolerance,
                                  const StatisticsOptions& options) {
  std::vector<std::string> names;
  std::string differing;
  for (const numerics::StatsDifference& one : numerics::DifferencesOf(a.stats, b.stats)) {
    names.push_back(one.name);
    differing +=
        fmt::format("{}{} {} against {}", differing.empty() ? "" : ", ", one.name, one.a, one.b);
  }
  const auto say = [&](Kind kind, const std::string& what) { return Say(kind, what, names); };
  const bool has_nan = options.can_be_nan && a.stats.nan + b.stats.nan > 0;
  if (has_nan && !tolerance.bitwise && !tolerance.equal_nan) {
    return say(Kind::kDifferent,
               fmt::format("{} NaN against {}, and NaN equals nothing, not even itself: "
                           "--equal-nan takes that for equal",
                           a.stats.nan, b.stats.nan));
  }
  const auto differs_by = [&](std::string_view name) {
    return names.size() == 1 && names.front() == name;
  };
  if (differs_by("xor_hash") && has_nan && !tolerance.bitwise) {
    // For the ordered hash, every NaN is the same one.
    if (a.stats.has_ordered_hash && b.stats.has_ordered_hash) return {};
    return say(
        Kind::kUnknown,
        "only the xor_hash differs, and with a NaN it can differ though all values are equal");
  }
  if (!names.empty() && options.has_tolerance &&
      numerics::MayBeClose(a.stats, b.stats, tolerance.rtol, tolerance.atol)) {
    return say(Kind::kUnknown, fmt::format("the statistics differ, {}, but not beyond the "
                                           "tolerance, and cannot tell whether every value is "
                                           "within it",
                                           differing));
  }
  if (differs_by("ordered_hash")) {
    return say(Kind::kDifferent,
               fmt::format("the same elements in other places: only the {}", differing));
  }
  if (!names.empty()) {
    return say(Kind::kDifferent, fmt::format("the statistics differ: {}", differing));
  }
  return JudgeEqualOnes(a, b);
}

}  // namespace cgdebug::analysis
