#include "client/analysis/ranks/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "client/analysis/check/told.h"
#include "client/analysis/ops/masks.h"
#include "client/analysis/ops/op_log.h"
#include "client/analysis/ranks/ranks_state.h"
#include "daemon/core/replicas/shard_text.h"
#include "daemon/core/replicas/spread.h"

namespace cgdebug::analysis {
namespace {

using source::Key;
using source::Slot;
using source::Snapshot;
using source::Source;

// How far a slot of one recording was taken in.
struct Cursor {
  std::uint64_t seen_id = 0;            // the last one that was looked at
  replicas::PositionCounter positions;  // of those that could be read
  std::optional<Position> newest;       // that was taken in
};

// A row of an op log in one recording.
struct LogRow {
  std::size_t process = 0;
  SeenSlot seen;
  struct Nonfinite {
    SeenSlot::Time time;
    RankPlace place;
  };
  std::vector<Nonfinite> nonfinite = {};
};
using LogRows = std::map<std::size_t, LogRow>;  // by slot

void TakeLeast(const RankPlace& place, std::optional<RankPlace>* least) {
  if (!*least || place < **least) *least = place;
}

void TakeEarlier(const RankPlace& place, std::optional<RankPlace>* first) {
  if (!*first || place.CameBefore(**first)) *first = place;
}

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

// Whether the first snapshot that is here need not be the first of its step.
bool MayBeginInside(Source& source, std::size_t slot, const std::vector<Key>& keys) {
  return !keys.empty() && keys.front().id > 1 && HasSeveralPerStep(source, slot, keys);
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
  to->unread.count += from.unread.count;
  if (to->unread.why_first.empty()) to->unread.why_first = from.unread.why_first;
  to->repeated.Add(from.repeated);
  to->replay = std::max(to->replay, from.replay);
  to->step = std::max(to->step, from.step);
  to->lost.insert(from.lost.begin(), from.lost.end());
  if (from.first) TakeLeast(*from.first, &to->first);
  if (from.first_nonfinite) TakeEarlier(*from.first_nonfinite, &to->first_nonfinite);
  if (from.first_told && (!to->first_told || *from.first_told < *to->first_told)) {
    to->first_told = from.first_told;
    to->told = from.told;
  }
  if (from.last && (!to->last || *to->last < *from.last)) to->last = from.last;
}

// The slots of a process that have a replica, by the path of the recording.
using SlotsOfReplicas =
    std::map<std::pair<std::size_t, ReplicaKey>, std::map<std::string, std::size_t>>;

// Reads the values of replicas whose statistics do not tell how far they differ.
class ValueReader {
 public:
  ValueReader(const RanksOptions& options, const SlotsOfReplicas& places)
      : options_(options), places_(places) {}

  std::optional<bool> AreWithin(const ReplicaKey& key, const Position& position,
                                const std::vector<std::size_t>& processes) {
    if (!options_.open) return std::nullopt;
    replicas::Spread spread;
    for (const std::size_t process : processes) {
      const auto place = places_.find({process, key});
      if (place == places_.end()) return std::nullopt;
      bool is_here = false;
      for (const auto& [path, slot] : place->second) {
        is_here = is_here || Add(path, slot, position, &spread);
      }
      if (!is_here) return std::nullopt;
    }
    return spread.Within(options_.tolerance);
  }

 private:
  bool Add(const std::string& path, std::size_t slot, const Position& position,
           replicas::Spread* spread) {
    Source* const source = options_.open(path);
    if (source == nullptr || slot >= source->slots().size()) return false;
    const std::map<Position, Key>& keys = KeysOf(*source, path, slot);
    const auto key = keys.find(position);
    if (key == keys.end()) return false;
    const Result<Snapshot> snapshot = source->Get(slot, key->second);
    if (!snapshot.ok() || !snapshot->has_values) return false;
    const Result<source::Values> values = source->Load(*snapshot);
    return values.ok() && spread->Add(source->slots()[slot].dtype, values->bytes);
  }

