#include "daemon/sinks/replica_sink.h"

#include <fmt/format.h>

#include <algorithm>

#include "daemon/core/numerics/format.h"
#include "daemon/core/replicas/shard_text.h"
#include "daemon/core/replicas/spread.h"
#include "daemon/sinks/local_ranks.h"
#include "daemon/sinks/replica_table.h"
#include "proto/layout/slot_control.h"

namespace cgdebug::sinks {
namespace {

using pipeline::PayloadPtr;
using pipeline::SessionPtr;
using pipeline::SlotPtr;
using pipeline::SnapshotPtr;
using replicas::Position;

replicas::Attempt AttemptOf(const pipeline::SessionIdentity& session) {
  return {session.run_id, session.restart_count};
}

// "rank 1", "ranks 0,2".
std::string RanksText(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : ",") + std::to_string(ranks[i]);
  }
  return text;
}

}  // namespace

// The ranks of one run between two restarts that are on this machine.
class ReplicaSink::Run {
 public:
  Run(ReplicaSink* sink, replicas::Attempt attempt)
      : sink_(sink), attempt_(std::move(attempt)), judge_({}, [this](std::size_t process) {
          return static_cast<std::size_t>(ranks_.SessionOf(process)->rank) << 32 | process;
        }) {}

  LocalRanks& ranks() { return ranks_; }

  // The number of the replica, and of the process.
  std::pair<std::size_t, std::size_t> Open(const SlotPtr& slot, replicas::ReplicaKey key,
                                           std::vector<int> ranks) {
    const std::size_t process = ranks_.NumberOf(slot->session);
    const std::size_t number = replicas_.Open(process, ranks_.size(), std::move(key),
                                              slot->registration.order, std::move(ranks));
    return {number, process};
  }

  void Take(std::size_t number, std::size_t process, const Position& position,
            const SnapshotPtr& snapshot, const PayloadPtr& payload) {
    Replica& replica = replicas_.At(number);
    replica.members[process].newest = position;
    replica.absent.erase(snapshot->slot->session->rank);
    Cell& cell = cells_[{position, replica.order, number}];
    if (cell.votes.empty()) {
      cell.since = sink_->now_();
      ++replica.waiting;
    }
    cell.votes.push_back({process, snapshot});
    Cast& cast = cell.votes.back();
    // Values are held until all ranks have come, or not at all.
    if (payload != nullptr && held_bytes_ + payload->size() <= kMostHeldBytes) {
      cast.payload = payload;
      held_bytes_ += payload->size();
    }
    ++waiting_;
    ++ranks_.Count(process).waiting;
    Settle();
  }

  // What comes at `position` of the process is compared with nothing.
  void Skip(std::size_t number, std::size_t process, const std::optional<Position>& position) {
    Replica& replica = replicas_.At(number);
    if (position) replica.members[process].newest = *position;
    ranks_.Count(process).incomplete += 1;
  }

  void Close(std::size_t number, std::size_t process) {
    --replicas_.At(number).members.at(process).open;
    Settle();
    Drop(number);
  }

  void End(const SessionPtr& session) {
    ranks_.End(session);
    Settle();
  }

  // Judges what is complete, in the order of positions.
  void Settle() {
    while (!cells_.empty()) {
      const auto front = cells_.begin();
      const bool is_over =
          waiting_ > kMostWaiting || sink_->now_() - front->second.since >= kPatience;
      if (!IsComplete(front->first, front->second) && !is_over) return;
      const auto next = cells_.extract(front);
      waiting_ -= next.mapped().votes.size();
      --replicas_.At(next.key().number).waiting;
      Judge(next.key(), next.mapped());
      for (const Cast& cast : next.mapped().votes) {
        if (cast.payload != nullptr) held_bytes_ -= cast.payload->size();
      }
      Drop(next.key().number);
    }
  }

 private:
  struct Place {
    Position position;
    std::uint64_t order = 0;
    std::size_t number = 0;

    auto operator<=>(const Place&) const = default;
  };
  struct Cast {
    std::size_t process;
    SnapshotPtr snapshot;
    PayloadPtr payload = nullptr;  // null: its values are not here
  };
  struct Cell {
    std::vector<Cast> votes;
    Clock::time_point since;
  };

