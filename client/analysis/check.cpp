#include "client/analysis/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <tuple>

#include "client/analysis/gaps.h"
#include "client/analysis/lead_up.h"
#include "client/analysis/masks.h"
#include "client/analysis/op_log.h"
#include "client/analysis/verify.h"
#include "daemon/core/numerics/stats_difference.h"

namespace cgdebug::analysis {
namespace {

using numerics::Stats;
using source::Key;
using source::Slot;
using source::Snapshot;
using source::Source;

constexpr double kNearOverflowShare = 0.5;

// Slots that were captured together share their replays. Eager calls do not: each slot counts its
// own, and only their serials say what came before what.
using Graph = std::tuple<std::string, int, std::uint64_t>;
Graph GraphOf(const Slot& slot) { return {slot.session, slot.rank, slot.graph_id}; }

// Two snapshots of a slot, one after the other.
struct Step {
  std::uint64_t replay = 0;  // of the later one
  std::uint64_t serial = 0;
  std::uint64_t serial_before = 0;
};

struct Scanned : SeenProbe {
  std::vector<Step> unchanged;
  bool ever_changed = false;
  bool is_empty = false;  // also outside the replays to look at
  SeenSlot seen;
  struct Nonfinite {
    Key key;
    source::Moment moment;
  };
  std::vector<Nonfinite> nonfinite;  // its snapshots with NaN or Inf
  bool has_mask = false;             // one of them may be a mask
};

class Checker {
 public:
  Checker(Source& source, const CheckOptions& options) : source_(source), options_(options) {}

  Result<Check> Run() {
    by_calls_ = IsOrderedByCalls();
    for (const std::size_t slot : WantedSlots(source_, options_.scope)) {
      if (const Result<void> done = Scan(slot); !done.ok()) return done.error();
    }
    result_.slots = scanned_.size();
    result_.in_part = static_cast<std::size_t>(std::ranges::count_if(
        scanned_, [&](const Scanned& one) { return !source_.slots()[one.slot].part.empty(); }));
    for (std::size_t i = 0; i < scanned_.size(); ++i) place_of_[scanned_[i].slot] = i;
    if (const Result<void> sorted = SortOutNonfinite(); !sorted.ok()) return sorted.error();
    SortOutScaled();
    for (std::size_t i = 0; i < result_.findings.size(); ++i) {
      finding_of_[{result_.findings[i].slot, result_.findings[i].kind}] = i;
    }
    CountShapes();
    VerifyValues();
    TakeTold();
    FindStale();
    FindNeverWritten();
    if (result_.first) DescribeFirst();
    CountCompleteness();
    CountUnseen();
    AddOpGaps();
    const GapSummary gaps = SummarizeGaps(source_, options_.scope);
    result_.missing.insert(result_.missing.end(), gaps.sentences.begin(), gaps.sentences.end());
    result_.missing_count += gaps.count;
    result_.goes_on = !gaps.goes_on.empty();
    result_.account = gaps.account;
    result_.seen_finite = SeenFinite(gaps.account);
    result_.replays.assign(replays_.begin(), replays_.end());
    for (const Scanned& scanned : scanned_) result_.ranks[source_.slots()[scanned.slot].rank];
    for (const Finding& finding : result_.findings) {
      if (finding.is_bad()) result_.ranks[source_.slots()[finding.slot].rank] = true;
    }
    std::stable_sort(result_.findings.begin(), result_.findings.end(),
                     [](const Finding& a, const Finding& b) { return a.kind < b.kind; });
    return std::move(result_);
  }

 private:
  // One probe's findings of one kind, growing with its snapshots.
  struct FindingRun {
    std::optional<Finding> finding;
    void Add(FindingKind kind, std::size_t slot, std::uint64_t replay, double worst = 0) {
      if (!finding) finding = Finding{.kind = kind, .slot = slot, .first_replay = replay};
      finding->last_replay = replay;
      ++finding->count;
      finding->worst = std::max(finding->worst, worst);
    }
  };

