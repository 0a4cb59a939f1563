#include "daemon/core/replicas/vote.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <tuple>
#include <utility>

#include "daemon/core/numerics/stats_difference.h"

namespace cgdebug::replicas {
namespace {

using numerics::Stats;

// How far statistics of the same elements may be apart, which a GPU adds up in float32: sums
// relative to themselves, a mean to the largest magnitude (numerics/stats.h).
constexpr double kRounding = 4e-6;

// What there is to compare besides statistics. Only among values for which this is the same can one
// not be the same as two that differ.
auto HashesOf(const Value& value) {
  return std::tuple(value.hash.has_value(), value.stats.has_ordered_hash, value.stats.has_hash);
}

}  // namespace

std::size_t Bits::Count() const {
  std::size_t count = 0;
  for (const std::uint64_t word : words_) count += static_cast<std::size_t>(std::popcount(word));
  return count;
}

std::vector<std::uint8_t> Bits::ToBytes() const {
  std::vector<std::uint8_t> bytes;
  for (const std::uint64_t word : words_) {
    for (unsigned shift = 0; shift < 64; shift += 8) {
      bytes.push_back(static_cast<std::uint8_t>(word >> shift));
    }
  }
  while (!bytes.empty() && bytes.back() == 0) bytes.pop_back();
  return bytes;
}

std::vector<std::size_t> Bits::Members() const {
  std::vector<std::size_t> members;
  for (std::size_t i = 0; i < words_.size(); ++i) {
    for (std::uint64_t word = words_[i]; word != 0; word &= word - 1) {
      members.push_back(i * 64 + static_cast<std::size_t>(std::countr_zero(word)));
    }
  }
  return members;
}

bool HaveSameValues(const Value& a, const Value& b) {
  if (a.hash && b.hash) return *a.hash == *b.hash;
  return numerics::DifferencesOf(a.stats, b.stats).empty();
}

bool ProvesBeyond(const Stats& a, const Stats& b, double bound) {
  Vote both;
  both.Add(0, a, std::nullopt);
  both.Add(1, b, std::nullopt);
  return both.ProvesBeyond(bound);
}

void Vote::Range::Take(double number) {
  if (std::isnan(number)) {
    has_nan = true;
    return;
  }
  least = std::min(least, number);
  most = std::max(most, number);
}

void Vote::Range::Take(const Range& other) {
  has_nan = has_nan || other.has_nan;
  least = std::min(least, other.least);
  most = std::max(most, other.most);
}

std::optional<Vote> Vote::FromParts(Parts parts) {
  Bits of_values;
  for (const Choice& value : parts.values) {
    const std::vector<std::size_t> members = value.processes.Members();
    if (members.empty()) return std::nullopt;
    for (const std::size_t process : members) {
      if (of_values.Has(process)) return std::nullopt;
      of_values.Set(process);
    }
  }
  const bool has_all = of_values == parts.processes;
  if (parts.is_scattered ? !parts.values.empty() : !has_all) return std::nullopt;
  Vote vote;
  vote.parts_ = std::move(parts);
  return vote;
}

void Vote::TakeRanges(const Stats& stats) {
  parts_.l1.Take(stats.l1);
  parts_.mean.Take(stats.mean);
  parts_.min.Take(stats.min);
  parts_.max.Take(stats.max);
  parts_.nonfinite.Take(static_cast<double>(stats.nonfinite()));
  parts_.count.Take(static_cast<double>(stats.count));
}

bool Vote::ProvesBeyond(double bound) const {
  const auto& [values, processes, is_scattered, l1, mean, min, max, nonfinite, count] = parts_;
  if (nonfinite.Width() > 0 || count.Width() > 0) return true;
  const double largest = std::max(std::fabs(min.least), std::fabs(max.most));
  const double distance = bound * largest;
  if (min.Width() > distance || max.Width() > distance) return true;
  // |mean(a) - mean(b)| and |mean|a| - mean|b|| are at most the largest |a - b|.
  const double elements = std::max(count.most, 1.0);
  return l1.Width() / elements > distance + kRounding * l1.most / elements ||
         mean.Width() > distance + kRounding * largest;
}

void Vote::Put(const Choice& value) {
  if (parts_.is_scattered) return;
  for (Choice& own : parts_.values) {
    if (HashesOf(own) != HashesOf(value) || !HaveSameValues(own, value)) continue;
    for (const std::size_t process : value.processes.Members()) own.processes.Set(process);
    return;
  }
  parts_.values.push_back(value);
  if (parts_.values.size() <= kMostValues) return;
  parts_.is_scattered = true;
  parts_.values.clear();
}

std::vector<Vote::Choice> Vote::values() const {
  std::vector<Choice> values = parts_.values, joined;
  std::ranges::stable_sort(values, std::greater(), HashesOf);
  for (Choice& value : values) {
    Choice* most = nullptr;
    bool is_clear = false;
    for (Choice& other : joined) {
      if (!HaveSameValues(other, value)) continue;
      const std::size_t count = other.processes.Count();
      const std::size_t before = most == nullptr ? 0 : most->processes.Count();
      if (count >= before) is_clear = count > before;
      if (count > before) most = &other;
    }
    // If two that differ were the same as it, both could not be.
    const auto fits = [&](const Choice& one) {
      return HashesOf(one) == HashesOf(value) && HaveSameValues(*most, one);
    };
    if (!is_clear || std::ranges::count_if(values, fits) > 1) {
      joined.push_back(std::move(value));
      continue;
    }
    for (const std::size_t process : value.processes.Members()) most->processes.Set(process);
  }
  return joined;
}

bool Vote::lacks_hash() const {
  return std::ranges::any_of(parts_.values, [](const Choice& value) {
    return !value.hash && numerics::OrderMatters(value.stats) &&
           !(value.stats.has_hash && value.stats.has_ordered_hash);
  });
}

void Vote::Add(std::size_t process, const Stats& stats, std::optional<std::uint64_t> hash) {
  if (parts_.processes.Has(process)) return;
  parts_.processes.Set(process);
  TakeRanges(stats);
  Choice value{{stats, hash}, {}};
  value.processes.Set(process);
  Put(value);
}

void Vote::Merge(const Vote& other, const std::vector<std::size_t>& places) {
  const auto here = [&](const Bits& processes) {
    Bits bits;
    for (const std::size_t process : processes.Members()) {
      // Bytes of another process are checked where they are decoded.
      if (!parts_.processes.Has(places.at(process))) bits.Set(places.at(process));
    }
    return bits;
  };
  const Parts& theirs = other.parts_;
  for (const Choice& value : theirs.values) {
    const Bits added = here(value.processes);
    if (added.Count() > 0) Put({{value.stats, value.hash}, added});
  }
  if (theirs.is_scattered) {
    parts_.is_scattered = true;
    parts_.values.clear();
  }
  for (const std::size_t process : here(theirs.processes).Members()) parts_.processes.Set(process);
  parts_.l1.Take(theirs.l1);
  parts_.mean.Take(theirs.mean);
  parts_.min.Take(theirs.min);
  parts_.max.Take(theirs.max);
  parts_.nonfinite.Take(theirs.nonfinite);
  parts_.count.Take(theirs.count);
}

}  // namespace cgdebug::replicas