  static bool Has(const Cell& cell, std::size_t process) {
    return std::ranges::any_of(cell.votes,
                               [&](const Cast& cast) { return cast.process == process; });
  }

  // Whether the process may still bring a snapshot of that position.
  bool MayCome(const Replica& replica, std::size_t process, const Position& position) const {
    if (ranks_.HasEnded(process)) return false;
    const auto part = replica.members.find(process);
    if (part == replica.members.end()) return true;
    const bool is_beyond = part->second.newest && *part->second.newest >= position;
    return part->second.open > 0 && !is_beyond;
  }

  // Calls `visit` with each rank of this machine that lacks a snapshot, until it returns false.
  template <typename Visitor>
  void EachMissing(const Place& place, const Cell& cell, const Visitor& visit) const {
    const Replica& replica = replicas_.At(place.number);
    for (const auto& [rank, processes] : ranks_.by_rank()) {
      if (!std::ranges::binary_search(*replica.ranks, rank)) continue;
      const bool is_here =
          std::ranges::any_of(processes, [&](std::size_t one) { return Has(cell, one); });
      if (!is_here && !visit(replica, rank, processes)) return;
    }
  }

  bool IsComplete(const Place& place, const Cell& cell) const {
    bool is_complete = true;
    EachMissing(place, cell, [&](const Replica& replica, int rank, const auto& processes) {
      if (replica.absent.contains(rank)) return true;
      is_complete = !processes.empty() && std::ranges::none_of(processes, [&](std::size_t one) {
        return MayCome(replica, one, place.position);
      });
      return is_complete;
    });
    return is_complete && (cell.votes.size() < 2 || !IsUnclear(replicas_.At(place.number), cell));
  }

  // Captures without a label that are alike are told apart by their order alone. If a rank has
  // fewer of them than another, which is which is not known. Nor is it if a rank has two processes:
  // most likely two jobs were given the same run id.
  bool IsUnclear(const Replica& replica, const Cell& cell) const {
    const std::vector<std::uint64_t>& opened = *replica.opened;
    const auto takes_part = [&](std::size_t one) {
      const bool is_over = ranks_.HasEnded(one) && !Has(cell, one);
      return !is_over && one < opened.size() && opened[one] != 0;
    };
    std::uint64_t count = 0;
    for (const auto& [rank, processes] : ranks_.by_rank()) {
      std::size_t of_rank = 0;
      for (const std::size_t one : processes) {
        if (!takes_part(one)) continue;
        if (++of_rank > 1 || (count != 0 && opened[one] != count)) return true;
        count = opened[one];
      }
    }
    return false;
  }

  void Judge(const Place& place, const Cell& cell) {
    Replica& replica = replicas_.At(place.number);
    bool is_whole = true;
    std::vector<int> late;
    EachMissing(place, cell, [&](const Replica&, int rank, const auto& processes) {
      is_whole = false;
      for (const std::size_t one : processes) ++ranks_.Count(one).incomplete;
      const bool may_come = processes.empty() || std::ranges::any_of(processes, [&](auto one) {
                              return MayCome(replica, one, place.position);
                            });
      if (may_come) late.push_back(rank);
      return true;
    });
    replica.absent.insert(late.begin(), late.end());
    const bool is_unclear = IsUnclear(replica, cell);
    for (const auto& [process, snapshot, payload] : cell.votes) {
      --ranks_.Count(process).waiting;
      if (!is_whole || is_unclear) ++ranks_.Count(process).incomplete;
    }
    if (cell.votes.size() < 2 || is_unclear) return;
    replicas::Vote vote;
    for (const auto& [process, snapshot, payload] : cell.votes) {
      vote.Add(process, snapshot->stats, std::nullopt);
      ++ranks_.Count(process).compared;
    }
    const std::optional<replicas::Difference> difference =
        judge_.Take(place.number, cell.votes.front().snapshot->slot->dtype, place.position, vote,
                    [&cell] { return AreWithin(cell); });
    if (!difference && vote.lacks_hash()) {
      for (const Cast& cast : cell.votes) ++ranks_.Count(cast.process).unknown;
    }
    if (difference) Tell(place, replica, cell, *difference);
  }

