// ranks_state.h: what a RankFold keeps of the recordings that it has read.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/analysis/json_number.h"
#include "client/analysis/ranks.h"
#include "daemon/core/numerics/stats.h"

namespace cgdebug::analysis {

// A set of small numbers.
class Bits {
 public:
  void Set(std::size_t at) {
    if (at / 64 >= words_.size()) words_.resize(at / 64 + 1);
    words_[at / 64] |= std::uint64_t{1} << at % 64;
  }
  bool Has(std::size_t at) const {
    return at / 64 < words_.size() && (words_[at / 64] >> at % 64 & 1) != 0;
  }
  std::size_t Count() const;
  std::vector<std::size_t> Members() const;
  // Bit 0 of the first byte is number 0; without zeros behind the last member.
  std::vector<std::uint8_t> ToBytes() const;
  bool operator==(const Bits&) const = default;

 private:
  std::vector<std::uint64_t> words_;  // the last one has a member
};

// The different values that the processes have of one replica at one position.
class Vote {
 public:
  // More different values are not kept apart.
  static constexpr std::size_t kMostValues = 64;

  struct Value {
    numerics::Stats stats;
    std::optional<std::uint64_t> hash;  // source::Snapshot::hash
    Bits processes;
  };

  // A process has one value: a second one of the same position is not taken in.
  void Add(std::size_t process, const numerics::Stats& stats, std::optional<std::uint64_t> hash);
  // `places`: the process that each process of `other` is here.
  void Merge(const Vote& other, const std::vector<std::size_t>& places);

  // Empty if there are too many.
  const std::vector<Value>& values() const { return values_; }
  bool is_scattered() const { return is_scattered_; }
  const Bits& processes() const { return processes_; }
  // Whether all lie within a relative tolerance of each other, by l1 and mean, and the outermost
  // elements are not far apart.
  bool IsClose(double tolerance) const;

  Json ToJson() const;
  // `process_count`: how many processes there are. Fails: what ToJson() did not make.
  static bool FromJson(const Json& json, std::size_t process_count, Vote* vote);

 private:
  struct Range {
    double least = INFINITY;
    double most = -INFINITY;
    bool has_nan = false;
    void Take(double number);
    void Take(const Range& other);
    bool Within(double distance) const { return !has_nan && most - least <= distance; }
  };
  void TakeRanges(const numerics::Stats& stats);
  void Put(const Value& value);
  Json RangesJson() const;

  std::vector<Value> values_;
  Bits processes_;
  bool is_scattered_ = false;
  Range l1_, mean_, min_, max_, nonfinite_, count_;
};

// Whether two snapshots have the same values, as far as hashes and statistics tell.
bool HaveSameValues(const Vote::Value& a, const Vote::Value& b);
// Whether two values lie within the tolerance, as Vote::IsClose.
bool AreClose(const numerics::Stats& a, const numerics::Stats& b, double tolerance);

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
  std::string ranks;      // as source::Replicas::text; empty: all

  auto operator<=>(const ReplicaKey&) const = default;
  std::string Name() const;
};

struct Replica {
  std::uint64_t order = UINT64_MAX;  // the smallest of any rank
  std::vector<int> ranks;            // that have it; empty: all of the run
  Bits processes;                    // that have a slot of it, with snapshots or without
  std::map<Position, Vote> votes;
};

struct RankState {
  std::vector<RankProcess> processes;
  std::map<ReplicaKey, Replica> replicas;
  std::map<std::string, std::uint64_t> unknown;  // probes whose replicas are not known: slots
  std::set<std::string> unreadable;              // why a recording was not read
  // Rows of op logs with -Inf that may be masks (masks.h), by the path of the recording.
  std::map<std::string, std::uint64_t> masks;

  std::string Encode() const;
  // Fails: bytes that Encode() did not make.
  static Result<RankState> Decode(const std::string& bytes);
};

RanksReport JudgeRanks(const RankState& state, const RanksOptions& options);

}  // namespace cgdebug::analysis
