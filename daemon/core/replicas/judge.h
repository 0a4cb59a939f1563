// judge.h: when replicas that are not the same on all ranks are a finding. The daemon asks while
// the job runs, `cgdebug-cli ranks` for recordings.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/core/replicas/position.h"
#include "daemon/core/replicas/vote.h"

namespace cgdebug::replicas {

// The ranks of one run between two restarts: run, restart.
using Attempt = std::pair<std::string, int>;

// What has to be equal over ranks.
struct ReplicaKey {
  Attempt attempt;
  std::string probe;
  std::uint32_t invocation = 0;
  std::string type;
  bool is_eager = false;
  std::string graph;      // its label, if the user gave one
  std::uint64_t nth = 0;  // of the slots of a process that are the same in all of this
  std::string ranks;      // as Replicas::text; empty: all

  auto operator<=>(const ReplicaKey&) const = default;
  std::string Name() const;
};

// Processes that have the same values of one replica at one position.
struct RankValues {
  std::vector<std::size_t> processes;
  numerics::Stats stats;
};

// How far replicas are apart that are not the same.
enum class Distance {
  kWithin,   // the tolerance, element by element
  kUnknown,  // nobody has compared the values, and the statistics prove nothing
  kBeyond,   // the tolerance, as values or statistics prove
};

// A replica that is not the same on all ranks.
struct Difference {
  Position position;
  std::uint64_t equal_before = 0;  // positions of this replica before that were the same everywhere
  Distance distance = Distance::kBeyond;
  bool is_finding = false;    // beyond the tolerance, or replicas had been bitwise equal
  bool is_scattered = false;  // more different values than are kept apart
  std::size_t ranks = 0;      // that were compared
  // Those of most ranks first; without a majority `has_majority` is false.
  std::vector<RankValues> values;
  bool has_majority = false;

  // The processes that do not have what most have; empty without a majority.
  std::vector<std::size_t> Minority() const;
};

struct JudgeOptions {
  double tolerance = 1e-6;  // of each element, relative to the largest magnitude
  bool bitwise = false;     // every difference is a finding
};

// Judges the replicas of one attempt.
class AttemptJudge {
 public:
  // The order of the processes, and what a Difference calls them.
  using PlaceOf = std::function<std::size_t(std::size_t)>;

  AttemptJudge(const JudgeOptions& options, PlaceOf place_of)
      : options_(options), place_of_(std::move(place_of)) {}

  // Whether the values of all processes lie within the tolerance of each other; nothing if it
  // cannot be known.
  using AreWithin = std::function<std::optional<bool>()>;

  // Nothing if all have the same values. `replica`: a number of the caller's, of that dtype. Asks
  // `are_within` only if hashes differ; statistics decide where it does not know. Calls come in the
  // order of positions.
  // Requires: a vote of two processes at least.
  std::optional<Difference> Take(std::size_t replica, layout::Dtype dtype, const Position& position,
                                 const Vote& vote, const AreWithin& are_within);
  // Nothing more comes of this replica.
  void Forget(std::size_t replica) { seen_.erase(replica); }

 private:
  struct Seen {
    std::optional<Value> before;  // if it was equal
    std::uint64_t equal_before = 0;
  };
  Difference Describe(const Vote& vote, const std::vector<Vote::Choice>& of_vote,
                      std::size_t* lead) const;
  void JoinClose(double bound, Difference* difference) const;
  std::vector<std::size_t> PlacesOf(const Bits& processes) const;

  JudgeOptions options_;
  PlaceOf place_of_;
  std::map<std::size_t, Seen> seen_;
  int proven_ = 0;
  std::optional<Position> proof_;  // the last of them
  bool had_small_ = false;         // a difference that was no finding
  bool is_strict_ = false;         // such a difference was a finding, so the next ones are too
};

}  // namespace cgdebug::replicas