  // What one rank sends to another in a call is there, too, before the clock says so. Between ranks
  // the place in the program decides.
  bool IsOrderedByCalls() {
    std::set<int> ranks;
    for (const std::size_t slot : WantedSlots(source_, options_.scope)) {
      if (!source_.slots()[slot].counts_calls()) return false;
      ranks.insert(source_.slots()[slot].rank);
    }
    return ranks.size() > 1;
  }
  source::Moment MomentAt(const Slot& slot, std::uint64_t serial, const Key& key) const {
    if (by_calls_) return {0, key.replay, PlaceInCall(slot), key.iteration, slot.rank};
    return {serial, key.replay, slot.order, key.iteration, slot.rank};
  }

  Result<void> Scan(std::size_t slot) {
    Result<std::vector<Key>> keys = source_.Keys(slot);
    if (!keys.ok()) return keys.error();
    const bool is_empty = keys->empty();
    std::erase_if(*keys, [&](const Key& key) { return !options_.scope.Wants(key.replay); });
    Scanned scanned;
    scanned.slot = scanned.seen.slot = slot;
    scanned.keys = *std::move(keys);
    scanned.is_empty = is_empty;
    scanned.abs_max.assign(scanned.keys.size(), NAN);
    FindingRun mismatch, near_overflow, largest, zero;
    std::optional<Snapshot> previous;
    const bool is_row = !source_.slots()[slot].op.empty();
    for (const Key& key : scanned.keys) {
      const Result<Snapshot> snapshot = source_.Get(slot, key);
      if (!snapshot.ok()) {
        AddUnread(slot, key, snapshot.error());
        continue;
      }
      const Result<Stats> stats = source::StatsOf(source_, *snapshot);
      if (!stats.ok()) {
        AddUnread(slot, key, stats.error());
        continue;
      }
      ++result_.snapshots;
      if (snapshot->has_values && snapshot->hash) with_hash_.push_back({slot, key});
      replays_.insert(key.replay);
      has_serials_ = has_serials_ || snapshot->serial != 0;
      scanned.abs_max[static_cast<std::size_t>(&key - scanned.keys.data())] = stats->abs_max;
      if (snapshot->comparison && snapshot->comparison->mismatched > 0) {
        mismatch.Add(FindingKind::kMismatch, slot, key.replay);
      }
      if (stats->nonfinite() > 0) {
        scanned.nonfinite.push_back({key, MomentAt(source_.slots()[slot], snapshot->serial, key)});
      }
      if (is_row) scanned.seen.Note(key, *stats);
      const double share = ShareOfMaximum(slot, *stats);
      if (is_row && share == 1 &&
          ElementBytes(slot) > 1) {  // float8 has it wherever a value was cut off
        largest.Add(FindingKind::kLargest, slot, key.replay);
      } else if (share > kNearOverflowShare) {
        near_overflow.Add(FindingKind::kNearOverflow, slot, key.replay, share);
      }
      if (stats->count > 0 && stats->zero == stats->count) {
        zero.Add(FindingKind::kZero, slot, key.replay);
      }
      // What comes before and after an iteration is not what comes before and after a replay.
      const Slot& of = source_.slots()[slot];
      if (previous && (!of.in_body || of.counts_calls()))
        NoteChange(*previous, *snapshot, &scanned);
      previous = *snapshot;
    }
    for (const FindingRun* run : {&mismatch, &near_overflow, &largest}) {
      if (run->finding) result_.findings.push_back(*run->finding);
    }
    if (zero.finding && zero.finding->count == scanned.keys.size()) {
      result_.findings.push_back(*zero.finding);
    }
    if (!scanned.keys.empty()) {
      result_.last_replay = std::max(result_.last_replay, scanned.keys.back().replay);
    }
    scanned_.push_back(std::move(scanned));
    return {};
  }

  // Kernels that run between the rows of op logs.
  void CountUnseen() {
    for (const std::size_t index : WantedSlots(source_, options_.scope)) {
      const Slot& slot = source_.slots()[index];
      const std::optional<OpText> text = ParseOpText(slot.op);
      if (!text) continue;
      for (const auto& [nodes, word] :
           {std::pair(&text->unseen_before, "before"), std::pair(&text->unseen_after, "after")}) {
        if (!*nodes) continue;
        result_.unseen_kernels += (*nodes)->count;
        if (!result_.first_unseen.empty()) continue;
        result_.first_unseen = fmt::format("{}, {} {}", (*nodes)->names, word, SlotText(slot));
      }
    }
  }