  // As AddSlot() counts positions.
  const std::map<Position, Key>& KeysOf(Source& source, const std::string& path, std::size_t slot) {
    const auto [known, is_new] = keys_.try_emplace({path, slot});
    std::map<Position, Key>& of_slot = known->second;
    if (!is_new) return of_slot;
    const Result<std::vector<Key>> keys = source.Keys(slot);
    if (!keys.ok()) return of_slot;
    replicas::PositionCounter positions;
    const bool may_begin_inside = MayBeginInside(source, slot, *keys);
    for (const Key& key : *keys) {
      const Result<Snapshot> snapshot = source.Get(slot, key);
      if (!snapshot.ok()) continue;
      const Position position =
          positions.Next(key.id, key.replay, key.iteration, snapshot->step, may_begin_inside);
      if (positions.is_certain() && options_.scope.Wants(key.replay)) {
        of_slot.try_emplace(position, key);
      }
    }
    return of_slot;
  }

  const RanksOptions& options_;
  const SlotsOfReplicas& places_;
  std::map<std::pair<std::string, std::size_t>, std::map<Position, Key>> keys_;
};

}  // namespace

class RankFold::State {
 public:
  explicit State(RanksOptions options) : options_(std::move(options)) {}

  Result<void> Add(Source& source, const std::string& path) {
    const source::Description about = source.Describe();
    std::map<std::pair<ReplicaKey, std::size_t>, std::uint64_t> counts;
    std::set<std::size_t> seen;
    std::map<std::size_t, std::size_t> process_of;  // by slot
    LogRows of_whole;
    LogRows& rows = options_.follows ? rows_[path] : of_whole;
    const std::map<std::size_t, std::vector<std::size_t>> values = RowsOfValues(source);
    for (const std::size_t slot : WantedSlots(source, options_.scope)) {
      const Slot& info = source.slots()[slot];
      const std::size_t process = process_of[slot] = Enlist(Describe(info, path));
      RankProcess& of = kept_.processes[process];
      if (info.op.empty()) NoteProbe(info.probe, process);
      if (seen.insert(process).second) {
        // A process may have several recordings.
        of.is_growing = about.is_growing || (of.is_growing && !options_.follows);
        of.is_cut_off = about.is_cut_off || (of.is_cut_off && !options_.follows);
        of.lost[path] = 0;
      }
      const Result<recording::Account> account = source.AccountOf(slot);
      if (account.ok()) of.lost[path] += account->lost_count();
      Replica* replica = nullptr;
      if (std::optional<ReplicaKey> key = KeyOf(info, process)) {
        key->nth = counts[{*key, process}]++;
        replica = &kept_.replicas[*key];
        replica->order = std::min(replica->order, info.order);
        replica->dtype = info.dtype;
        replica->is_part = !info.part.empty();
        replica->processes.Set(process);
        places_[{process, *key}][path] = slot;
      }
      LogRow* row = nullptr;
      if (!info.op.empty() || values.contains(slot)) {
        row = &rows[slot];
        row->process = process;
        row->seen.slot = slot;
      }
      if (Result<void> done = AddSlot(source, slot, path, process, replica, row); !done.ok()) {
        return done;
      }
    }
    TakeNonfinite(source, path, process_of, rows, values);
    kept_.unreadable.insert(about.unread.begin(), about.unread.end());
    // One that is still written is added again.
    if (options_.follows && about.is_growing) return {};
    const auto wants = [&](const Slot& process) { return options_.scope.WantsRank(process); };
    const auto looks_at = [&](const Slot& slot) { return options_.scope.Wants(slot); };
    for (const std::string& text : NotSeenTexts(source, wants, looks_at)) {
      kept_.unreadable.insert(fmt::format("{}: {}", path, text));
    }
    for (const std::string& damage : about.damage) {
      kept_.unreadable.insert(fmt::format("{} is damaged: {}", path, damage));
    }
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
      ours.dtype = theirs.dtype;
      ours.is_part = theirs.is_part;
      for (const std::size_t process : theirs.processes.Members()) {
        ours.processes.Set(places[process]);
      }
      for (const auto& [position, vote] : theirs.votes) ours.votes[position].Merge(vote, places);
    }
    for (const auto& [probe, theirs] : other.kept_.probes) {
      for (const std::size_t process : theirs.Members()) NoteProbe(probe, places[process]);
    }
    kept_.masks.insert(other.kept_.masks.begin(), other.kept_.masks.end());
    for (const auto& [probe, theirs] : other.kept_.unknown) {
      for (const std::size_t process : theirs.Members()) kept_.unknown[probe].Set(places[process]);
    }
    kept_.unreadable.insert(other.kept_.unreadable.begin(), other.kept_.unreadable.end());
  }

