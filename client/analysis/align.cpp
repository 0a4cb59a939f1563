#include "client/analysis/align.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <tuple>

namespace cgdebug::analysis {
namespace {

using source::Key;
using source::Slot;
using source::Source;

// A slot's identity across two sources: the captures of two runs have different ids, so the n-th
// with that name stands against the n-th.
using Identity = std::tuple<int, std::string, std::uint32_t, std::size_t>;

std::vector<std::size_t> InOrder(const Source& source, const Scope& scope) {
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

bool HasOneRank(const Source& source, const std::vector<std::size_t>& slots) {
  return std::all_of(slots.begin(), slots.end(), [&](std::size_t slot) {
    return source.slots()[slot].rank == source.slots()[slots.front()].rank;
  });
}

class SlotIdentities {
 public:
  SlotIdentities(const AlignOptions& options, bool ignores_rank)
      : options_(options), ignores_rank_(ignores_rank) {
    for (const auto& [from, to] : options.names) targets_.insert(to);
  }

  Identity Of(const Slot& slot, bool is_a) {
    std::string name = slot.probe;
    std::uint32_t invocation = slot.invocation;
    if (is_a) {
      if (const auto renamed = options_.names.find(name); renamed != options_.names.end()) {
        name = renamed->second;
      } else if (targets_.contains(name)) {
        name.insert(0, 1, '\0');  // its namesake in B stands against another
      }
    }
    if (options_.by_order) {
      name.clear();
      invocation = 0;
    }
    const int rank = ignores_rank_ ? -1 : slot.rank;
    return {rank, name, invocation, seen_[is_a][{rank, name, invocation}]++};
  }

 private:
  const AlignOptions& options_;
  const bool ignores_rank_;
  std::set<std::string> targets_;  // names of B that the map gives away
  std::map<std::tuple<int, std::string, std::uint32_t>, std::size_t> seen_[2];
};

std::string RankText(const Slot& slot) {
  return slot.rank < 0 ? "" : fmt::format(" of rank {}", slot.rank);
}

class Aligner {
 public:
  Aligner(Source& a, Source& b, const AlignOptions& options) : a_(a), b_(b), options_(options) {}

  Result<Alignment> Run() {
    Result<void> done = PairSlots();
    for (std::size_t i = 0; done.ok() && i < result_.slots.size(); ++i) done = PairSnapshots(i);
    if (!done.ok()) return done.error();
    if (options_.by_step && result_.snapshots.empty() && !result_.slots.empty()) {
      return Error{
          "no two snapshots have the same step: was cgdebug.step(n) called in both runs? Leave "
          "--align step away to align by replay"};
    }
    std::stable_sort(result_.snapshots.begin(), result_.snapshots.end(),
                     [](const SnapshotPair& x, const SnapshotPair& y) {
                       return std::tie(x.position, x.nth, x.pair) <
                              std::tie(y.position, y.nth, y.pair);
                     });
    return std::move(result_);
  }

 private:
  Result<void> PairSlots() {
    const std::vector<std::size_t> in_a = InOrder(a_, options_.scope);
    const std::vector<std::size_t> in_b = InOrder(b_, MappedScope());
    SlotIdentities identities(
        options_, !in_a.empty() && !in_b.empty() && HasOneRank(a_, in_a) && HasOneRank(b_, in_b));
    std::map<Identity, std::size_t> of_b;
    for (const std::size_t slot : in_b) of_b[identities.Of(b_.slots()[slot], false)] = slot;
    for (const std::size_t slot : in_a) {
      const auto found = of_b.find(identities.Of(a_.slots()[slot], true));
      if (found == of_b.end()) {
        if (Result<void> told = TellUnmatched(a_, slot); !told.ok()) return told;
        continue;
      }
      result_.slots.push_back({slot, found->second});
      of_b.erase(found);
    }
    for (const auto& [identity, slot] : of_b) {
      if (Result<void> told = TellUnmatched(b_, slot); !told.ok()) return told;
    }
    return {};
  }

  // Of B: a glob selects by A's names, so what B calls otherwise is wanted under its own.
  Scope MappedScope() const {
    Scope scope = options_.scope;
    if (!options_.names.empty() || options_.by_order) scope.probes = Selector();
    return scope;
  }

  Result<void> TellUnmatched(Source& source, std::size_t slot) {
    const Result<std::vector<Key>> keys = WantedKeys(source, slot);
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

  Result<std::vector<Key>> WantedKeys(Source& source, std::size_t slot) {
    Result<std::vector<Key>> keys = source.Keys(slot);
    if (!keys.ok()) return keys;
    std::erase_if(*keys, [&](const Key& key) { return !options_.scope.Wants(key.replay); });
    return keys;
  }

  // Where a snapshot stands: of several in one step the n-th stands against the n-th.
  struct Position {
    std::uint64_t number = 0;  // replay, or step
    std::uint64_t nth = 0;
    Key key;
    auto place() const { return std::tie(number, nth); }
  };

  Result<std::vector<Position>> Positions(Source& source, std::size_t slot) {
    const Result<std::vector<Key>> keys = WantedKeys(source, slot);
    if (!keys.ok()) return keys.error();
    std::vector<Position> positions;
    std::map<std::uint64_t, std::uint64_t> counts;  // by step
    std::vector<std::uint64_t> without_step;
    for (const Key& key : *keys) {
      if (!options_.by_step) {
        positions.push_back({key.replay, 0, key});
        continue;
      }
      const Result<source::Snapshot> snapshot = source.Get(slot, key);
      if (!snapshot.ok() || snapshot->step < 0) {
        without_step.push_back(key.replay);
        continue;
      }
      const auto step = static_cast<std::uint64_t>(snapshot->step);
      positions.push_back({step, counts[step]++, key});
    }
    std::ranges::sort(positions, {}, &Position::place);
    TellWithoutStep(source, slot, without_step);
    return positions;
  }

  Result<void> PairSnapshots(std::size_t pair) {
    const auto [slot_a, slot_b] = result_.slots[pair];
    const auto in_a = Positions(a_, slot_a);
    if (!in_a.ok()) return in_a.error();
    const auto in_b = Positions(b_, slot_b);
    if (!in_b.ok()) return in_b.error();
    std::vector<std::uint64_t> only_a, only_b;
    auto x = in_a->begin();
    auto y = in_b->begin();
    while (x != in_a->end() || y != in_b->end()) {
      if (y == in_b->end() || (x != in_a->end() && x->place() < y->place())) {
        only_a.push_back((x++)->number);
      } else if (x == in_a->end() || y->place() < x->place()) {
        only_b.push_back((y++)->number);
      } else {
        result_.snapshots.push_back({x->number, x->nth, pair, x->key, y->key});
        ++x, ++y;
      }
    }
    TellOnly(a_, slot_a, only_a);
    TellOnly(b_, slot_b, only_b);
    return {};
  }

  void TellOnly(const Source& source, std::size_t slot, std::vector<std::uint64_t> only) {
    if (only.empty()) return;
    result_.unmatched_count += only.size();
    only.erase(std::unique(only.begin(), only.end()), only.end());
    const Slot& info = source.slots()[slot];
    result_.unmatched.push_back(fmt::format("{}{}: {} {} only in {}", source::SlotText(info),
                                            RankText(info), options_.by_step ? "step" : "replay",
                                            RangesText(only), source.Describe().path));
  }

  void TellWithoutStep(const Source& source, std::size_t slot,
                       const std::vector<std::uint64_t>& replays) {
    if (replays.empty()) return;
    result_.unmatched_count += replays.size();
    const Slot& info = source.slots()[slot];
    result_.unmatched.push_back(fmt::format("{}{}: no step is known of replay {} of {}",
                                            source::SlotText(info), RankText(info),
                                            RangesText(replays), source.Describe().path));
  }

  Source& a_;
  Source& b_;
  const AlignOptions& options_;
  Alignment result_;
};

}  // namespace

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