  static std::optional<bool> AreWithin(const Cell& cell) {
    replicas::Spread spread;
    for (const Cast& cast : cell.votes) {
      if (cast.payload == nullptr) return std::nullopt;
      if (!spread.Add(cast.snapshot->slot->dtype, *cast.payload)) return std::nullopt;
    }
    return spread.Within(replicas::JudgeOptions{}.tolerance);
  }

  void Tell(const Place& place, const Replica& replica, const Cell& cell,
            const replicas::Difference& difference) {
    std::set<std::size_t> odd;
    for (const std::size_t one : difference.Minority()) odd.insert(one & UINT32_MAX);
    std::vector<int> ranks;
    std::vector<SnapshotPtr> news;
    for (const auto& [process, snapshot, payload] : cell.votes) {
      if (difference.has_majority && !odd.contains(process)) continue;
      if (!difference.is_finding) {
        ++(difference.distance == replicas::Distance::kUnknown ? ranks_.Count(process).unknown
                                                               : ranks_.Count(process).close);
        continue;
      }
      ++ranks_.Count(process).different;
      ranks.push_back(snapshot->slot->session->rank);
      if (ranks_.SetTold(process)) news.push_back(snapshot);
    }
    if (news.empty()) return;
    std::ranges::sort(ranks);
    const std::string what =
        fmt::format("{} {}", replica.key.type,
                    difference.has_majority
                        ? fmt::format("of {} is not what {} of {} ranks have", RanksText(ranks),
                                      difference.ranks - ranks.size(), difference.ranks)
                        : fmt::format("is not the same on {}, and no majority says which is right",
                                      RanksText(ranks)));
    const std::string at = PositionText(place.position);
    for (const SnapshotPtr& snapshot : news) {
      const pipeline::Finding finding{.slot = snapshot->slot,
                                      .kind = layout::FindingKind::kReplica,
                                      .replay = snapshot->replay,
                                      .serial = snapshot->serial,
                                      .step = snapshot->step,
                                      .timestamp_ns = snapshot->timestamp_ns,
                                      .text = what};
      const pipeline::SlotPlace where = sink_->registry_->PlaceOf(*snapshot->slot);
      const std::string text = SentenceOf(finding, where.graph, where.qualifier);
      sink_->registry_->SetFinding(snapshot->slot->session, layout::FindingKind::kReplica, text);
      sink_->controls_->Tell({finding, text});
      sink_->findings_->Found(finding);
    }
    const auto first = std::ranges::min_element(
        news, {}, [](const SnapshotPtr& one) { return one->slot->session->rank; });
    sink_->events_->Add((*first)->slot->session,
                        pipeline::Unequal{*first, fmt::format("{}: {}. Type: cgdebug-cli ranks -s "
                                                              "'{}'",
                                                              at, what, attempt_.first)});
  }

  void Drop(std::size_t number) {
    if (replicas_.Drop(number)) judge_.Forget(number);
  }

  ReplicaSink* sink_;
  replicas::Attempt attempt_;
  LocalRanks ranks_;
  ReplicaTable replicas_;
  std::map<Place, Cell> cells_;
  std::size_t waiting_ = 0;     // snapshots in them
  std::size_t held_bytes_ = 0;  // of their values
  replicas::AttemptJudge judge_;
};

ReplicaSink::ReplicaSink(pipeline::Registry* registry, pipeline::EventLog* events,
                         pipeline::ControlQueue* controls, pipeline::Sink* findings,
                         std::function<Clock::time_point()> now)
    : registry_(registry),
      events_(events),
      controls_(controls),
      findings_(findings),
      now_(std::move(now)) {}
ReplicaSink::~ReplicaSink() = default;

std::shared_ptr<ReplicaSink::Run> ReplicaSink::RunOf(const SessionPtr& session) const {
  const auto found = runs_.find(AttemptOf(*session));
  return found == runs_.end() ? nullptr : found->second;
}

void ReplicaSink::OpenSession(const SessionPtr& session) {
  if (session->rank < 0 || session->world_size < 2 || session->run_id.empty()) return;
  std::shared_ptr<Run>& run = runs_[AttemptOf(*session)];
  if (run == nullptr) run = std::make_shared<Run>(this, AttemptOf(*session));
  run->ranks().Join(session);
}