  void AddOpGaps() {
    const Scope& scope = options_.scope;
    const bool has_rows = std::ranges::any_of(scanned_, [&](const Scanned& scanned) {
      return ParseOpText(source_.slots()[scanned.slot].op).has_value();
    });
    const bool wants_jobs = has_rows || scope.probes.selects_everything();
    for (std::string& gap : OpGapsOf(
             source_, [&](const Slot& slot) { return scope.Wants(slot); },
             [&](const Slot& slot) { return wants_jobs && scope.WantsRank(slot); })) {
      ++result_.missing_count;
      result_.missing.push_back("not logged: " + std::move(gap));
    }
  }

  void VerifyValues() {
    result_.values_read = !options_.trusts_hashes;
    if (options_.trusts_hashes) return;
    for (const DamagedSnapshot& one : FindDamaged(source_, with_hash_)) {
      const auto& [slot, key] = with_hash_[one.place];
      ++result_.missing_count;
      result_.missing.push_back(fmt::format("{}@{}: {}", SlotText(source_.slots()[slot]),
                                            ReplayText(source_.slots()[slot], key), one.why));
    }
  }

  void AddUnread(std::size_t slot, const Key& key, const Error& error) {
    ++result_.missing_count;
    if (unread_.insert(slot).second) {
      result_.missing.push_back(fmt::format("{}@{} was not looked at: {}",
                                            SlotText(source_.slots()[slot]),
                                            ReplayText(source_.slots()[slot], key), error.message));
    }
  }

  std::size_t ElementBytes(std::size_t slot) const {
    const layout::DtypeInfo* info = layout::FindDtype(source_.slots()[slot].dtype);
    return info == nullptr ? 0 : info->bytes;
  }

  double ShareOfMaximum(std::size_t slot, const Stats& stats) const {
    const layout::DtypeInfo* info = layout::FindDtype(source_.slots()[slot].dtype);
    if (info == nullptr || !info->is_floating || !(stats.abs_max > 0)) return 0;
    return stats.abs_max / info->max_finite;
  }

  // Tells what was not meant to be from rows of op logs with an excuse, and finds the earliest of
  // it by time: two graphs, or two shapes of an eager probe, count their replays separately.
  Result<void> SortOutNonfinite() {
    std::vector<SeenSlot> seen;
    for (Scanned& scanned : scanned_) seen.push_back(std::move(scanned.seen));
    const Excuses excuses = FindExcuses(source_, seen);
    const Scanned* of_first = nullptr;
    const Scanned::Nonfinite* first = nullptr;
    for (Scanned& scanned : scanned_) {
      FindingRun runs[4];
      for (const Scanned::Nonfinite& one : scanned.nonfinite) {
        const auto found = excuses.find({scanned.slot, {one.key.replay, one.key.iteration}});
        const Excuse excuse = found == excuses.end() ? Excuse::kNone : found->second;
        constexpr FindingKind kKinds[] = {FindingKind::kNonfinite, FindingKind::kMask,
                                          FindingKind::kAbsorbed, FindingKind::kSkipped};
        const auto kind = static_cast<std::size_t>(excuse);
        runs[kind].Add(kKinds[kind], scanned.slot, one.key.replay);
        if (excuse != Excuse::kNone || (first != nullptr && first->moment <= one.moment)) continue;
        of_first = &scanned;
        first = &one;
      }
      scanned.has_mask = runs[static_cast<std::size_t>(Excuse::kMask)].finding.has_value();
      for (const FindingRun& run : runs) {
        if (run.finding) result_.findings.push_back(*run.finding);
      }
    }
    if (first == nullptr) return {};
    const Result<Snapshot> snapshot = source_.Get(of_first->slot, first->key);
    if (!snapshot.ok()) return snapshot.error();
    const Result<Stats> stats = source::StatsOf(source_, *snapshot);
    if (!stats.ok()) return stats.error();
    first_moment_ = first->moment;
    result_.first = {.slot = of_first->slot, .snapshot = *snapshot, .stats = *stats};
    return {};
  }

