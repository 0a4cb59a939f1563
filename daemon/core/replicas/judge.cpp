#include "daemon/core/replicas/judge.h"

#include <fmt/format.h>

#include <algorithm>

#include "daemon/core/replicas/spread.h"

namespace cgdebug::replicas {
namespace {

// As many positions at which replicas changed and stayed equal show that they are computed
// reproducibly, so that a later difference is a fault, however small.
constexpr int kProvenReproducible = 3;

}  // namespace

std::string ReplicaKey::Name() const {
  std::string name = invocation == 0 ? probe : fmt::format("{}#{}", probe, invocation);
  if (!graph.empty()) name += "@g:" + graph;
  return name;
}

std::vector<std::size_t> Difference::Minority() const {
  std::vector<std::size_t> minority;
  for (std::size_t i = 1; has_majority && i < values.size(); ++i) {
    minority.insert(minority.end(), values[i].processes.begin(), values[i].processes.end());
  }
  std::ranges::sort(minority);
  return minority;
}

std::optional<Difference> AttemptJudge::Take(std::size_t replica, layout::Dtype dtype,
                                             const Position& position, const Vote& vote,
                                             const AreWithin& are_within) {
  Seen& seen = seen_[replica];
  const std::vector<Vote::Choice> values = vote.values();
  if (values.size() == 1) {
    const Value& value = values.front();
    const bool is_change = seen.before && !HaveSameValues(*seen.before, value);
    if (is_change && proof_ != position) {
      ++proven_;
      proof_ = position;
    }
    seen.before = value;
    ++seen.equal_before;
    return std::nullopt;
  }
  std::size_t lead = 0;
  Difference difference = Describe(vote, values, &lead);
  difference.position = position;
  difference.equal_before = seen.equal_before;
  const double bound = BoundOf(dtype, options_.tolerance);
  const bool is_proven = vote.ProvesBeyond(bound);
  const std::optional<bool> within = are_within ? are_within() : std::nullopt;
  if (within) {
    difference.distance = *within ? Distance::kWithin : Distance::kBeyond;
  } else if (!is_proven) {
    difference.distance = Distance::kUnknown;
  }
  // Statistics tell apart who is odd only if they prove that anybody is.
  const bool is_beyond = difference.distance == Distance::kBeyond;
  if (!difference.has_majority && (is_proven || !is_beyond)) JoinClose(bound, &difference);
  const bool may_be_small = difference.distance != Distance::kBeyond;
  // A tensor that most ranks did not change was changed on the others by nothing that they share.
  bool is_held = false;
  if (seen.before && difference.has_majority) is_held = HaveSameValues(*seen.before, values[lead]);
  const bool was_reproducible = proven_ >= kProvenReproducible && !had_small_;
  difference.is_finding =
      options_.bitwise || !may_be_small || is_held || is_strict_ || was_reproducible;
  is_strict_ = is_strict_ || (difference.is_finding && may_be_small);
  had_small_ = had_small_ || !difference.is_finding;
  seen.before.reset();
  return difference;
}

std::vector<std::size_t> AttemptJudge::PlacesOf(const Bits& processes) const {
  std::vector<std::size_t> places;
  for (const std::size_t process : processes.Members()) places.push_back(place_of_(process));
  std::ranges::sort(places);
  return places;
}

// The different values, those of most ranks first; `lead` is the place of these in `of_vote`.
Difference AttemptJudge::Describe(const Vote& vote, const std::vector<Vote::Choice>& of_vote,
                                  std::size_t* lead) const {
  Difference difference;
  difference.is_scattered = vote.is_scattered();
  difference.ranks = vote.processes().Count();
  if (of_vote.empty()) return difference;
  std::vector<std::pair<RankValues, std::size_t>> values;
  for (std::size_t i = 0; i < of_vote.size(); ++i) {
    values.push_back({{PlacesOf(of_vote[i].processes), of_vote[i].stats}, i});
  }
  std::ranges::sort(values, [](const auto& x, const auto& y) {
    const std::vector<std::size_t>&of_x = x.first.processes, &of_y = y.first.processes;
    return of_x.size() != of_y.size() ? of_x.size() > of_y.size() : of_x.front() < of_y.front();
  });
  *lead = values.front().second;
  for (auto& [value, place] : values) difference.values.push_back(std::move(value));
  difference.has_majority = 2 * difference.values.front().processes.size() > difference.ranks;
  return difference;
}

// After an all-reduce that is not reproducible no two ranks need have the same bits. Then those
// within the tolerance of one of them are the majority.
void AttemptJudge::JoinClose(double bound, Difference* difference) const {
  for (std::size_t i = 0; i < difference->values.size(); ++i) {
    std::size_t count = 0;
    std::vector<bool> is_close;
    for (const RankValues& other : difference->values) {
      is_close.push_back(!ProvesBeyond(difference->values[i].stats, other.stats, bound));
      if (is_close.back()) count += other.processes.size();
    }
    if (2 * count <= difference->ranks || count == difference->ranks) continue;
    RankValues joined{.processes = {}, .stats = difference->values[i].stats};
    std::vector<RankValues> values;
    for (std::size_t j = 0; j < is_close.size(); ++j) {
      RankValues& one = difference->values[j];
      if (is_close[j]) {
        joined.processes.insert(joined.processes.end(), one.processes.begin(), one.processes.end());
      } else {
        values.push_back(std::move(one));
      }
    }
    std::ranges::sort(joined.processes);
    values.insert(values.begin(), std::move(joined));
    difference->values = std::move(values);
    difference->has_majority = true;
    return;
  }
}

}  // namespace cgdebug::replicas
