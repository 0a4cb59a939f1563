#include "client/analysis/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "client/analysis/ranks_state.h"
#include "client/source/replicas.h"

namespace cgdebug::analysis {
namespace {

using source::Key;
using source::Slot;
using source::Snapshot;
using source::Source;

// How far a slot of one recording was taken in.
struct Cursor {
  std::uint64_t seen_id = 0;  // the last one that was looked at
  std::uint64_t last_id = 0;  // the last one that could be read
  std::int64_t step = -1;
  std::uint64_t nth = 0;
  // Whether `nth` is certain: a loss may have taken snapshots of the same step.
  bool is_certain = true;
};

// Whether a step has several snapshots, as far as the first few tell.
bool HasSeveralPerStep(Source& source, std::size_t slot, const std::vector<Key>& keys) {
  constexpr std::size_t kLookedAt = 3;
  std::int64_t before = -1;
  for (std::size_t i = 0; i < std::min(kLookedAt, keys.size()); ++i) {
    const Result<Snapshot> snapshot = source.Get(slot, keys[i]);
    if (!snapshot.ok() || snapshot->step < 0) return false;
    if (i > 0 && snapshot->step == before) return true;
    before = snapshot->step;
  }
  return false;
}

// Takes the snapshot into the count of its step.
Position TakePosition(const Snapshot& snapshot, std::uint64_t id_before, bool may_begin_inside,
                      Cursor* cursor) {
  if (snapshot.step < 0) {
    cursor->is_certain = true;
    cursor->step = -1;
    return {false, snapshot.key.replay, snapshot.key.iteration};
  }
  const std::uint64_t lost = snapshot.key.id - id_before - 1;
  if (id_before == 0) {
    cursor->is_certain = lost == 0 || !may_begin_inside;
    cursor->nth = 0;
  } else if (snapshot.step == cursor->step) {
    cursor->is_certain = cursor->is_certain && lost == 0;
    ++cursor->nth;
  } else {
    // If each step between had one snapshot, none of this step is among those that are missing.
    const std::int64_t steps_between = snapshot.step - cursor->step - 1;
    cursor->is_certain =
        lost == 0 || (cursor->is_certain && cursor->nth == 0 && cursor->step >= 0 &&
                      steps_between == static_cast<std::int64_t>(lost));
    cursor->nth = 0;
  }
  cursor->step = snapshot.step;
  return {true, static_cast<std::uint64_t>(snapshot.step), cursor->nth};
}

RankProcess Describe(const Slot& slot, const std::string& path) {
  RankProcess process;
  process.uuid = slot.uuid.empty() ? path + "\n" + slot.session : slot.uuid;
  process.session = slot.session;
  process.run = slot.run;
  process.host = slot.host;
  process.rank = slot.rank;
  process.world_size = slot.world_size;
  process.restart = slot.restart;
  return process;
}

// Adds what another fold knows of the same process.
void Join(const RankProcess& from, RankProcess* to) {
  to->is_growing = to->is_growing || from.is_growing;
  to->is_cut_off = to->is_cut_off || from.is_cut_off;
  to->snapshots += from.snapshots;
  to->unread += from.unread;
  if (to->first_unread.empty()) to->first_unread = from.first_unread;
  to->replay = std::max(to->replay, from.replay);
  to->step = std::max(to->step, from.step);
  to->lost.insert(from.lost.begin(), from.lost.end());
  const auto take_first = [](const auto& theirs, auto* ours) {
    if (theirs && (!*ours || *theirs < **ours)) *ours = theirs;
  };
  take_first(from.first, &to->first);
  take_first(from.first_nonfinite, &to->first_nonfinite);
  if (from.last && (!to->last || *to->last < *from.last)) to->last = from.last;
}

}  // namespace

std::string PositionText(const Position& position) {
  const char* const unit = position.is_step ? "step" : "replay";
  if (position.nth == 0) return fmt::format("{} {}", unit, position.number);
  return fmt::format("{} {} (number {} of it)", unit, position.number, position.nth + 1);
}

class RankFold::State {
 public:
  explicit State(RanksOptions options) : options_(std::move(options)) {}

