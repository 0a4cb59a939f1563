#include "client/analysis/diff/slot_pairs.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

namespace cgdebug::analysis {
namespace {

using source::Slot;
using source::Source;

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
  const Source& source;
  std::vector<std::size_t> slots;  // in graph order
  std::map<std::size_t, Call> calls = {};
  std::map<Call, std::vector<std::size_t>> of_call = {};
  std::vector<CapturedGraph> graphs = {};
  std::set<std::size_t> paired = {};

  const Slot& SlotOf(std::size_t slot) const { return source.slots()[slot]; }

  std::vector<std::size_t> Unpaired() const {
    std::vector<std::size_t> left;
    for (const std::size_t slot : slots) {
      if (!paired.contains(slot)) left.push_back(slot);
    }
    return left;
  }

  // Fills in what the slots are: of which call, and of which graph.
  void Describe(const CallNames& names, bool is_a) {
    using Capture = std::tuple<std::string, int, std::uint64_t>;
    std::map<Capture, std::size_t> places;
    for (const std::size_t slot : slots) {
      const Slot& info = SlotOf(slot);
      const Call& call = calls[slot] = names.Of(info, is_a);
      of_call[call].push_back(slot);
      if (info.graph_id == 0) continue;
      const auto [place, is_new] =
          places.try_emplace(Capture{info.session, info.rank, info.graph_id}, graphs.size());
      if (is_new) graphs.emplace_back().first = &info;
      CapturedGraph& graph = graphs[place->second];
      graph.slots.push_back(slot);
      graph.signature.emplace_back(call, info.shape);
    }
  }
};

bool ShareACall(const CapturedGraph& a, const CapturedGraph& b) {
  return std::any_of(a.signature.begin(), a.signature.end(), [&](const auto& x) {
    return std::any_of(b.signature.begin(), b.signature.end(),
                       [&](const auto& y) { return x.first == y.first; });
  });
}

bool HasOneRank(const Side& side) {
  return std::ranges::all_of(side.slots, [&](std::size_t slot) {
    return side.SlotOf(slot).rank == side.SlotOf(side.slots.front()).rank;
  });
}

// For B: a glob selects by A's names, so a probe that B names differently is wanted under B's name.
Scope MappedScope(const AlignOptions& options) {
  Scope scope = options.scope;
  if (!options.names.empty() || options.by_order) scope.probes = Selector();
  return scope;
}

class SlotPairing {
 public:
  // Lifetime: all outlive it.
  SlotPairing(const Source& a, const Source& b, const AlignOptions& options)
      : options_(options),
        a_{.source = a, .slots = WantedSlots(a, options.scope)},
        b_{.source = b, .slots = WantedSlots(b, MappedScope(options))},
        names_(options,
               !a_.slots.empty() && !b_.slots.empty() && HasOneRank(a_) && HasOneRank(b_)) {
    a_.Describe(names_, /*is_a=*/true);
    b_.Describe(names_, /*is_a=*/false);
  }

  ComparedSlots Run() {
    if (options_.by_order) {
      PairByOrder();
    } else {
      PairGraphs();
      PairNumberedCalls();
      PairCalls();
    }
    std::map<std::size_t, std::size_t> order;
    for (std::size_t i = 0; i < a_.slots.size(); ++i) order[a_.slots[i]] = i;
    std::ranges::sort(places_, {},
                      [&](const ComparedPlace& place) { return order[place.a.front()]; });
    return {std::move(places_), a_.Unpaired(), b_.Unpaired()};
  }

 private:
  void Pair(std::size_t slot_a, std::size_t slot_b) {
    places_.push_back({{slot_a}, {slot_b}});
    a_.paired.insert(slot_a);
    b_.paired.insert(slot_b);
  }

  void PairByOrder() {
    std::map<int, std::vector<std::size_t>> of_b;  // by rank
    for (const std::size_t slot : b_.slots) of_b[names_.RankOf(b_.SlotOf(slot))].push_back(slot);
    std::map<int, std::size_t> next;
    for (const std::size_t slot : a_.slots) {
      const int rank = names_.RankOf(a_.SlotOf(slot));
      const std::size_t nth = next[rank]++;
      if (nth < of_b[rank].size()) Pair(slot, of_b[rank][nth]);
    }
  }

