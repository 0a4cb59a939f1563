#include "daemon/core/numerics/stats_difference.h"

#include <fmt/format.h>

#include <cmath>
#include <type_traits>

#include "daemon/core/numerics/format.h"

namespace cgdebug::numerics {
namespace {

// Sums of 16-bit types are good to 2e-6 on a CPU (stats.h).
constexpr double kSumError = 4e-6;

double LargestMagnitude(const Stats& a, const Stats& b) { return std::fmax(a.abs_max, b.abs_max); }

bool SameNumber(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// A sum that left the range of a double on one side says nothing.
bool CloseSums(double a, double b, double scale) {
  if (SameNumber(a, b) || !std::isfinite(a) || !std::isfinite(b)) return true;
  return std::fabs(a - b) <= kSumError * scale;
}

// Adds the differences in the statistics that agree exactly on any machine (`exact`), or in the
// others.
void FindDifferences(const Stats& a, const Stats& b, bool exact,
                     std::vector<StatsDifference>* found) {
  const double largest = LargestMagnitude(a, b);
  Stats::ForEachNumber([&](const StatField& field, auto member) {
    if ((field.agreement == Agreement::kExact) != exact) return;
    const auto of_a = a.*member, of_b = b.*member;
    if constexpr (std::is_same_v<decltype(of_a), const double>) {
      const bool is_same = field.agreement == Agreement::kExact ? SameNumber(of_a, of_b)
                           : field.agreement == Agreement::kToAbsMax
                               ? CloseSums(of_a, of_b, largest)
                               : CloseSums(of_a, of_b, std::fmax(of_a, of_b));
      if (!is_same) found->push_back({field.name, FormatRepr(of_a), FormatRepr(of_b)});
    } else if (of_a != of_b) {
      found->push_back({field.name, std::to_string(of_a), std::to_string(of_b)});
    }
  });
}

}  // namespace

std::vector<StatsDifference> DifferencesOf(const Stats& a, const Stats& b) {
  std::vector<StatsDifference> found;
  FindDifferences(a, b, /*exact=*/true, &found);
  FindDifferences(a, b, /*exact=*/false, &found);
  if (a.has_hash && b.has_hash && a.hash != b.hash) {
    found.push_back({"xor_hash", fmt::format("{:016x}", a.hash), fmt::format("{:016x}", b.hash)});
  }
  if (a.has_ordered_hash && b.has_ordered_hash && a.ordered_hash != b.ordered_hash) {
    found.push_back({"ordered_hash", fmt::format("{:08x}", a.ordered_hash),
                     fmt::format("{:08x}", b.ordered_hash)});
  }
  return found;
}

bool OrderMatters(const Stats& stats) {
  if (stats.count <= 1) return false;
  return stats.nonfinite() > 0 || stats.min != stats.max || stats.min == 0;  // 0: of two signs
}

bool MayBeClose(const Stats& a, const Stats& b, double rtol, double atol) {
  if (a.count != b.count || a.nan != b.nan || a.pos_inf != b.pos_inf || a.neg_inf != b.neg_inf) {
    return false;
  }
  if (a.finite() == 0) return true;
  const double largest = LargestMagnitude(a, b);
  const double allowed = atol + rtol * b.abs_max;
  const auto within = [](double x, double y, double most) { return !(std::fabs(x - y) > most); };
  return within(a.min, b.min, allowed) && within(a.max, b.max, allowed) &&
         within(a.abs_max, b.abs_max, allowed) &&
         within(a.mean, b.mean, allowed + kSumError * largest);
}

}  // namespace cgdebug::numerics