  Result<void> Add(Source& source, const std::string& path) {
    const source::Description about = source.Describe();
    std::map<std::pair<ReplicaKey, std::size_t>, std::uint64_t> counts;
    std::set<std::size_t> seen;
    for (const std::size_t slot : WantedSlots(source, options_.scope)) {
      const Slot& info = source.slots()[slot];
      const std::size_t process = Enlist(Describe(info, path));
      RankProcess& of = kept_.processes[process];
      if (seen.insert(process).second) {
        of.is_growing = about.is_growing;
        of.is_cut_off = about.is_cut_off;
        of.lost[path] = 0;
      }
      const Result<recording::Account> account = source.AccountOf(slot);
      if (account.ok()) of.lost[path] += account->lost_count();
      Replica* replica = nullptr;
      if (std::optional<ReplicaKey> key = KeyOf(info, process)) {
        key->nth = counts[{*key, process}]++;
        replica = &kept_.replicas[*key];
        replica->order = std::min(replica->order, info.order);
        replica->processes.Set(process);
        if (!key->ranks.empty()) replica->ranks = source::ReplicasOf(info.shard).ranks;
      }
      if (Result<void> done = AddSlot(source, slot, path, process, replica); !done.ok()) {
        return done;
      }
    }
    kept_.unreadable.insert(about.unread.begin(), about.unread.end());
    return {};
  }

  void AddUnreadable(const std::string& why) { kept_.unreadable.insert(why); }

  void Merge(const State& other) {
    std::vector<std::size_t> places;
    for (const RankProcess& theirs : other.kept_.processes) {
      places.push_back(Enlist(theirs));
      Join(theirs, &kept_.processes[places.back()]);
    }
    for (const auto& [key, theirs] : other.kept_.replicas) {
      Replica& ours = kept_.replicas[key];
      ours.order = std::min(ours.order, theirs.order);
      if (ours.ranks.empty()) ours.ranks = theirs.ranks;
      for (const std::size_t process : theirs.processes.Members()) {
        ours.processes.Set(places[process]);
      }
      for (const auto& [position, vote] : theirs.votes) ours.votes[position].Merge(vote, places);
    }
    for (const auto& [probe, count] : other.kept_.unknown) kept_.unknown[probe] += count;
    kept_.unreadable.insert(other.kept_.unreadable.begin(), other.kept_.unreadable.end());
  }

  const RankState& kept() const { return kept_; }
  void Restore(RankState kept) {
    kept_ = std::move(kept);
    for (std::size_t i = 0; i < kept_.processes.size(); ++i) {
      place_of_.emplace(kept_.processes[i].uuid, i);
    }
  }
  RanksReport Finish() const { return JudgeRanks(kept_, options_); }

 private:
  std::size_t Enlist(const RankProcess& process) {
    const auto [place, is_new] = place_of_.try_emplace(process.uuid, kept_.processes.size());
    if (is_new) {
      RankProcess& added = kept_.processes.emplace_back();
      added.uuid = process.uuid;
      added.session = process.session;
      added.run = process.run;
      added.host = process.host;
      added.rank = process.rank;
      added.world_size = process.world_size;
      added.restart = process.restart;
    }
    return place->second;
  }

  // Nothing if the tensor of this slot need not be the same on other ranks.
  std::optional<ReplicaKey> KeyOf(const Slot& slot, std::size_t process) {
    if (slot.rank < 0) return std::nullopt;
    const source::Replicas replicas = source::ReplicasOf(slot.shard);
    const bool is_named = options_.has_replicated && options_.replicated.Matches(slot.probe);
    if (replicas.kind == source::Replication::kUnknown && !is_named) {
      // A growing recording shows a slot again and again.
      if (told_unknown_.insert({process, slot.probe}).second) ++kept_.unknown[slot.probe];
      return std::nullopt;
    }
    if (replicas.kind == source::Replication::kNone && !is_named) return std::nullopt;
    ReplicaKey key;
    key.attempt = {slot.run, slot.restart};
    key.probe = slot.probe;
    key.invocation = slot.invocation;
    key.type = source::TypeText(slot);
    key.is_eager = slot.graph_id == 0;
    if (slot.graph_is_given) key.graph = slot.graph;
    key.ranks = replicas.text;
    return key;
  }

