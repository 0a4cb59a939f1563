#include "client/analysis/diff/align.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <sstream>
#include <tuple>

#include "client/analysis/diff/slot_pairs.h"

namespace cgdebug::analysis {
namespace {

using source::Key;
using source::Slot;
using source::Source;

std::string RankText(const Slot& slot) {
  return slot.rank < 0 ? "" : fmt::format(" of rank {}", slot.rank);
}

// Pairs the snapshots of the slots that are compared.
class Aligner {
 public:
  Aligner(Source& a, Source& b, const AlignOptions& options) : a_(a), b_(b), options_(options) {}

  Result<Alignment> Run() {
    const ComparedSlots slots = PairSlots(a_, b_, options_);
    Result<void> done = TellUnmatched(a_, slots.only_a);
    if (done.ok()) done = TellUnmatched(b_, slots.only_b);
    for (const ComparedPlace& place : slots.places) {
      if (done.ok()) done = PairSnapshots(place);
    }
    if (!done.ok()) return done.error();
    if (options_.by_step && result_.snapshots.empty() && !result_.slots.empty()) {
      return Error{
          "no two snapshots have the same step: was cgdebug.step(n) called in both runs? To "
          "align by replay, leave out --align step"};
    }
    SetSerials();
    std::stable_sort(result_.snapshots.begin(), result_.snapshots.end(),
                     [](const SnapshotPair& x, const SnapshotPair& y) {
                       return std::tie(x.position, x.serial, x.nth, x.pair) <
                              std::tie(y.position, y.serial, y.nth, y.pair);
                     });
    return std::move(result_);
  }

 private:
  // What runs after a body comes after all of its iterations, in whatever order the graph has them.
  void SetSerials() {
    const bool has_body = std::ranges::any_of(
        result_.slots, [&](const SlotPair& pair) { return a_.slots()[pair.a].in_body; });
    if (!has_body || options_.by_step) return;
    for (SnapshotPair& pair : result_.snapshots) {
      const Result<source::Snapshot> snapshot = a_.Get(result_.slots[pair.pair].a, pair.a);
      if (snapshot.ok()) pair.serial = snapshot->serial;
    }
  }

  Result<void> TellUnmatched(Source& source, const std::vector<std::size_t>& slots) {
    for (const std::size_t slot : slots) {
      if (Result<void> told = TellUnmatched(source, slot); !told.ok()) return told;
    }
    return {};
  }
  Result<void> TellUnmatched(Source& source, std::size_t slot) {
    const Result<std::vector<Key>> keys = WantedKeys(source, slot, options_.scope);
    if (!keys.ok()) return keys.error();
    const Slot& info = source.slots()[slot];
    // With a map or by order, what the globs leave out was never asked for.
    if (!options_.scope.probes.Matches(info.probe)) return {};
    result_.unmatched.push_back(fmt::format("{}{} is only in {} ({} snapshots)",
                                            source::SlotText(info), RankText(info),
                                            source.Describe().path, keys->size()));
    result_.unmatched_count += std::max<std::size_t>(keys->size(), 1);
    return {};
  }

  // The position of a snapshot. If a step has several, the n-th is compared with the n-th.
  struct Position {
    std::uint64_t number = 0;  // replay, or step
    std::uint64_t nth = 0;
    Key key;
    std::size_t slot = 0;
    auto place() const { return std::tie(number, nth); }
  };

  Result<std::vector<Position>> Positions(Source& source, std::size_t slot) {
    const Result<std::vector<Key>> keys = WantedKeys(source, slot, options_.scope);
    if (!keys.ok()) return keys.error();
    std::vector<Position> positions;
    std::map<std::uint64_t, std::uint64_t> counts;  // by step
    std::vector<std::uint64_t> without_step;
    for (const Key& key : *keys) {
      if (!options_.by_step) {
        positions.push_back({key.replay, key.iteration, key, slot});
        continue;
      }
      const Result<source::Snapshot> snapshot = source.Get(slot, key);
      if (!snapshot.ok() || snapshot->step < 0) {
        without_step.push_back(key.replay);
        continue;
      }
      const auto step = static_cast<std::uint64_t>(snapshot->step);
      positions.push_back({step, counts[step]++, key, slot});
    }
    TellWithoutStep(source, slot, without_step);
    return positions;
  }

  // Of all these slots, in order.
  Result<std::vector<Position>> Positions(Source& source, const std::vector<std::size_t>& slots) {
    std::vector<Position> all;
    for (const std::size_t slot : slots) {
      const Result<std::vector<Position>> positions = Positions(source, slot);
      if (!positions.ok()) return positions.error();
      all.insert(all.end(), positions->begin(), positions->end());
    }
    std::ranges::stable_sort(all, {}, &Position::place);
    if (slots.size() > 1) CountAcrossSlots(source, &all);
    return all;
  }

  // Each slot has counted what it has at a position: now they count together, in order of time.
  static void CountAcrossSlots(Source& source, std::vector<Position>* all) {
    for (auto begin = all->begin(); begin != all->end();) {
      const auto end = std::find_if(begin, all->end(), [&](const Position& position) {
        return position.number != begin->number;
      });
      if (std::any_of(begin, end, [&](const auto& one) { return one.slot != begin->slot; })) {
        std::map<std::pair<std::size_t, std::uint64_t>, std::uint64_t> serials;
        for (auto one = begin; one != end; ++one) {
          const Result<source::Snapshot> snapshot = source.Get(one->slot, one->key);
          if (snapshot.ok()) serials[{one->slot, one->key.id}] = snapshot->serial;
        }
        std::stable_sort(begin, end, [&](const Position& x, const Position& y) {
          return serials[{x.slot, x.key.id}] < serials[{y.slot, y.key.id}];
        });
        for (auto one = begin; one != end; ++one) one->nth = std::distance(begin, one);
      }
      begin = end;
    }
  }

