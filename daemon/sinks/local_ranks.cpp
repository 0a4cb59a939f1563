#include "daemon/sinks/local_ranks.h"

#include <algorithm>
#include <utility>

namespace cgdebug::sinks {
namespace {

constexpr int kMostRanks = 1 << 20;
constexpr int kMostLocalRanks = 1024;

}  // namespace

void LocalRanks::Join(const pipeline::SessionPtr& session) {
  if (Knows(session)) return;
  processes_.push_back({.session = session});
  by_uuid_[session->uuid] = processes_.size() - 1;
  by_rank_[session->rank].push_back(processes_.size() - 1);
  // What the job says of its ranks may be anything.
  const int first = session->rank - std::max(session->local_rank, 0);
  const bool is_known = session->local_rank >= 0 && first >= 0 &&
                        session->local_rank < session->local_world_size &&
                        session->local_world_size <= kMostLocalRanks && session->rank <= kMostRanks;
  if (is_known) {
    for (int rank = first; rank < first + session->local_world_size; ++rank) by_rank_[rank];
  }
  if (IsAlone()) return;
  for (std::size_t one = 0; one < processes_.size(); ++one) {
    if (processes_[one].alone > 0) Count(one).incomplete += std::exchange(processes_[one].alone, 0);
  }
}

pipeline::ReplicaCounts& LocalRanks::Count(std::size_t process) {
  processes_[process].is_changed = true;
  return processes_[process].counts;
}

bool LocalRanks::SetTold(std::size_t process) {
  return !std::exchange(processes_[process].is_told, true);
}

void LocalRanks::End(const pipeline::SessionPtr& session) {
  if (Knows(session)) processes_[NumberOf(session)].has_ended = true;
}

bool LocalRanks::Forget(const pipeline::SessionPtr& session) {
  if (Knows(session)) {
    Process& process = processes_[NumberOf(session)];
    process.has_ended = process.is_forgotten = true;
  }
  return std::ranges::all_of(processes_, &Process::is_forgotten);
}

void LocalRanks::Show(pipeline::Registry* registry) {
  for (Process& process : processes_) {
    if (!std::exchange(process.is_changed, false)) continue;
    registry->SetReplicas(process.session, process.counts);
  }
}

}  // namespace cgdebug::sinks