  const RankState& kept() const { return kept_; }
  void Restore(RankState kept) {
    kept_ = std::move(kept);
    for (std::size_t i = 0; i < kept_.processes.size(); ++i) {
      place_of_.emplace(kept_.processes[i].uuid, i);
    }
  }
  RanksReport Finish() const {
    ValueReader values(options_, places_);
    return JudgeRanks(kept_, options_,
                      [&](const ReplicaKey& key, const Position& position,
                          const std::vector<std::size_t>& processes) {
                        return values.AreWithin(key, position, processes);
                      });
  }

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

  // Takes in the first NaN or Inf of rows that are no masks, and of snapshots that the daemon saw
  // and that may not be here.
  void TakeNonfinite(Source& source, const std::string& path,
                     const std::map<std::size_t, std::size_t>& process_of, const LogRows& rows,
                     const std::map<std::size_t, std::vector<std::size_t>>& values) {
    std::vector<SeenSlot> seen;
    for (const std::size_t slot : WantedSlots(source, options_.scope)) {
      const auto row = rows.find(slot);
      if (row != rows.end() && !values.contains(slot)) seen.push_back(row->second.seen);
    }
    const Excuses excuses = FindExcuses(source, seen);
    std::set<std::size_t> masks;
    for (const auto& [at, excuse] : excuses) {
      if (excuse == Excuse::kMask && !values.contains(at.first)) masks.insert(at.first);
    }
    if (!masks.empty()) kept_.masks[path] = masks.size();
    for (const auto& [slot, row] : rows) {
      for (const LogRow::Nonfinite& one : row.nonfinite) {
        if (excuses.contains({slot, one.time})) continue;
        TakeEarlier(one.place, &kept_.processes[row.process].first_nonfinite);
      }
    }
    for (const source::Finding& told : source.Findings()) {
      const auto process = process_of.find(told.slot);
      const bool is_mismatch = told.kind == layout::FindingKind::kMismatch;
      if (is_mismatch || process == process_of.end() || !options_.scope.Wants(told.replay))
        continue;
      if (told.kind == layout::FindingKind::kReplica) {
        TakeTold(source, told, &kept_.processes[process->second]);
        continue;
      }
      const bool is_mask = masks.contains(told.slot) && told.kind == layout::FindingKind::kInf;
      if (is_mask || HasJudged(source, rows, told)) continue;
      const RankPlace place = PlaceOf(source, told);
      std::optional<RankPlace>& first = kept_.processes[process->second].first_nonfinite;
      const bool is_here = first && first->probe == place.probe && first->replay == place.replay;
      if (!is_here) TakeEarlier(place, &first);
    }
  }

  // Whether the snapshot is here and was read: then what it holds was sorted out with its row.
  static bool HasJudged(Source& source, const LogRows& rows, const source::Finding& told) {
    const auto row = rows.find(told.slot);
    if (row == rows.end()) return false;
    const bool was_read = std::ranges::any_of(
        row->second.seen.times,
        [&told](const SeenSlot::Time& time) { return time.first == told.replay; });
    if (!was_read) return false;
    const Result<std::vector<Key>> keys = source.Keys(told.slot);
    return keys.ok() && IsHere(source, *keys, told);
  }

  void NoteProbe(const std::string& probe, std::size_t process) {
    const auto known = kept_.probes.find(probe);
    if (known != kept_.probes.end()) return known->second.Set(process);
    if (kept_.probes.size() < RankState::kMostProbes) kept_.probes[probe].Set(process);
  }