  void SortOutScaled() {
    std::set<std::pair<std::string, int>> scaling;  // by session and rank
    for (const Scanned& scanned : scanned_) {
      const Slot& slot = source_.slots()[scanned.slot];
      if (IsOfGradScaler(slot)) scaling.emplace(slot.session, slot.rank);
    }
    for (Finding& finding : result_.findings) {
      const Slot& slot = source_.slots()[finding.slot];
      const bool is_scaled = scaling.contains({slot.session, slot.rank}) && IsGradient(slot);
      if (is_scaled && finding.kind == FindingKind::kNearOverflow) {
        finding.kind = FindingKind::kScaled;
      }
    }
  }

  // Adds what the daemon found in snapshots that are not here; the others were looked at already.
  void TakeTold() {
    for (const source::Finding& told : source_.Findings()) {
      if (told.kind == source::Finding::Kind::kReplica) continue;  // of `ranks`
      const auto place = place_of_.find(told.slot);
      if (place == place_of_.end() || !options_.scope.Wants(told.replay)) continue;
      const Scanned* const scanned = &scanned_[place->second];
      const bool is_mismatch = told.kind == source::Finding::Kind::kMismatch;
      if (!is_mismatch && IsHere(*scanned, told)) continue;
      // How many -Inf a mask has may change. What made it another way is in a row before it.
      const bool is_mask = scanned->has_mask && told.kind == source::Finding::Kind::kInf;
      const FindingKind kind = is_mismatch ? FindingKind::kMismatch
                               : is_mask   ? FindingKind::kMask
                                           : FindingKind::kNonfinite;
      AddTold(kind, told);
      if (is_mismatch || is_mask) continue;
      const Slot& slot = source_.slots()[told.slot];
      const source::Moment moment = MomentAt(slot, told.serial, {.replay = told.replay});
      if (first_moment_ && *first_moment_ < moment) continue;
      if (first_told_moment_ && *first_told_moment_ <= moment) continue;
      first_told_moment_ = moment;
      result_.first_told = told;
    }
  }

  std::uint64_t SeenFinite(const recording::Account& account) {
    const bool is_all = options_.scope.first_replay <= 1 && options_.scope.is_open_ended();
    if (source_.Describe().kind != "live" || !is_all || result_.in_part > 0) {
      return 0;
    }
    for (const source::Finding& told : source_.Findings()) {
      if (told.kind != source::Finding::Kind::kMismatch && place_of_.contains(told.slot)) return 0;
    }
    const auto let_go = account.lost.find(std::string(ToText(layout::LossCause::kNotKept)));
    return let_go == account.lost.end() ? 0 : let_go->second;
  }

  // If the replay has several iterations, the finding is of the one with its serial.
  bool IsHere(const Scanned& scanned, const source::Finding& told) {
    const Key* key = KeyOf(scanned, told.replay);
    if (key == nullptr || told.serial == 0) return key != nullptr;
    if (!source_.slots()[scanned.slot].in_body) return true;
    const Key* const end = scanned.keys.data() + scanned.keys.size();
    for (; key != end && key->replay == told.replay; ++key) {
      const Result<Snapshot> snapshot = source_.Get(scanned.slot, *key);
      if (snapshot.ok() && snapshot->serial == told.serial) return true;
    }
    return false;
  }

  void AddTold(FindingKind kind, const source::Finding& told) {
    if (const auto known = finding_of_.find({told.slot, kind}); known != finding_of_.end()) {
      Finding& finding = result_.findings[known->second];
      if (told.replay < finding.first_replay) finding.told = told;  // before those that are here
      return;
    }
    finding_of_[{told.slot, kind}] = result_.findings.size();
    result_.findings.push_back({.kind = kind,
                                .slot = told.slot,
                                .first_replay = told.replay,
                                .last_replay = told.replay,
                                .count = 1,
                                .told = told});
  }

  // --- what changed ---------------------------------------------------------------------------

