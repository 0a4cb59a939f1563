#include "client/analysis/diff/statistics_verdict.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string_view>
#include <utility>

#include "client/analysis/wording.h"
#include "daemon/core/numerics/stats_difference.h"

namespace cgdebug::analysis {
namespace {

using Kind = StatisticsVerdict::Kind;

constexpr std::size_t kMostNamed = 3;

// `what` is known of values that were not recorded.
StatisticsVerdict Say(Kind kind, const std::string& what, const StatisticsOptions& options,
                      std::vector<std::string> differing = {}) {
  return {.kind = kind,
          .reason = what + (options.is_row ? "" : "; the values were not recorded"),
          .differing = std::move(differing)};
}

// "1.18 against 1.22": as many digits as tell them apart.
std::string Against(const numerics::StatsDifference& one) {
  if (!one.name.ends_with("hash")) {
    const double a = std::strtod(one.a.c_str(), nullptr), b = std::strtod(one.b.c_str(), nullptr);
    for (int digits = 3; digits < 16; ++digits) {
      const std::string text_a = fmt::format("{:.{}g}", a, digits);
      const std::string text_b = fmt::format("{:.{}g}", b, digits);
      if (text_a.size() >= one.a.size() || text_b.size() >= one.b.size()) break;
      if (text_a != text_b) return fmt::format("{} against {}", text_a, text_b);
    }
  }
  return fmt::format("{} against {}", one.a, one.b);
}

// Requires: all that both have is the same. Says whether that proves the same values.
StatisticsVerdict JudgeEqualOnes(const RecordedStats& a, const RecordedStats& b,
                                 const StatisticsOptions& options) {
  if (!a.stats.has_hash || !b.stats.has_hash) {
    return Say(Kind::kUnknown,
               fmt::format("{} has no xor_hash of it, and equal statistics alone do not prove "
                           "equal values",
                           (a.stats.has_hash ? b : a).path),
               options);
  }
  const bool has_order = a.stats.has_ordered_hash && b.stats.has_ordered_hash;
  if (!has_order && numerics::OrderMatters(a.stats)) {
    return Say(Kind::kUnknown,
               fmt::format("{} has no ordered_hash of it, and everything else is the same for the "
                           "same elements in any order: record it again with this version",
                           (a.stats.has_ordered_hash ? b : a).path),
               options);
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
    if (names.size() <= kMostNamed) {
      differing += fmt::format("{}{} {}", differing.empty() ? "" : ", ", one.name, Against(one));
    }
  }
  differing += AndMore(names.size(), kMostNamed);
  const auto say = [&](Kind kind, const std::string& what) {
    return Say(kind, what, options, names);
  };
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
  return JudgeEqualOnes(a, b, options);
}

}  // namespace cgdebug::analysis
