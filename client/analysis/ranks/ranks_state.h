// ranks_state.h: what a RankFold keeps of the recordings that it has read.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "client/analysis/ranks/ranks.h"
#include "daemon/core/replicas/judge.h"
#include "daemon/core/replicas/vote.h"

namespace cgdebug::analysis {

using replicas::Attempt;
using replicas::Bits;
using replicas::ReplicaKey;
using replicas::Vote;

struct Replica {
  std::uint64_t order = UINT64_MAX;  // the smallest of any rank
  layout::Dtype dtype = layout::Dtype::kInvalid;
  bool is_part = false;  // of the tensor
  Bits processes;        // that have a slot of it, with snapshots or without
  std::map<Position, Vote> votes;
};

struct RankState {
  std::vector<RankProcess> processes;
  std::map<ReplicaKey, Replica> replicas;
  // Which processes have a probe; no more than kMostProbes of all are kept.
  static constexpr std::size_t kMostProbes = 4096;
  std::map<std::string, Bits> probes;
  std::map<std::string, Bits> unknown;  // probes whose replicas are not known: processes
  std::set<std::string> unreadable;     // why a recording was not read
  // Rows of op logs with -Inf that may be masks (masks.h), by the path of the recording.
  std::map<std::string, std::uint64_t> masks;

  std::string Encode() const;
  // Fails: bytes that Encode() did not make.
  static Result<RankState> Decode(const std::string& bytes);
};

// Whether the values that these processes have of a replica at a position lie within the tolerance
// of each other, element by element; nullopt if not all of them can be read.
using AreWithin = std::function<std::optional<bool>(const ReplicaKey&, const Position&,
                                                    const std::vector<std::size_t>& processes)>;

RanksReport JudgeRanks(const RankState& state, const RanksOptions& options,
                       const AreWithin& are_within);

}  // namespace cgdebug::analysis