void ReplicaSink::OpenSlot(const SlotPtr& slot, pipeline::SlotFeedback& /*feedback*/) {
  if (slot->shard.empty()) return;
  const replicas::Replicas replicas = replicas::ReplicasOf(slot->shard);
  if (replicas.kind == replicas::Replication::kNone) return;
  std::shared_ptr<Run> run = RunOf(slot->session);
  if (run == nullptr || !run->ranks().Knows(slot->session)) return;
  // If values stay in device memory, there may be nothing to compare.
  if (replicas.kind == replicas::Replication::kUnknown ||
      !layout::MakesStatistics(slot->registration)) {
    members_[slot] = {.run = std::move(run), .is_known = false};
    return;
  }
  replicas::ReplicaKey key{.attempt = AttemptOf(*slot->session),
                           .probe = slot->probe,
                           .invocation = slot->registration.invocation,
                           .type = numerics::FormatTensorType(slot->dtype, slot->shape, slot->part),
                           .is_eager = slot->registration.graph_id == 0,
                           .graph = slot->graph_label,
                           .ranks = std::string(replicas.text)};
  const auto [replica, process] = run->Open(slot, std::move(key), replicas.ranks);
  members_[slot] = {.run = std::move(run), .replica = replica, .process = process};
}

void ReplicaSink::Consume(const pipeline::Delivery& delivery,
                          pipeline::SlotFeedback& /*feedback*/) {
  const SnapshotPtr& snapshot = delivery.snapshot;
  if (delivery.seen_before || snapshot->slot->shard.empty()) return;
  const auto found = members_.find(snapshot->slot);
  if (found == members_.end()) return;
  Member& member = found->second;
  Position position =
      member.positions.Next(snapshot->ordinal, snapshot->replay, snapshot->iteration,
                            snapshot->step, /*may_begin_inside=*/true);
  position.is_call = !position.is_step && snapshot->slot->CountsCalls();
  LocalRanks& ranks = member.run->ranks();
  const std::size_t process = ranks.NumberOf(snapshot->slot->session);
  if (ranks.IsAlone()) return ranks.SkipAlone(process);
  // Its replica group is unknown, or it has no statistics.
  if (!member.is_known) {
    ++ranks.Count(process).incomplete;
    return;
  }
  // If a step comes again, it is unclear which occurrence is meant.
  const bool is_repeated = position.is_step && member.newest && position <= *member.newest;
  if (is_repeated || !member.positions.is_certain()) {
    return member.run->Skip(member.replica, member.process,
                            is_repeated ? std::nullopt : std::optional(position));
  }
  member.newest = position;
  member.run->Take(member.replica, member.process, position, snapshot, delivery.payload);
}

void ReplicaSink::CloseSlot(const SlotPtr& slot, std::uint64_t /*last_replay*/,
                            pipeline::SlotFeedback& /*feedback*/) {
  const auto found = members_.find(slot);
  if (found == members_.end()) return;
  const Member member = found->second;
  members_.erase(found);
  if (member.is_known) member.run->Close(member.replica, member.process);
}

void ReplicaSink::EndSession(const SessionPtr& session, bool /*died*/) {
  // If its memory was cut off, slots were not closed.
  std::erase_if(members_, [&](const auto& one) { return one.first->session == session; });
  const std::shared_ptr<Run> run = RunOf(session);
  if (run == nullptr) return;
  run->End(session);
  run->ranks().Show(registry_);
}

void ReplicaSink::ForgetSession(const SessionPtr& session) {
  std::erase_if(members_, [&](const auto& one) { return one.first->session == session; });
  const std::shared_ptr<Run> run = RunOf(session);
  if (run != nullptr && run->ranks().Forget(session)) runs_.erase(AttemptOf(*session));
}

void ReplicaSink::Flush() {
  for (const auto& [attempt, run] : runs_) run->ranks().Show(registry_);
}

void ReplicaSink::Tick() {
  for (const auto& [attempt, run] : runs_) {
    run->Settle();
    run->ranks().Show(registry_);
  }
}

}  // namespace cgdebug::sinks