  // Requires: a came before b.
  std::optional<bool> IsSame(const Snapshot& a, const Snapshot& b) {
    if (a.hash && b.hash) return *a.hash == *b.hash;
    if (!a.has_values || !b.has_values) return std::nullopt;
    if (b.same_as == a.key.id) return true;
    // Equal values have equal statistics. The reverse is not certain.
    if (a.stats && b.stats && !numerics::DifferencesOf(*a.stats, *b.stats).empty()) return false;
    const Result<source::Values> x = source_.Load(a), y = source_.Load(b);
    if (!x.ok() || !y.ok() || x->bytes.size() != y->bytes.size()) return std::nullopt;
    return x->bytes.empty() || std::memcmp(x->bytes.data(), y->bytes.data(), x->bytes.size()) == 0;
  }

  void NoteChange(const Snapshot& before, const Snapshot& now, Scanned* scanned) {
    const std::optional<bool> same = IsSame(before, now);
    if (!same) return;
    if (*same) {
      // NaN stays NaN: another finding says that already.
      const bool is_finite = !now.stats || now.stats->nonfinite() == 0;
      if (is_finite) scanned->unchanged.push_back({now.key.replay, now.serial, before.serial});
      return;
    }
    scanned->ever_changed = true;
    const Slot& slot = source_.slots()[now.slot];
    if (IsOrderedBySerial(slot, now)) {
      eager_changes_[GraphOf(slot)].push_back({now.serial, now.slot});
      return;
    }
    const auto [found, is_new] =
        first_changed_.try_emplace({GraphOf(slot), now.key.replay}, slot.order);
    if (!is_new) found->second = std::min(found->second, slot.order);
  }

  // A file of tensors has no serials: its replays are the steps of all slots.
  static bool IsOrderedBySerial(const Slot& slot, const Snapshot& snapshot) {
    return slot.graph_id == 0 && snapshot.serial != 0;
  }

  // Whether a probe before `slot` changed in the same replay or, for eager calls, since the
  // snapshot before. Another shape of the same probe does not count.
  bool ChangedBefore(const Slot& slot, const Step& step) const {
    if (slot.graph_id != 0 || step.serial == 0) {
      const auto changed = first_changed_.find({GraphOf(slot), step.replay});
      return changed != first_changed_.end() && changed->second < slot.order;
    }
    const auto of_graph = eager_changes_.find(GraphOf(slot));
    if (of_graph == eager_changes_.end()) return false;
    const std::vector<EagerChange>& changes = of_graph->second;
    auto change = std::ranges::upper_bound(changes, step.serial_before, {}, &EagerChange::serial);
    for (; change != changes.end() && change->serial <= step.serial; ++change) {
      const Slot& other = source_.slots()[change->slot];
      if (other.order < slot.order && SlotName(other) != SlotName(slot)) return true;
    }
    return false;
  }

  void FindStale() {
    for (auto& [graph, changes] : eager_changes_) {
      std::ranges::sort(changes, {}, &EagerChange::serial);
    }
    for (const Scanned& scanned : scanned_) {
      const Slot& slot = source_.slots()[scanned.slot];
      FindingRun run;
      for (const Step& step : scanned.unchanged) {
        if (!ChangedBefore(slot, step)) continue;
        run.Add(scanned.ever_changed ? FindingKind::kStale : FindingKind::kConstant, scanned.slot,
                step.replay);
      }
      // Zeros that stay zeros are reported once.
      if (run.finding && !IsAllZero(scanned.slot)) result_.findings.push_back(*run.finding);
    }
  }

  bool IsAllZero(std::size_t slot) const {
    return finding_of_.contains({slot, FindingKind::kZero});
  }

  void FindNeverWritten() {
    std::map<Graph, std::uint64_t> last;
    for (const Scanned& scanned : scanned_) {
      if (scanned.keys.empty()) continue;
      std::uint64_t& replay = last[GraphOf(source_.slots()[scanned.slot])];
      replay = std::max(replay, scanned.keys.back().replay);
    }
    for (const Scanned& scanned : scanned_) {
      const Slot& slot = source_.slots()[scanned.slot];
      const auto graph = last.find(GraphOf(slot));
      // Snapshots that were not wanted, or were lost, are not the probe's fault.
      if (!scanned.is_empty || graph == last.end() || GapsOf(scanned.slot) != nullptr) continue;
      if (slot.in_body) continue;        // its body was not taken
      if (slot.graph_id == 0) continue;  // nobody called it: what runs eagerly is no graph
      result_.findings.push_back({.kind = FindingKind::kNeverWritten,
                                  .slot = scanned.slot,
                                  .first_replay = 1,
                                  .last_replay = graph->second});
    }
  }

