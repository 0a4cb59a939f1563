#include "client/analysis/diff/align.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <sstream>
#include <tuple>

namespace cgdebug::analysis {
namespace {

using source::Key;
using source::Slot;
using source::Source;

bool HasOneRank(const Source& source, const std::vector<std::size_t>& slots) {
  return std::all_of(slots.begin(), slots.end(), [&](std::size_t slot) {
    return source.slots()[slot].rank == source.slots()[slots.front()].rank;
  });
}

// A call of a probe, whatever graph it lies in: rank, name and number.
using Call = std::tuple<int, std::string, std::uint32_t>;

// Gives the calls of two sources names, so that calls with equal names are compared.
class CallNames {
 public:
  CallNames(const AlignOptions& options, bool ignores_rank)
      : options_(options), ignores_rank_(ignores_rank) {
    for (const auto& [from, to] : options.names) targets_.insert(to);
  }

  Call Of(const Slot& slot, bool is_a) const {
    std::string name = slot.probe;
    if (is_a) {
      if (const auto renamed = options_.names.find(name); renamed != options_.names.end()) {
        name = renamed->second;
      } else if (targets_.contains(name)) {
        name.insert(0, 1, '\0');  // the map gives B's probe of this name to another
      }
    }
    return {RankOf(slot), name, slot.invocation};
  }
  int RankOf(const Slot& slot) const { return ignores_rank_ ? -1 : slot.rank; }

 private:
  const AlignOptions& options_;
  const bool ignores_rank_;
  std::set<std::string> targets_;  // names of B that the map gives away
};

// The slots of one captured graph.
struct CapturedGraph {
  const Slot* first = nullptr;
  std::vector<std::size_t> slots;  // in graph order
  std::vector<std::pair<Call, std::vector<std::uint64_t>>> signature;
  bool is_paired = false;
};

// The slots of one source to look at, and which of them are paired already.
struct Side {
  std::vector<std::size_t> slots;  // in graph order
  std::map<std::size_t, Call> calls;
  std::map<Call, std::vector<std::size_t>> of_call;
  std::vector<CapturedGraph> graphs;
  std::set<std::size_t> paired;
};

bool ShareACall(const CapturedGraph& a, const CapturedGraph& b) {
  return std::any_of(a.signature.begin(), a.signature.end(), [&](const auto& x) {
    return std::any_of(b.signature.begin(), b.signature.end(),
                       [&](const auto& y) { return x.first == y.first; });
  });
}

std::string RankText(const Slot& slot) {
  return slot.rank < 0 ? "" : fmt::format(" of rank {}", slot.rank);
}

// Slots of A and B that are compared: one of each, or, of a place that is called eagerly, all of
// them, one for each shape.
struct Place {
  std::vector<std::size_t> a;
  std::vector<std::size_t> b;
};

class Aligner {
 public:
  Aligner(Source& a, Source& b, const AlignOptions& options) : a_(a), b_(b), options_(options) {}

