// shard_text.h: which ranks have the same tensor, as a slot's shard says
// (python/cgdebug/sharding.py).
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace cgdebug::replicas {

// "0..7", "0..6/2" for every second one, "0,3,5": ascending, each once.
// Fails: anything else, a single rank, or more than a million.
std::optional<std::vector<int>> ParseRanks(std::string_view text);

enum class Replication {
  kNone,  // the text says nothing of replicas
  kKnown,
  kUnknown,  // the tensor has replicas, or may have, but their ranks are not known
};

struct Replicas {
  Replication kind = Replication::kNone;
  std::string_view text = {};  // of the ranks; of the shard it was parsed from
  std::vector<int> ranks = {};
};

// What the text of a shard says: "R of [8] at (1) of ddp=2, from [0], replicas 0..1".
Replicas ReplicasOf(std::string_view shard);

}  // namespace cgdebug::replicas
