#include "daemon/sinks/replica_table.h"

#include <algorithm>
#include <utility>

namespace cgdebug::sinks {

bool Replica::is_open() const {
  return std::ranges::any_of(members, [](const auto& part) { return part.second.open > 0; });
}

std::size_t ReplicaTable::Open(std::size_t process, std::size_t processes, replicas::ReplicaKey key,
                               std::uint64_t order, std::vector<int> ranks) {
  std::vector<std::uint64_t>& opened = opened_[key];
  opened.resize(processes);
  key.nth = opened[process]++;
  const auto [number, is_new] = numbers_.try_emplace(key, next_number_);
  if (is_new) {
    ++next_number_;
    const auto of_text = ranks_.try_emplace(key.ranks, std::move(ranks)).first;
    replicas_[number->second] = {
        .key = key, .order = order, .ranks = &of_text->second, .opened = &opened};
  }
  ++replicas_[number->second].members[process].open;
  return number->second;
}

bool ReplicaTable::Drop(std::size_t number) {
  const auto found = replicas_.find(number);
  if (found == replicas_.end() || found->second.is_open() || found->second.waiting > 0) {
    return false;
  }
  numbers_.erase(found->second.key);
  replicas_.erase(found);
  return true;
}

}  // namespace cgdebug::sinks