  // --- the first bad one ------------------------------------------------------------------------

  void DescribeFirst() {
    FirstBad& first = *result_.first;
    const Graph graph = GraphOf(source_.slots()[first.slot]);
    std::vector<const SeenProbe*> of_graph;
    for (const Scanned& scanned : scanned_) {
      if (GraphOf(source_.slots()[scanned.slot]) != graph) continue;
      of_graph.push_back(&scanned);
      if (scanned.slot == first.slot) first.place = of_graph.size();
    }
    first.place_count = of_graph.size();
    DescribeLeadUp(source_, of_graph, options_.frames, &first);
  }

  // Eager calls with tensors of several shapes are several slots, and each counts its own calls, so
  // there is no replay in which all of them have a snapshot.
  bool IsOfSeveralShapes(const Slot& slot) const {
    if (slot.graph_id != 0) return false;
    const auto count = eager_slots_.find({GraphOf(slot), SlotName(slot)});
    return count != eager_slots_.end() && count->second > 1;
  }
  void CountShapes() {
    for (const Scanned& scanned : scanned_) {
      const Slot& slot = source_.slots()[scanned.slot];
      if (slot.graph_id == 0) ++eager_slots_[{GraphOf(slot), SlotName(slot)}];
    }
  }

  // Null if the slot has none.
  const std::vector<source::Gap>* GapsOf(std::size_t slot) {
    if (!gaps_) {
      gaps_.emplace();
      for (source::Gap& gap : source_.Gaps()) (*gaps_)[gap.slot].push_back(std::move(gap));
    }
    const auto found = gaps_->find(slot);
    return found == gaps_->end() ? nullptr : &found->second;
  }

  // Whether a missing replay was expected. A source does not always know that a probe wants one
  // replay in N. It does if it never has two replays in a row although nothing was lost.
  bool IsWanted(std::size_t slot, std::uint64_t replay) {
    const std::uint32_t every = source_.slots()[slot].every;
    if (every > 1) return (replay - 1) % every == 0;
    const Result<std::vector<Key>> keys = source_.Keys(slot);
    if (!keys.ok() || keys->empty() || replay < keys->front().replay) return true;
    const std::vector<source::Gap>* gaps = GapsOf(slot);
    std::uint64_t before = keys->front().replay, distance = 1;
    for (std::size_t i = 1; i < keys->size(); ++i) {
      const std::uint64_t from = (*keys)[i - 1].replay, to = (*keys)[i].replay;
      if (to < replay) before = to;
      if (to - from <= distance || (from < replay && replay < to)) continue;
      const bool is_loss =
          gaps != nullptr && std::ranges::any_of(*gaps, [&](const source::Gap& gap) {
            return gap.after_replay < to && (gap.before_replay == 0 || gap.before_replay > from);
          });
      if (!is_loss) distance = to - from;
    }
    return replay - before >= distance;
  }

  // How many of a graph's probes have a snapshot of one replay.
  struct Presence {
    std::uint64_t replay = 0;
    std::size_t present = 0;
    std::size_t expected = 0;
    std::vector<std::string> absent;
  };