  // The numbers of captures mean nothing in another process, and neither does their order. Pairs
  // graphs that the user labelled by their label, and the others by their probes and shapes, or
  // else by the label that is made of these.
  void PairGraphs() {
    const auto pair_where = [&](const auto& is_same) {
      for (CapturedGraph& x : a_.graphs) {
        if (x.is_paired) continue;
        const auto y = std::ranges::find_if(b_.graphs, [&](const CapturedGraph& other) {
          return !other.is_paired && is_same(x, other) && ShareACall(x, other);
        });
        if (y == b_.graphs.end()) continue;
        x.is_paired = y->is_paired = true;
        PairSlotsOf(x, *y);
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

  void PairSlotsOf(const CapturedGraph& x, const CapturedGraph& y) {
    for (const std::size_t slot : x.slots) {
      const auto other = std::ranges::find_if(y.slots, [&](std::size_t one) {
        return !b_.paired.contains(one) && b_.calls[one] == a_.calls[slot];
      });
      if (other != y.slots.end()) Pair(slot, *other);
    }
  }

  // Call n is compared with call n, whatever shape the place has in it. Each process counts its
  // own.
  void PairNumberedCalls() {
    for (const auto& [call, unused] : a_.of_call) {
      const auto of_a = NumberedBySession(a_, call), of_b = NumberedBySession(b_, call);
      for (std::size_t i = 0; i < std::min(of_a.size(), of_b.size()); ++i) {
        places_.push_back({of_a[i], of_b[i]});
        a_.paired.insert(of_a[i].begin(), of_a[i].end());
        b_.paired.insert(of_b[i].begin(), of_b[i].end());
      }
    }
  }

  static std::vector<std::vector<std::size_t>> NumberedBySession(const Side& side,
                                                                 const Call& call) {
    std::vector<std::vector<std::size_t>> sessions;
    std::map<std::string, std::size_t> places;
    const auto found = side.of_call.find(call);
    if (found == side.of_call.end()) return sessions;
    for (const std::size_t slot : found->second) {
      const Slot& info = side.SlotOf(slot);
      if (!info.counts_calls() || side.paired.contains(slot)) continue;
      const auto [place, is_new] = places.try_emplace(info.session, sessions.size());
      if (is_new) sessions.emplace_back();
      sessions[place->second].push_back(slot);
    }
    return sessions;
  }

  // Pairs what lies outside the paired graphs: eager calls by name and shape, and then a call that
  // each side has exactly once, whatever its shape and graph.
  void PairCalls() {
    const auto pair_where = [&](const auto& is_same) {
      for (const std::size_t slot : a_.slots) {
        if (a_.paired.contains(slot)) continue;
        const std::vector<std::size_t>& others = b_.of_call[a_.calls[slot]];
        const auto other = std::ranges::find_if(others, [&](std::size_t one) {
          return !b_.paired.contains(one) &&
                 is_same(a_.SlotOf(slot), b_.SlotOf(one), a_.calls[slot]);
        });
        if (other != others.end()) Pair(slot, *other);
      }
    };
    pair_where([](const Slot& x, const Slot& y, const Call&) {
      return (x.graph_id == 0 || y.graph_id == 0) && x.shape == y.shape;
    });
    pair_where([&](const Slot&, const Slot&, const Call& call) {
      return a_.of_call[call].size() == 1 && b_.of_call[call].size() == 1;
    });
  }

  const AlignOptions& options_;
  Side a_;
  Side b_;
  const CallNames names_;
  std::vector<ComparedPlace> places_;
};

}  // namespace

ComparedSlots PairSlots(const Source& a, const Source& b, const AlignOptions& options) {
  return SlotPairing(a, b, options).Run();
}

}  // namespace cgdebug::analysis
