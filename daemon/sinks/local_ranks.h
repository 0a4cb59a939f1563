// local_ranks.h: the processes of one run that are on this machine, and what is counted of each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "daemon/model/registry.h"

namespace cgdebug::sinks {

// Processes have numbers, in the order in which they joined.
class LocalRanks {
 public:
  // Takes in a process, and knows from it which ranks of this machine are still to come.
  void Join(const pipeline::SessionPtr& session);
  // A session of the same run need not have a rank, and is then compared with nothing.
  bool Knows(const pipeline::SessionPtr& session) const { return by_uuid_.contains(session->uuid); }
  // Requires: it is known.
  std::size_t NumberOf(const pipeline::SessionPtr& session) const {
    return by_uuid_.at(session->uuid);
  }

  // Whether there is nothing to compare with on this machine.
  bool IsAlone() const { return by_rank_.size() < 2; }
  // Requires: IsAlone(). A snapshot is compared with nothing, which is known to be a gap when
  // another rank comes.
  void SkipAlone(std::size_t process) { ++processes_[process].alone; }

  std::size_t size() const { return processes_.size(); }
  const pipeline::SessionPtr& SessionOf(std::size_t process) const {
    return processes_[process].session;
  }
  bool HasEnded(std::size_t process) const { return processes_[process].has_ended; }
  // The processes of each rank of this machine, also of those to come.
  const std::map<int, std::vector<std::size_t>>& by_rank() const { return by_rank_; }

  // To be changed.
  pipeline::ReplicaCounts& Count(std::size_t process);
  // Notes that the process was told that it differs. Returns whether it is for the first time.
  bool SetTold(std::size_t process);

  void End(const pipeline::SessionPtr& session);
  // Whether none of the sessions is known any more.
  bool Forget(const pipeline::SessionPtr& session);
  // Shows the counts that have changed.
  void Show(pipeline::Registry* registry);

 private:
  struct Process {
    pipeline::SessionPtr session;
    pipeline::ReplicaCounts counts = {};
    std::uint64_t alone = 0;  // snapshots that came before any other rank
    bool is_changed = false;  // since Show()
    bool is_told = false;     // that it differs
    bool has_ended = false;
    bool is_forgotten = false;
  };

  std::vector<Process> processes_;
  std::map<std::string, std::size_t> by_uuid_;
  std::map<int, std::vector<std::size_t>> by_rank_;
};

}  // namespace cgdebug::sinks