  Result<Alignment> Run() {
    Result<void> done = PairSlots();
    for (std::size_t i = 0; done.ok() && i < places_.size(); ++i) done = PairSnapshots(places_[i]);
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

  Result<void> PairSlots() {
    Side a, b;
    a.slots = WantedSlots(a_, options_.scope);
    b.slots = WantedSlots(b_, MappedScope());
    const CallNames names(options_, !a.slots.empty() && !b.slots.empty() &&
                                        HasOneRank(a_, a.slots) && HasOneRank(b_, b.slots));
    Describe(a_, names, /*is_a=*/true, &a);
    Describe(b_, names, /*is_a=*/false, &b);
    if (options_.by_order) {
      PairByOrder(names, &a, &b);
    } else {
      PairGraphs(&a, &b);
      PairNumberedCalls(&a, &b);
      PairCalls(&a, &b);
    }
    std::map<std::size_t, std::size_t> order;
    for (std::size_t i = 0; i < a.slots.size(); ++i) order[a.slots[i]] = i;
    std::ranges::sort(places_, {}, [&](const Place& place) { return order[place.a.front()]; });
    for (const auto& [source, side] : {std::pair(&a_, &a), std::pair(&b_, &b)}) {
      for (const std::size_t slot : side->slots) {
        if (side->paired.contains(slot)) continue;
        if (Result<void> told = TellUnmatched(*source, slot); !told.ok()) return told;
      }
    }
    return {};
  }

  static void Describe(const Source& source, const CallNames& names, bool is_a, Side* side) {
    using Capture = std::tuple<std::string, int, std::uint64_t>;
    std::map<Capture, std::size_t> places;
    for (const std::size_t slot : side->slots) {
      const Slot& info = source.slots()[slot];
      const Call& call = side->calls[slot] = names.Of(info, is_a);
      side->of_call[call].push_back(slot);
      if (info.graph_id == 0) continue;
      const auto [place, is_new] =
          places.try_emplace(Capture{info.session, info.rank, info.graph_id}, side->graphs.size());
      if (is_new) side->graphs.emplace_back().first = &info;
      CapturedGraph& graph = side->graphs[place->second];
      graph.slots.push_back(slot);
      graph.signature.emplace_back(call, info.shape);
    }
  }

  void Pair(std::size_t slot_a, std::size_t slot_b, Side* a, Side* b) {
    places_.push_back({{slot_a}, {slot_b}});
    a->paired.insert(slot_a);
    b->paired.insert(slot_b);
  }

  void PairByOrder(const CallNames& names, Side* a, Side* b) {
    std::map<int, std::vector<std::size_t>> of_b;  // by rank
    for (const std::size_t slot : b->slots) of_b[names.RankOf(b_.slots()[slot])].push_back(slot);
    std::map<int, std::size_t> next;
    for (const std::size_t slot : a->slots) {
      const int rank = names.RankOf(a_.slots()[slot]);
      const std::size_t nth = next[rank]++;
      if (nth < of_b[rank].size()) Pair(slot, of_b[rank][nth], a, b);
    }
  }

  // The numbers of captures mean nothing in another process, and neither does their order. Pairs
  // graphs that the user labelled by their label, and the others by their probes and shapes, or
  // else by the label that is made of these.
  void PairGraphs(Side* a, Side* b) {
    const auto pair_where = [&](const auto& is_same) {
      for (CapturedGraph& x : a->graphs) {
        if (x.is_paired) continue;
        const auto y = std::ranges::find_if(b->graphs, [&](const CapturedGraph& other) {
          return !other.is_paired && is_same(x, other) && ShareACall(x, other);
        });
        if (y == b->graphs.end()) continue;
        x.is_paired = y->is_paired = true;
        PairSlotsOf(x, *y, a, b);
      }
    };
    const auto are_given = [](const CapturedGraph& x, const CapturedGraph& y) {
      return x.first->graph_is_given && y.first->graph_is_given;
    };
    pair_where([&](const CapturedGraph& x, const CapturedGraph& y) {
      return are_given(x, y) && x.first->graph == y.first->graph;
    });
    pair_where([&](const CapturedGraph& x, const CapturedGraph& y) {
      return !are_given(x, y) && x.signature == y.signature;
    });
    pair_where([&](const CapturedGraph& x, const CapturedGraph& y) {
      return !are_given(x, y) && !x.first->graph.empty() && x.first->graph == y.first->graph;
    });
  }

  void PairSlotsOf(const CapturedGraph& x, const CapturedGraph& y, Side* a, Side* b) {
    for (const std::size_t slot : x.slots) {
      const auto other = std::ranges::find_if(y.slots, [&](std::size_t one) {
        return !b->paired.contains(one) && b->calls[one] == a->calls[slot];
      });
      if (other != y.slots.end()) Pair(slot, *other, a, b);
    }
  }

  // Call n is compared with call n, whatever shape the place has in it. Each process counts its
  // own.
  void PairNumberedCalls(Side* a, Side* b) {
    const auto by_session = [](const Source& source, const Side& side, const Call& call) {
      std::vector<std::vector<std::size_t>> sessions;
      std::map<std::string, std::size_t> places;
      const auto found = side.of_call.find(call);
      if (found == side.of_call.end()) return sessions;
      for (const std::size_t slot : found->second) {
        const Slot& info = source.slots()[slot];
        if (!info.counts_calls() || side.paired.contains(slot)) continue;
        const auto [place, is_new] = places.try_emplace(info.session, sessions.size());
        if (is_new) sessions.emplace_back();
        sessions[place->second].push_back(slot);
      }
      return sessions;
    };
    for (const auto& [call, unused] : a->of_call) {
      const auto of_a = by_session(a_, *a, call), of_b = by_session(b_, *b, call);
      for (std::size_t i = 0; i < std::min(of_a.size(), of_b.size()); ++i) {
        places_.push_back({of_a[i], of_b[i]});
        a->paired.insert(of_a[i].begin(), of_a[i].end());
        b->paired.insert(of_b[i].begin(), of_b[i].end());
      }
    }
  }

  // Pairs what lies outside the paired graphs: eager calls by name and shape, and then a call that
  // each side has exactly once, whatever its shape and graph.
  void PairCalls(Side* a, Side* b) {
    const auto pair_where = [&](const auto& is_same) {
      for (const std::size_t slot : a->slots) {
        if (a->paired.contains(slot)) continue;
        const std::vector<std::size_t>& others = b->of_call[a->calls[slot]];
        const auto other = std::ranges::find_if(others, [&](std::size_t one) {
          return !b->paired.contains(one) &&
                 is_same(a_.slots()[slot], b_.slots()[one], a->calls[slot]);
        });
        if (other != others.end()) Pair(slot, *other, a, b);
      }
    };
    pair_where([](const Slot& x, const Slot& y, const Call&) {
      return (x.graph_id == 0 || y.graph_id == 0) && x.shape == y.shape;
    });
    pair_where([&](const Slot&, const Slot&, const Call& call) {
      return a->of_call[call].size() == 1 && b->of_call[call].size() == 1;
    });
  }

  // For B: a glob selects by A's names, so a probe that B names differently is wanted under B's
  // name.
  Scope MappedScope() const {
    Scope scope = options_.scope;
    if (!options_.names.empty() || options_.by_order) scope.probes = Selector();
    return scope;
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

  Result<void> PairSnapshots(const Place& place) {
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
  std::vector<Place> places_;
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
