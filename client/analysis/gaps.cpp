#include "client/analysis/gaps.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

namespace cgdebug::analysis {
namespace {

using source::Key;

// Why a range of replays leaves nothing to look at; empty when it leaves something, or the source
// has nothing anyway.
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

}  // namespace

GapSummary SummarizeGaps(source::Source& source, const Scope& scope) {
  struct OfSlot {
    std::uint64_t count = 0;
    source::Gap first;
    std::set<std::string> causes;
  };
  GapSummary summary;
  std::map<std::size_t, OfSlot> by_slot;
  for (const source::Gap& gap : source.Gaps()) {
    if (!scope.Wants(source.slots()[gap.slot]) || !scope.Wants(gap)) continue;
    OfSlot& slot = by_slot[gap.slot];
    if (slot.count == 0) slot.first = gap;
    slot.count += gap.count;
    slot.causes.insert(gap.cause);
  }
  const source::Description about = source.Describe();
  for (const auto& [slot, gaps] : by_slot) {
    const source::Slot& info = source.slots()[slot];
    std::string causes;
    for (const std::string& cause : gaps.causes) causes += (causes.empty() ? "" : ", ") + cause;
    const std::string where = gaps.first.before_replay > 0
                                  ? fmt::format("before replay {}", gaps.first.before_replay)
                                  : fmt::format("after replay {}", gaps.first.after_replay);
    summary.sentences.push_back(
        fmt::format("{} lacks {} snapshot{} of {}{}, the first {} ({})", about.path, gaps.count,
                    gaps.count == 1 ? "" : "s", source::SlotText(info),
                    info.rank < 0 ? "" : fmt::format(" of rank {}", info.rank), where, causes));
    summary.count += gaps.count;
  }
  if (const std::string why = EmptyRangeText(source, scope); !why.empty()) {
    summary.sentences.push_back(why);
    ++summary.count;
  }
  for (const std::string& why : about.unread) {
    summary.sentences.push_back("not read: " + why);
    ++summary.count;
  }
  for (const std::string& damage : about.damage) {
    summary.sentences.push_back("damaged: " + damage);
    ++summary.count;
  }
  if (scope.is_open_ended() && (about.is_cut_off || about.is_growing)) {
    summary.sentences.push_back(fmt::format(
        "{} {}", about.path,
        about.is_growing ? "is still being written: what comes is not in it"
                         : fmt::format("ends early ({}): what came after is not in it",
                                       about.ending.empty() ? "cut off" : about.ending)));
    ++summary.count;
  }
  return summary;
}

}  // namespace cgdebug::analysis
