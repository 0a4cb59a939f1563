#include "client/analysis/gaps.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "client/analysis/ops/op_log.h"

namespace cgdebug::analysis {
namespace {

using source::Key;

// Why a range of replays leaves nothing to look at; empty if it leaves something, or if the source
// is empty anyway.
std::string EmptyRangeText(source::Source& source, const Scope& scope) {
  std::optional<std::uint64_t> first, last;
  for (std::size_t slot = 0; slot < source.slots().size(); ++slot) {
    if (!scope.Wants(source.slots()[slot])) continue;
    const Result<std::vector<Key>> keys = source.Keys(slot);
    if (!keys.ok()) return "";
    for (const Key& key : *keys) {
      if (scope.Wants(key.replay)) return "";
      first = std::min(first.value_or(key.replay), key.replay);
      last = std::max(last.value_or(key.replay), key.replay);
    }
  }
  if (!first) return "";
  const std::string end = scope.is_open_ended() ? "" : std::to_string(scope.last_replay);
  return fmt::format(
      "{} has no snapshot in replays {}..{}, it has some in {}..{}. Type for "
      "example: --replays {}..{}",
      source.Describe().path, scope.first_replay, end, *first, *last, *first, *last);
}

// Whether `scope` includes replays after the newest one that `source` has of a slot. Its job wanted
// replays 1, 1 + every, ... of it.
bool ReachesBeyond(source::Source& source, std::size_t slot, const Scope& scope) {
  if (scope.is_open_ended()) return true;
  const Result<std::uint64_t> newest = source.NewestReplay(slot);
  const std::uint64_t every = std::max(1u, source.slots()[slot].every);
  return !newest.ok() || *newest + every <= scope.last_replay;
}

// Whether it does so for a slot that may have, or get, later replays. Only files know where a slot
// ended.
bool ReachesOpenEnd(source::Source& source, const Scope& scope, const source::Description& about) {
  if (!about.is_cut_off && !about.is_growing) return false;
  if (scope.is_open_ended()) return true;
  return std::ranges::any_of(WantedSlots(source, scope), [&](std::size_t slot) {
    const Result<recording::Account> account = source.AccountOf(slot);
    const bool has_ended = about.is_cut_off && account.ok() && account->is_end_known;
    return !has_ended && ReachesBeyond(source, slot, scope);
  });
}

// What one slot lacks.
struct SlotGaps {
  std::size_t slot = 0;
  std::uint64_t count = 0;
  source::Gap first;
  std::set<std::string> causes;
};

// Requires: all are of one rank and have the same causes.
std::string LackText(const source::Source& source, const std::string& path,
                     std::span<const SlotGaps> slots) {
  const SlotGaps& one = slots.front();
  const source::Slot& info = source.slots()[one.slot];
  const auto [least, most] = std::ranges::minmax_element(slots, {}, &SlotGaps::count);
  std::set<std::string> probes;
  for (const SlotGaps& gaps : slots) probes.insert(source.slots()[gaps.slot].probe);
  std::string causes;
  for (const std::string& cause : one.causes) causes += (causes.empty() ? "" : ", ") + cause;
  const std::string where =
      one.first.before_replay > 0
          ? fmt::format("before {} {}", ReplayWord(info), one.first.before_replay)
          : fmt::format("after {} {}", ReplayWord(info), one.first.after_replay);
  const std::string rank = info.rank < 0 ? "" : fmt::format(" of rank {}", info.rank);
  const std::string count = least->count == most->count
                                ? std::to_string(one.count)
                                : fmt::format("{} to {}", least->count, most->count);
  const std::string snapshots =
      fmt::format("{} lacks {} snapshot{} of ", path, count, count == "1" ? "" : "s");
  if (slots.size() == 1) {
    return fmt::format("{}{}{}, the first {} ({})", snapshots, source::SlotText(info), rank, where,
                       causes);
  }
  return fmt::format("{}each of {} probe{}{}, the first of {} {} ({})", snapshots, probes.size(),
                     probes.size() == 1 ? "" : "s", rank, source::SlotText(info), where, causes);
}

// A sentence for each slot; one for all that lack snapshots for the same reasons if they are many.
// seen: see SummarizeGaps().
void AddGapsOfSlots(source::Source& source, const Scope& scope, const std::string& path,
                    std::map<std::size_t, std::uint64_t> seen, GapSummary* summary) {
  constexpr std::size_t kMostOneByOne = 3;
  std::map<std::size_t, SlotGaps> by_slot;
  for (source::Gap gap : source.Gaps()) {
    if (gap.cause == ToText(layout::LossCause::kNotKept)) {
      std::uint64_t& of_slot = seen[gap.slot];
      const std::uint64_t here = std::min(of_slot, gap.count);
      of_slot -= here;
      gap.count -= here;
      if (gap.count == 0) continue;
    }
    if (!scope.Wants(source.slots()[gap.slot]) || !scope.Wants(gap)) continue;
    SlotGaps& slot = by_slot[gap.slot];
    if (slot.count == 0) slot.first = gap;
    slot.slot = gap.slot;
    slot.count += gap.count;
    slot.causes.insert(gap.cause);
    summary->count += gap.count;
  }
  std::map<std::pair<int, std::set<std::string>>, std::vector<SlotGaps>> alike;
  for (const auto& [slot, gaps] : by_slot) {
    alike[{source.slots()[slot].rank, gaps.causes}].push_back(gaps);
  }
  for (const auto& [which, slots] : alike) {
    const std::size_t at_once = slots.size() > kMostOneByOne ? slots.size() : 1;
    for (std::size_t i = 0; i < slots.size(); i += at_once) {
      summary->sentences.push_back(LackText(source, path, std::span(slots).subspan(i, at_once)));
    }
  }
}

// Snapshots that the account of a slot counts as missing and that lie in no gap.
void AddAccounts(source::Source& source, const Scope& scope, const source::Description& about,
                 GapSummary* summary) {
  const bool is_everything = scope.has_all_replays();
  std::map<std::size_t, std::uint64_t> in_gaps;
  for (const source::Gap& gap : source.Gaps()) in_gaps[gap.slot] += gap.count;
  for (std::size_t slot = 0; slot < source.slots().size(); ++slot) {
    const source::Slot& info = source.slots()[slot];
    if (!scope.Wants(info)) continue;
    const Result<recording::Account> account = source.AccountOf(slot);
    if (!account.ok()) continue;  // reading its snapshots reports the error
    summary->account.Add(*account);
    const std::uint64_t missing = account->produced - account->not_wanted - account->kept -
                                  (about.is_growing ? account->unread : 0) +
                                  account->without_values;
    if (is_everything && missing > in_gaps[slot]) {
      const std::uint64_t untold = missing - in_gaps[slot];
      summary->sentences.push_back(fmt::format("{} lacks {} snapshot{} of {}: {}", about.path,
                                               untold, untold == 1 ? "" : "s",
                                               source::SlotText(info), ToText(*account)));
      summary->count += untold;
    } else if (!account->is_end_known && !about.is_growing && !about.is_cut_off &&
               ReachesBeyond(source, slot, scope)) {
      summary->sentences.push_back(
          fmt::format("{} does not know how many snapshots of {} came after its last one",
                      about.path, source::SlotText(info)));
      ++summary->count;
    }
  }
}

}  // namespace

bool RanIn(source::Source& source, const Scope& scope, std::size_t slot) {
  if (scope.has_all_replays()) return true;
  const Result<std::vector<Key>> keys = source.Keys(slot);
  return !keys.ok() ||
         std::ranges::any_of(*keys, [&](const Key& key) { return scope.Wants(key.replay); });
}

namespace {

// `lacks`: whether a gap row is of what is looked at, and no other sentence tells it.
GapSummary Summarize(source::Source& source, const Scope& scope,
                     const std::map<std::size_t, std::uint64_t>& seen,
                     const std::function<bool(std::size_t)>& lacks) {
  GapSummary summary;
  const source::Description about = source.Describe();
  AddGapsOfSlots(source, scope, about.path, seen, &summary);
  if (const std::string why = EmptyRangeText(source, scope); !why.empty()) {
    summary.sentences.push_back(why);
    ++summary.count;
  }
  for (const std::string& why : about.unread) {
    summary.sentences.push_back("not read: " + why);
    ++summary.count;
  }
  const auto wants = [&](const source::Slot& process) { return scope.WantsRank(process); };
  const auto looks_at = [&](const source::Slot& slot) { return scope.Wants(slot); };
  for (std::string& text : NotSeenTexts(source, wants, looks_at, lacks)) {
    summary.sentences.push_back(std::move(text));
    ++summary.count;
  }
  // A recording of one rank is one by choice; a folder of them is meant to have all.
  if (!scope.wants_rank && source.Recordings().size() > 1) {
    for (const source::AbsentRanks& run : AbsentRanksOf(source)) {
      summary.sentences.push_back(
          fmt::format("{}ranks {} of {} are not in here", run.run.empty() ? "" : run.run + ": ",
                      RangesText({run.absent.begin(), run.absent.end()}), run.world_size));
      summary.count += run.absent.size();
    }
  }
  for (const std::string& damage : about.damage) {
    summary.sentences.push_back("damaged: " + damage);
    ++summary.count;
  }
  const bool lacks_end = ReachesOpenEnd(source, scope, about);
  if (lacks_end && about.is_cut_off) {
    summary.sentences.push_back(fmt::format("{} ends early ({}): what came after is not in it",
                                            about.path,
                                            about.ending.empty() ? "cut off" : about.ending));
    ++summary.count;
  }
  if (lacks_end && about.is_growing) {
    summary.goes_on =
        about.kind == "live"
            ? fmt::format("{} goes on: what comes is not in it", about.path)
            : fmt::format("{} is still being written: what comes is not in it", about.path);
  }
  AddAccounts(source, scope, about, &summary);
  return summary;
}

}  // namespace

GapSummary SummarizeGaps(source::Source& source, const Scope& scope,
                         const std::map<std::size_t, std::uint64_t>& seen) {
  return Summarize(source, scope, seen, [&](std::size_t gap) {
    return !source.slots()[gap].counts_calls() || RanIn(source, scope, gap);
  });
}

GapSummary SummarizeOtherGaps(source::Source& source, const Scope& scope) {
  return Summarize(source, scope, {}, [](std::size_t) { return false; });
}

void AddUnreadable(source::Source& source, const Scope& scope, GapSummary* summary) {
  for (std::size_t slot = 0; slot < source.slots().size(); ++slot) {
    if (!scope.Wants(source.slots()[slot])) continue;
    const Result<std::vector<Key>> keys = source.Keys(slot);
    std::uint64_t unreadable = 0;
    std::string why = keys.ok() ? "" : keys.error().message;
    for (const Key& key : keys.ok() ? *keys : std::vector<Key>()) {
      if (!scope.Wants(key.replay)) continue;
      const Result<source::Snapshot> snapshot = source.Get(slot, key);
      if (snapshot.ok()) continue;
      if (unreadable++ == 0) why = snapshot.error().message;
    }
    if (why.empty()) continue;
    summary->sentences.push_back(
        unreadable > 1 ? fmt::format("{}, and {} more like it", why, unreadable - 1) : why);
    summary->count += std::max<std::uint64_t>(unreadable, 1);
    summary->account.kept -= std::min(summary->account.kept, unreadable);
    summary->account.lost[std::string(ToText(layout::LossCause::kDamaged))] += unreadable;
  }
}

std::vector<std::string> WhyNotComplete(source::Source& source) {
  const auto all = [](const source::Slot&) { return true; };
  const std::vector<std::string> of_ops = OpGapsOf(source, all, all);
  GapSummary gaps =
      of_ops.empty() ? SummarizeGaps(source, Scope()) : SummarizeOtherGaps(source, Scope());
  AddUnreadable(source, Scope(), &gaps);
  for (const std::string& gap : of_ops) gaps.sentences.push_back("not logged: " + gap);
  if (!gaps.goes_on.empty()) gaps.sentences.push_back(gaps.goes_on);
  return gaps.sentences;
}

}  // namespace cgdebug::analysis
