#include "daemon/core/numerics/stats_difference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

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

}  // namespace

std::vector<StatsDifference> DifferencesOf(const Stats& a, const Stats& b) {
  std::vector<StatsDifference> found;
  const std::pair<const char*, std::uint64_t Stats::*> counts[] = {
      {"count", &Stats::count},     {"nan", &Stats::nan},   {"pos_inf", &Stats::pos_inf},
      {"neg_inf", &Stats::neg_inf}, {"zero", &Stats::zero}, {"subnormal", &Stats::subnormal}};
  for (const auto& [name, member] : counts) {
    if (a.*member != b.*member) {
      found.push_back({name, std::to_string(a.*member), std::to_string(b.*member)});
    }
  }
  const auto differ = [&](const char* name, double of_a, double of_b) {
    found.push_back({name, FormatRepr(of_a), FormatRepr(of_b)});
  };
  const std::pair<const char*, double Stats::*> extremes[] = {
      {"min", &Stats::min}, {"max", &Stats::max}, {"abs_max", &Stats::abs_max}};
  for (const auto& [name, member] : extremes) {
    if (!SameNumber(a.*member, b.*member)) differ(name, a.*member, b.*member);
  }
  const double largest = LargestMagnitude(a, b);
  if (!CloseSums(a.mean, b.mean, largest)) differ("mean", a.mean, b.mean);
  if (!CloseSums(a.std, b.std, largest)) differ("std", a.std, b.std);
  if (!CloseSums(a.l1, b.l1, std::fmax(a.l1, b.l1))) differ("l1", a.l1, b.l1);
  if (!CloseSums(a.l2, b.l2, std::fmax(a.l2, b.l2))) differ("l2", a.l2, b.l2);
  if (a.has_hash && b.has_hash && a.hash != b.hash) {
    found.push_back({"xor_hash", fmt::format("{:016x}", a.hash), fmt::format("{:016x}", b.hash)});
  }
  return found;
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