  Result<void> AddSlot(Source& source, std::size_t slot, const std::string& path,
                       std::size_t process, Replica* replica) {
    const Result<std::vector<Key>> keys = source.Keys(slot);
    if (!keys.ok()) return keys.error();
    const Slot& info = source.slots()[slot];
    RankProcess& of = kept_.processes[process];
    Cursor whole;
    Cursor& cursor = options_.follows ? cursors_[path][slot] : whole;
    bool may_begin_inside = false;
    if (replica != nullptr && cursor.seen_id == 0 && !keys->empty() && keys->front().id > 1) {
      may_begin_inside = HasSeveralPerStep(source, slot, *keys);
    }
    for (const Key& key : *keys) {
      if (key.id <= cursor.seen_id) continue;  // ids of a slot ascend
      cursor.seen_id = key.id;
      const Result<Snapshot> snapshot = source.Get(slot, key);
      const Result<numerics::Stats> stats = snapshot.ok()
                                                ? source::StatsOf(source, *snapshot)
                                                : Result<numerics::Stats>(snapshot.error());
      if (!stats.ok()) {
        if (of.unread++ == 0) of.first_unread = stats.error().message;
        continue;
      }
      const std::uint64_t id_before = std::exchange(cursor.last_id, key.id);
      const Position position = TakePosition(*snapshot, id_before, may_begin_inside, &cursor);
      if (!options_.scope.Wants(key.replay)) continue;
      const RankPlace place{position, info.order, SlotText(info), key.replay,
                            snapshot->timestamp_ns};
      ++of.snapshots;
      of.replay = std::max(of.replay, key.replay);
      of.step = std::max(of.step, snapshot->step);
      if (!of.first || place < *of.first) of.first = place;
      if (!of.last || *of.last < place) of.last = place;
      if (stats->nonfinite() > 0 && (!of.first_nonfinite || place < *of.first_nonfinite)) {
        of.first_nonfinite = place;
      }
      if (replica != nullptr && cursor.is_certain) {
        replica->votes[position].Add(process, *stats, snapshot->hash);
      }
    }
    return {};
  }

  RanksOptions options_;
  RankState kept_;
  std::map<std::string, std::size_t> place_of_;                   // by uuid
  std::map<std::string, std::map<std::size_t, Cursor>> cursors_;  // by path and slot
  std::set<std::pair<std::size_t, std::string>> told_unknown_;
};

RankFold::RankFold(RanksOptions options) : state_(std::make_unique<State>(std::move(options))) {}
RankFold::~RankFold() = default;
RankFold::RankFold(RankFold&&) noexcept = default;
RankFold& RankFold::operator=(RankFold&&) noexcept = default;

Result<void> RankFold::Add(Source& source, const std::string& path) {
  return state_->Add(source, path);
}
void RankFold::AddUnreadable(const std::string& why) { state_->AddUnreadable(why); }
void RankFold::Merge(const RankFold& other) { state_->Merge(*other.state_); }
std::string RankFold::Encode() const { return state_->kept().Encode(); }
Result<RankFold> RankFold::Decode(const std::string& bytes, RanksOptions options) {
  Result<RankState> kept = RankState::Decode(bytes);
  if (!kept.ok()) return kept.error();
  RankFold fold(std::move(options));
  fold.state_->Restore(*std::move(kept));
  return fold;
}
RanksReport RankFold::Finish() const { return state_->Finish(); }

}  // namespace cgdebug::analysis