  static RankPlace PlaceOf(const Source& source, const source::Finding& told) {
    const Slot& info = source.slots()[told.slot];
    const Position position = told.step < 0
                                  ? Position{false, told.replay, 0, info.counts_calls()}
                                  : Position{true, static_cast<std::uint64_t>(told.step), 0};
    return {position,    source::PlaceInCall(info), SlotText(info),
            told.replay, told.timestamp_ns,         info.counts_calls()};
  }

  // What the daemon saw when it compared the ranks of its machine.
  static void TakeTold(const Source& source, const source::Finding& told, RankProcess* process) {
    const RankPlace place = PlaceOf(source, told);
    if (process->first_told && *process->first_told < place) return;
    process->first_told = place;
    process->told = told.text;
  }

  // Nothing if the tensor of this slot need not be the same on other ranks.
  std::optional<ReplicaKey> KeyOf(const Slot& slot, std::size_t process) {
    if (slot.rank < 0) return std::nullopt;
    const replicas::Replicas replicas = replicas::ReplicasOf(slot.shard);
    const bool is_named = options_.has_replicated && options_.replicated.Matches(slot.probe);
    if (replicas.kind == replicas::Replication::kUnknown && !is_named) {
      kept_.unknown[slot.probe].Set(process);
      return std::nullopt;
    }
    if (replicas.kind == replicas::Replication::kNone && !is_named) return std::nullopt;
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
                       std::size_t process, Replica* replica, LogRow* row) {
    const Result<std::vector<Key>> keys = source.Keys(slot);
    if (!keys.ok()) return keys.error();
    const Slot& info = source.slots()[slot];
    RankProcess& of = kept_.processes[process];
    Cursor whole;
    Cursor& cursor = options_.follows ? cursors_[path][slot] : whole;
    const bool may_begin_inside =
        replica != nullptr && cursor.seen_id == 0 && MayBeginInside(source, slot, *keys);
    for (const Key& key : *keys) {
      if (key.id <= cursor.seen_id) continue;  // ids of a slot ascend
      cursor.seen_id = key.id;
      const Result<Snapshot> snapshot = source.Get(slot, key);
      const Result<numerics::Stats> stats = snapshot.ok()
                                                ? source::StatsOf(source, *snapshot)
                                                : Result<numerics::Stats>(snapshot.error());
      if (!stats.ok()) {
        if (of.unread.count++ == 0) of.unread.why_first = stats.error().message;
        continue;
      }
      Position position = cursor.positions.Next(key.id, key.replay, key.iteration, snapshot->step,
                                                may_begin_inside);
      position.is_call = !position.is_step && info.counts_calls();
      if (!options_.scope.Wants(key.replay)) continue;
      const RankPlace place{position,        source::PlaceInCall(info), SlotText(info),
                            key.replay,      snapshot->timestamp_ns,    info.counts_calls(),
                            snapshot->serial};
      ++of.snapshots;
      of.replay = std::max(of.replay, key.replay);
      of.step = std::max(of.step, snapshot->step);
      TakeLeast(place, &of.first);
      if (!of.last || *of.last < place) of.last = place;
      if (row != nullptr) row->seen.Note(key, *stats);
      if (stats->nonfinite() > 0 && row != nullptr) {
        row->nonfinite.push_back({{key.replay, key.iteration}, place});
      } else if (stats->nonfinite() > 0) {
        TakeEarlier(place, &of.first_nonfinite);
      }
      if (replica == nullptr || !cursor.positions.is_certain()) continue;
      // The job counts its steps from the start again: which time is meant nobody can tell.
      if (position.is_step && cursor.newest && position <= *cursor.newest) {
        of.repeated.Add({1, key.replay});
        continue;
      }
      cursor.newest = position;
      replica->votes[position].Add(process, *stats, snapshot->hash);
    }
    return {};
  }

  RanksOptions options_;
  RankState kept_;
  std::map<std::string, std::size_t> place_of_;                   // by uuid
  std::map<std::string, std::map<std::size_t, Cursor>> cursors_;  // by path and slot
  std::map<std::string, LogRows> rows_;                           // by path; when following
  SlotsOfReplicas places_;  // not encoded: another process has other recordings at hand
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