  // Looks at every graph of every process. What is shown of all of them is the one of the first bad
  // snapshot, else the first that lacks something, else the largest.
  void CountCompleteness() {
    if (scanned_.empty()) return;
    std::map<Graph, std::vector<const Scanned*>> graphs;
    for (const Scanned& scanned : scanned_) {
      graphs[GraphOf(source_.slots()[scanned.slot])].push_back(&scanned);
    }
    const auto largest = std::max_element(
        graphs.begin(), graphs.end(),
        [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
    std::optional<Graph> shown;
    if (result_.first) shown = GraphOf(source_.slots()[result_.first->slot]);
    std::map<Graph, Presence> all;
    for (const auto& [graph, members] : graphs) {
      // Modules that are called eagerly beside captured graphs, as in a warm-up, need not be called
      // equally often.
      if (std::get<2>(graph) == 0 && std::get<2>(largest->first) != 0 && shown != graph) continue;
      Presence& one = all[graph] = PresenceIn(members, shown == graph);
      // Outside of graphs a place need not run in each call: only losses are missing, and are
      // counted.
      const bool is_eager = std::get<2>(graph) == 0 && has_serials_;
      if (is_eager && !one.absent.empty()) one = {.replay = one.replay};
      if (!shown && !one.absent.empty()) shown = graph;
      TellAbsent(graph, one);
    }
    const Graph& graph = shown ? *shown : largest->first;
    const Presence& one = all[graph];
    result_.replay_word = ReplayWord(source_.slots()[graphs.at(graph).front()->slot]);
    result_.replay = one.replay;
    result_.present = one.present;
    result_.expected = one.expected;
  }

  // In the replay of the first bad snapshot if the graph has it, else in the graph's last one.
  Presence PresenceIn(const std::vector<const Scanned*>& graph, bool has_first_bad) {
    Presence one;
    for (const Scanned* scanned : graph) {
      if (!scanned->keys.empty()) one.replay = std::max(one.replay, scanned->keys.back().replay);
    }
    if (has_first_bad && result_.first) {
      one.replay = result_.first->snapshot.key.replay;
    } else if (source_.Describe().is_growing && one.replay > 1) {
      --one.replay;  // if the job still runs, snapshots of its newest replay may be on their way
    }
    for (const Scanned* scanned : graph) {
      const Slot& slot = source_.slots()[scanned->slot];
      if (one.replay == 0 || (IsOfSeveralShapes(slot) && !slot.counts_calls())) continue;
      const bool is_there = KeyOf(*scanned, one.replay) != nullptr;
      // A conditional body need not run in that replay. What of it was lost lies in a gap.
      if (!is_there && (slot.in_body || !IsWanted(scanned->slot, one.replay))) continue;
      ++one.expected;
      if (is_there) {
        ++one.present;
      } else {
        one.absent.push_back(SlotText(slot));
      }
    }
    return one;
  }

  void TellAbsent(const Graph& graph, const Presence& one) {
    if (one.absent.empty()) return;
    result_.missing_count += one.absent.size();
    constexpr std::size_t kNamed = 3;
    std::string names;
    for (std::size_t i = 0; i < std::min(one.absent.size(), kNamed); ++i) {
      names += (i == 0 ? "" : ", ") + one.absent[i];
    }
    if (one.absent.size() > kNamed)
      names += fmt::format(" and {} more", one.absent.size() - kNamed);
    const int rank = std::get<1>(graph);
    result_.missing.push_back(fmt::format("{}replay {} has no snapshot of {}",
                                          rank < 0 ? "" : fmt::format("rank {}: ", rank),
                                          one.replay, names));
  }

  Source& source_;
  const CheckOptions& options_;
  Check result_;
  std::vector<Scanned> scanned_;                                           // in graph order
  std::map<std::size_t, std::size_t> place_of_;                            // by slot, in scanned_
  std::map<std::pair<std::size_t, FindingKind>, std::size_t> finding_of_;  // in result_.findings
  std::map<std::pair<Graph, std::string>, std::size_t> eager_slots_;       // how many of each name
  std::optional<std::map<std::size_t, std::vector<source::Gap>>> gaps_;    // by slot
  std::set<std::size_t> unread_;
  std::vector<SnapshotName> with_hash_;
  std::set<std::uint64_t> replays_;
  bool by_calls_ = false;
  bool has_serials_ = false;  // files of tensors have none, and count no losses either
  std::optional<source::Moment> first_moment_;
  std::optional<source::Moment> first_told_moment_;
  // For each replay of a graph, the first probe whose value changed.
  std::map<std::pair<Graph, std::uint64_t>, std::uint64_t> first_changed_;
  struct EagerChange {
    std::uint64_t serial = 0;
    std::size_t slot = 0;
  };
  std::map<Graph, std::vector<EagerChange>> eager_changes_;
};

}  // namespace

Result<Check> RunCheck(Source& source, const CheckOptions& options) {
  return Checker(source, options).Run();
}

}  // namespace cgdebug::analysis
