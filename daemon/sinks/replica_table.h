// replica_table.h: the replicas of one run: tensors that must be equal over ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "daemon/core/replicas/judge.h"
#include "daemon/core/replicas/position.h"

namespace cgdebug::sinks {

struct Replica {
  struct Part {                                // what one process has of it
    std::size_t open = 0;                      // slots
    std::optional<replicas::Position> newest;  // that came
  };

  replicas::ReplicaKey key;
  std::uint64_t order = 0;                             // in its graph
  const std::vector<int>* ranks = nullptr;             // that have it; of the table
  const std::vector<std::uint64_t>* opened = nullptr;  // slots of each process; likewise
  std::map<std::size_t, Part> members = {};            // by process
  std::set<int> absent = {};                           // ranks that did not come in time
  std::size_t waiting = 0;                             // positions

  bool is_open() const;
};

// Replicas have numbers.
class ReplicaTable {
 public:
  // A slot of `process` is part of the replica. Captures without a label that are alike are told
  // apart by their order: `key` is completed by which one of the process it is. Returns the number.
  // `processes`: how many there are.
  std::size_t Open(std::size_t process, std::size_t processes, replicas::ReplicaKey key,
                   std::uint64_t order, std::vector<int> ranks);
  Replica& At(std::size_t number) { return replicas_.at(number); }
  const Replica& At(std::size_t number) const { return replicas_.at(number); }
  // Forgets a replica of which nothing more comes, so that a job that captures again and again
  // takes no more memory. Returns whether it did.
  bool Drop(std::size_t number);

 private:
  std::map<replicas::ReplicaKey, std::size_t> numbers_;
  std::map<std::size_t, Replica> replicas_;  // by number
  std::size_t next_number_ = 0;
  std::map<std::string, std::vector<int>> ranks_;  // by text, which many replicas share
  // How many slots each process had, by key without `nth`.
  std::map<replicas::ReplicaKey, std::vector<std::uint64_t>> opened_;
};

}  // namespace cgdebug::sinks