  // Its place in result_.slots.
  std::size_t PairOf(std::size_t slot_a, std::size_t slot_b) {
    const auto [known, is_new] =
        pairs_.try_emplace(std::pair(slot_a, slot_b), result_.slots.size());
    if (is_new) result_.slots.push_back({slot_a, slot_b});
    return known->second;
  }

  Result<void> PairSnapshots(const ComparedPlace& place) {
    const auto in_a = Positions(a_, place.a);
    if (!in_a.ok()) return in_a.error();
    const auto in_b = Positions(b_, place.b);
    if (!in_b.ok()) return in_b.error();
    // What was compared is listed also without snapshots.
    if (place.a.size() == 1 && place.b.size() == 1) (void)PairOf(place.a[0], place.b[0]);
    std::map<std::size_t, std::vector<std::uint64_t>> only_a, only_b;  // by slot
    auto x = in_a->begin();
    auto y = in_b->begin();
    while (x != in_a->end() || y != in_b->end()) {
      if (y == in_b->end() || (x != in_a->end() && x->place() < y->place())) {
        only_a[x->slot].push_back(x->number);
        ++x;
      } else if (x == in_a->end() || y->place() < x->place()) {
        only_b[y->slot].push_back(y->number);
        ++y;
      } else {
        result_.snapshots.push_back({.position = x->number,
                                     .nth = x->nth,
                                     .pair = PairOf(x->slot, y->slot),
                                     .a = x->key,
                                     .b = y->key});
        ++x, ++y;
      }
    }
    for (auto& [slot, numbers] : only_a) TellOnly(a_, slot, std::move(numbers));
    for (auto& [slot, numbers] : only_b) TellOnly(b_, slot, std::move(numbers));
    return {};
  }

  void TellOnly(const Source& source, std::size_t slot, std::vector<std::uint64_t> only) {
    result_.unmatched_count += only.size();
    only.erase(std::unique(only.begin(), only.end()), only.end());
    const Slot& info = source.slots()[slot];
    result_.unmatched.push_back(fmt::format(
        "{}{}: {} {} only in {}", source::SlotText(info), RankText(info),
        options_.by_step ? "step" : ReplayWord(info), RangesText(only), source.Describe().path));
  }

  void TellWithoutStep(const Source& source, std::size_t slot,
                       const std::vector<std::uint64_t>& replays) {
    if (replays.empty()) return;
    result_.unmatched_count += replays.size();
    const Slot& info = source.slots()[slot];
    result_.unmatched.push_back(fmt::format("{}{}: the step of replay {} is not known in {}",
                                            source::SlotText(info), RankText(info),
                                            RangesText(replays), source.Describe().path));
  }

  Source& a_;
  Source& b_;
  const AlignOptions& options_;
  std::map<std::pair<std::size_t, std::size_t>, std::size_t> pairs_;  // in result_.slots
  Alignment result_;
};

}  // namespace

std::vector<std::size_t> WantedSlots(const Source& source, const Scope& scope) {
  const std::vector<Slot>& slots = source.slots();
  std::vector<std::size_t> wanted;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (scope.Wants(slots[i])) wanted.push_back(i);
  }
  std::stable_sort(wanted.begin(), wanted.end(), [&](std::size_t x, std::size_t y) {
    return std::tie(slots[x].order, slots[x].rank) < std::tie(slots[y].order, slots[y].rank);
  });
  return wanted;
}

Result<std::vector<Key>> WantedKeys(Source& source, std::size_t slot, const Scope& scope) {
  Result<std::vector<Key>> keys = source.Keys(slot);
  if (keys.ok()) std::erase_if(*keys, [&](const Key& key) { return !scope.Wants(key.replay); });
  return keys;
}

Result<Alignment> Align(Source& a, Source& b, const AlignOptions& options) {
  return Aligner(a, b, options).Run();
}

std::string RangesText(const std::vector<std::uint64_t>& numbers) {
  constexpr int kMaxRuns = 4;
  std::string text;
  int runs = 0;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    if (runs++ == kMaxRuns) return text + fmt::format(" and {} more", numbers.size() - i);
    if (!text.empty()) text += ", ";
    text +=
        last == i ? std::to_string(numbers[i]) : fmt::format("{}..{}", numbers[i], numbers[last]);
    i = last + 1;
  }
  return text;
}

std::string ByRankText(const std::map<int, bool>& bad, const char* is_bad, const char* is_not) {
  if (bad.size() < 2) return "";
  std::vector<std::uint64_t> ranks[2];
  for (const auto& [rank, is_one] : bad) {
    if (rank >= 0) ranks[is_one ? 1 : 0].push_back(static_cast<std::uint64_t>(rank));
  }
  std::string text;
  if (!ranks[1].empty()) text = fmt::format("{} {}", is_bad, RangesText(ranks[1]));
  if (!ranks[0].empty()) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", is_not, RangesText(ranks[0]));
  }
  return fmt::format("by rank: {}\n", text);
}

Result<std::map<std::string, std::string>> ParseNameMap(const std::string& text) {
  std::map<std::string, std::string> names;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string from, to, more;
    if (!(words >> from)) continue;
    if (!(words >> to) || words >> more) {
      return Error{fmt::format("line {} is not 'NAME_IN_A NAME_IN_B': {}", number, line)};
    }
    if (!names.emplace(from, to).second) {
      return Error{fmt::format("line {} names '{}' again", number, from)};
    }
  }
  return names;
}

}  // namespace cgdebug::analysis
