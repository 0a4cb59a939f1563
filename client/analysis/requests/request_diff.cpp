#include "client/analysis/requests/request_diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "client/analysis/wording.h"

namespace cgdebug::analysis::requests {
namespace {

using source::Slot;
using source::Source;

constexpr const char* kLetGo = "it was let go before it was compared";

std::set<ProbeName> NamesIn(const Call& call) {
  std::set<ProbeName> names;
  for (const auto* all : {&call.probes, &call.sketches}) {
    for (const auto& [name, seen] : *all) names.insert(name);
  }
  return names;
}

// Whether both tensors have the same bits, as their statistics say.
bool AreSame(RowReader& a, const Seen* of_a, RowReader& b, const Seen* of_b) {
  if (of_a == nullptr || of_b == nullptr) return false;
  const Slot &slot_a = a.SlotOf(*of_a), &slot_b = b.SlotOf(*of_b);
  if (slot_a.dtype != slot_b.dtype || slot_a.shape != slot_b.shape) return false;
  const std::optional<numerics::Stats> x = a.StatsOf(*of_a), y = b.StatsOf(*of_b);
  return x && y && x->has_hash && y->has_hash && x->has_ordered_hash && y->has_ordered_hash &&
         x->hash == y->hash && x->ordered_hash == y->ordered_hash;
}

// A row in a tensor of A and one of B.
struct ComparedRow {
  std::size_t a = 0;
  std::size_t b = 0;
  RowError error;
};

// What comparing one probe in a call of A and one of B found.
struct ProbePair {
  std::pair<std::int64_t, std::uint64_t> place = {};  // in the call of A
  Spot a;
  Spot b;
  double rounding = 0;
  bool is_sketch = false;
  bool are_same = false;  // both tensors are equal bit for bit
  // Of each of SharedRows::rows. Nothing: the tensor has no such row.
  std::vector<std::optional<ComparedRow>> rows = {};
};

// The rows of one call of A and one of B that hold the same tokens.
struct SharedRows {
  struct Row {
    Token token;
    std::size_t a = 0;
    std::size_t b = 0;
  };
  const Call* call_a = nullptr;
  const Call* call_b = nullptr;
  std::vector<Row> rows;
  std::map<ProbeName, ProbePair> compared;
  std::vector<std::pair<std::string, std::string>> missing;  // reason, and where
};

// Where what a probe sees in the call has the token, which the call has in this row.
std::optional<std::size_t> RowOf(const Call& call, const ProbeName& probe, std::size_t row,
                                 const Token& token) {
  const Table& table = call.TableOf(probe);
  if (&table == &*call.rows) return row;
  const auto found = std::ranges::find(table, token);
  if (found == table.end()) return std::nullopt;
  return static_cast<std::size_t>(found - table.begin());
}

// Reasons why something was not compared, with how often and where first.
class Missing {
 public:
  void Add(const std::string& reason, const std::string& where) {
    auto [entry, is_new] = entries_.try_emplace(reason, Entry{0, where});
    if (is_new) order_.push_back(reason);
    ++entry->second.count;
  }
  std::vector<std::string> Sentences() const {
    std::vector<std::string> sentences;
    for (const std::string& reason : order_) {
      const Entry& entry = entries_.at(reason);
      sentences.push_back(entry.count == 1
                              ? fmt::format("{}: {}", entry.where, reason)
                              : fmt::format("{} and {}: {}", entry.where,
                                            Count(entry.count - 1, "more snapshot"), reason));
    }
    return sentences;
  }

 private:
  struct Entry {
    std::uint64_t count = 0;
    std::string where;
  };
  std::map<std::string, Entry> entries_;
  std::vector<std::string> order_;
};

// The sum of what was found.
class Tally {
  // A call of A, and the place in it.
  using Place = std::pair<std::uint64_t, std::pair<std::int64_t, std::uint64_t>>;

 public:
  void Add(const SharedRows& shared) {
    std::vector<const ProbePair*> in_order;
    for (const auto& [name, compared] : shared.compared) in_order.push_back(&compared);
    std::ranges::stable_sort(in_order, {}, &ProbePair::place);
    std::vector<RowSoFar> rows(shared.rows.size());
    for (const ProbePair* compared : in_order) AddProbe(shared, *compared, &rows);
    for (const auto& [reason, where] : shared.missing) missing.Add(reason, where);
  }

  RequestDiff diff;
  Missing missing;

 private:
  struct RowSoFar {
    double largest = 0;  // error
    bool has_grown = false;
  };

  void AddProbe(const SharedRows& shared, const ProbePair& compared,
                std::vector<RowSoFar>* so_far) {
    const Place place(shared.call_a->number, compared.place);
    const std::size_t index = IndexOf(compared.a);
    ProbeRows& probe = diff.probes[index];
    const double growth = compared.is_sketch ? kGrowthOfSketches : kGrowth;
    for (std::size_t i = 0; i < shared.rows.size(); ++i) {
      if (!compared.rows[i]) continue;
      const ComparedRow& row = *compared.rows[i];
      const RowError& error = row.error;
      RowSoFar& before = (*so_far)[i];
      const bool is_known_equal =
          error.is_equal && (!compared.is_sketch || (compared.are_same && row.a == row.b));
      const bool is_by_sketch = compared.is_sketch && !is_known_equal;
      const auto pair = [&] {
        return RowPair{.probe = index,
                       .token = shared.rows[i].token,
                       .a = compared.a,
                       .b = compared.b,
                       .row_a = row.a,
                       .row_b = row.b,
                       .error = error.relative,
                       .is_by_sketch = is_by_sketch};
      };
      ++probe.compared;
      ++diff.compared;
      probe.equal += is_known_equal;
      diff.equal += is_known_equal;
      diff.by_sketch += is_by_sketch;
      diff.alike += is_by_sketch && error.is_equal;
      probe.largest = std::max(probe.largest, error.relative);
      if (!error.is_equal && (!diff.unequal || place < first_unequal_)) {
        first_unequal_ = place;
        diff.unequal = pair();
      }
      const double least_growth = growth * std::max(before.largest, compared.rounding);
      diff.least_growth = std::max(diff.least_growth, least_growth);
      if (!before.has_grown && error.relative > least_growth) {
        before.has_grown = true;
        ++probe.grown;
        ++diff.grown;
        if (!diff.first || place < first_place_) {
          first_place_ = place;
          diff.first = pair();
          diff.before_first = before.largest;
        }
      }
      before.largest = std::max(before.largest, error.relative);
      if (!before.has_grown && (!diff.largest || error.relative > diff.largest->error)) {
        diff.largest = pair();
      }
    }
  }

  std::size_t IndexOf(const Spot& of_a) {
    const std::string full = source::SlotName(*of_a.slot);
    const std::string name = SketchedBy(full).value_or(full);
    const auto [found, is_new] = places_.try_emplace(name, diff.probes.size());
    if (is_new) diff.probes.push_back({.name = name});
    return found->second;
  }

  std::map<std::string, std::size_t> places_;  // in RequestDiff::probes
  Place first_place_;                          // of RequestDiff::first
  Place first_unequal_;                        // of RequestDiff::unequal
};

// A number of rows, and the first of them.
struct RowCount {
  std::uint64_t count = 0;
  std::optional<Token> first;

  void Add(const Token& token) {
    if (count++ == 0) first = token;
  }
};

// One of the two sources, over all looks.
struct Side {
  struct Place {
    const Call* call = nullptr;
    std::size_t row = 0;
  };

  std::string name;
  RequestRows rows = {};
  std::map<Token, std::vector<Place>> waiting = {};  // that the other has not computed
  RowCount given_up = {};                            // that it had not while they were kept
  std::vector<std::string> gaps = {};

  std::vector<std::string> OnlyHere() const {
    std::vector<std::string> missing;
    RowCount only;
    for (const auto& [token, places] : waiting) {
      for ([[maybe_unused]] const Place& place : places) only.Add(token);
    }
    if (only.count > 0) {
      missing.push_back(fmt::format("only {} has {}, the first {}", name, Count(only.count, "row"),
                                    TokenText(*only.first)));
    }
    if (given_up.count > 0) {
      missing.push_back(fmt::format("only {} had {} while they were kept, the first {}", name,
                                    Count(given_up.count, "row"), TokenText(*given_up.first)));
    }
    return missing;
  }

  // What was not paired while its call was there.
  void GiveUp() {
    for (auto& [token, places] : waiting) {
      const std::size_t before = places.size();
      std::erase_if(places, [](const Place& place) { return place.call->is_gone; });
      for (std::size_t gone = before - places.size(); gone > 0; --gone) given_up.Add(token);
    }
    std::erase_if(waiting, [](const auto& one) { return one.second.empty(); });
    rows.ForgetGone();
  }
};

class Comparison : public RequestComparison {
 public:
  explicit Comparison(Scope scope) : scope_(std::move(scope)) {}

  Result<void> Look(Source& a, Source& b, bool is_last) override {
    for (auto [side, other, source] : {std::tuple(&a_, &b_, &a), std::tuple(&b_, &a_, &b)}) {
      const Result<std::vector<Call*>> fresh = side->rows.Look(*source, scope_);
      if (!fresh.ok()) return fresh.error();
      if (side->rows.empty()) {
        return Error{fmt::format(
            "{} does not say which request a row belongs to. Call cgdebug.rows(requests, "
            "positions) before each call of the model; see cgdebug.rows in the manual",
            source->Describe().path)};
      }
      for (const Call* call : *fresh) PairTokens(*call, side, other);
      side->gaps = side->rows.Gaps(*source, scope_);
    }
    RowReader reader_a(a), reader_b(b);
    for (auto pair = pairs_.begin(); pair != pairs_.end();) {
      SharedRows& shared = pair->second;
      CompareCalls(reader_a, reader_b, &shared);
      const bool is_over = is_last || shared.call_a->is_gone || shared.call_b->is_gone;
      if (is_over) over_.Add(shared);
      pair = is_over ? pairs_.erase(pair) : std::next(pair);
    }
    for (Side* side : {&a_, &b_}) side->GiveUp();
    return {};
  }

  std::optional<std::int64_t> kept_ns() const override {
    const std::optional<std::int64_t> a = a_.rows.kept_ns(), b = b_.rows.kept_ns();
    return a && b ? std::min(a, b) : a ? a : b;
  }

  RequestDiff Answer() const override {
    Tally all = over_;
    for (const auto& [calls, shared] : pairs_) all.Add(shared);
    RequestDiff diff = std::move(all.diff);
    diff.requests = requests_.size();
    diff.tokens = tokens_;
    diff.missing = all.missing.Sentences();
    for (const Side* side : {&a_, &b_}) {
      for (std::string& sentence : side->OnlyHere()) diff.missing.push_back(std::move(sentence));
    }
    for (const Side* side : {&a_, &b_}) {
      if (const std::uint64_t calls = side->rows.CountCallsWithoutRows(); calls > 0) {
        diff.missing.push_back(
            fmt::format("{}: nobody told the rows of {}", side->name, Count(calls, "call")));
      }
      for (const std::string& gap : side->gaps) {
        diff.missing.push_back(fmt::format("{}: {}", side->name, gap));
      }
    }
    return diff;
  }

 private:
  // A token that was computed again is compared in the order in which it was.
  void PairTokens(const Call& call, Side* side, Side* other) {
    for (std::size_t row = 0; row < call.rows->size(); ++row) {
      const std::optional<Token>& token = (*call.rows)[row];
      if (!token) continue;
      const auto waiting = other->waiting.find(*token);
      if (waiting == other->waiting.end()) {
        side->waiting[*token].push_back({&call, row});
        continue;
      }
      Side::Place a{&call, row}, b = waiting->second.front();
      waiting->second.erase(waiting->second.begin());
      if (waiting->second.empty()) other->waiting.erase(waiting);
      if (side == &b_) std::swap(a, b);
      SharedRows& shared = pairs_[{a.call->number, b.call->number}];
      shared.call_a = a.call;
      shared.call_b = b.call;
      shared.rows.push_back({.token = *token, .a = a.row, .b = b.row});
      ++tokens_;
      requests_.insert(token->request);
    }
  }

  // Whether what a probe sees in the call of one side has any of the rows.
  static bool HasSome(const Call& call, const ProbeName& probe, const SharedRows& shared,
                      std::size_t SharedRows::Row::*in) {
    return std::ranges::any_of(shared.rows, [&](const SharedRows::Row& row) {
      return RowOf(call, probe, row.*in, row.token).has_value();
    });
  }

  // Compares what was not compared before.
  static void CompareCalls(RowReader& a, RowReader& b, SharedRows* shared) {
    const auto add_missing = [&](const std::string& reason, const std::string& where) {
      shared->missing.emplace_back(reason, where);
    };
    shared->missing.clear();
    const std::set<ProbeName> of_a = NamesIn(*shared->call_a), of_b = NamesIn(*shared->call_b);
    std::vector<std::pair<std::pair<std::int64_t, std::uint64_t>, const ProbeName*>> names;
    for (const ProbeName& name : of_a) {
      if (shared->compared.contains(name)) continue;
      const Kept left = KeptIn(*shared->call_a, name);
      if (left.any() == nullptr) {
        add_missing(kLetGo, "A: " + std::get<0>(name));
      } else {
        names.emplace_back(a.PlaceOf(*left.any()), &name);
      }
    }
    std::ranges::sort(names, [](const auto& x, const auto& y) {
      return std::tie(x.first, *x.second) < std::tie(y.first, *y.second);
    });
    for (const auto& [place, name] : names) {
      const Kept left = KeptIn(*shared->call_a, *name), right = KeptIn(*shared->call_b, *name);
      if (!of_b.contains(*name)) {
        if (!HasSome(*shared->call_a, *name, *shared, &SharedRows::Row::a)) continue;
        add_missing("B did not see it in the call of these rows", a.TextOf(*left.any()));
      } else if (right.any() == nullptr) {
        add_missing(kLetGo, "B: " + std::get<0>(*name));
      } else if (std::optional<ProbePair> compared =
                     CompareKept(*name, a, left, b, right, shared)) {
        compared->place = place;
        shared->compared.emplace(*name, *std::move(compared));
      }
    }
    for (const ProbeName& name : of_b) {
      if (of_a.contains(name)) continue;
      if (!HasSome(*shared->call_b, name, *shared, &SharedRows::Row::b)) continue;
      const Seen* const seen = KeptIn(*shared->call_b, name).any();
      add_missing("A did not see it in the call of these rows",
                  seen == nullptr ? "B: " + std::get<0>(name) : b.TextOf(*seen));
    }
  }

  // Nothing: it cannot be compared, and it is said.
  static std::optional<ProbePair> CompareKept(const ProbeName& name, RowReader& a, const Kept& left,
                                              RowReader& b, const Kept& right, SharedRows* shared) {
    const bool has_sketches = left.sketch != nullptr && right.sketch != nullptr;
    const bool by_sketch = has_sketches && !(a.HasValues(left.tensor) && b.HasValues(right.tensor));
    const Seen& seen_a = by_sketch ? *left.sketch : *left.any();
    const Seen& seen_b = by_sketch ? *right.sketch : *right.any();
    const auto missing = [&](const std::string& reason, const std::string& where) {
      shared->missing.emplace_back(reason, where);
      return std::nullopt;
    };
    constexpr const char* kNoSketch = "the sketch of this call is not kept any more, or not yet";
    if (!by_sketch && a.IsSketchGone(left)) return missing(kNoSketch, a.TextOf(seen_a));
    if (!by_sketch && b.IsSketchGone(right)) return missing(kNoSketch, b.TextOf(seen_b));
    const auto rows_of = [&](RowReader& side, const Seen& seen, const Call& call) {
      const std::size_t rows = call.TableOf(name).size();
      return by_sketch ? side.SketchesOf(seen, rows) : side.RowsOf(seen, rows);
    };
    const Result<Rows> of_a = rows_of(a, seen_a, *shared->call_a);
    if (!of_a.ok()) return missing(of_a.error().message, a.TextOf(seen_a));
    const Result<Rows> of_b = rows_of(b, seen_b, *shared->call_b);
    if (!of_b.ok()) return missing(of_b.error().message, b.TextOf(seen_b));
    if (of_a->Elements() != of_b->Elements() || of_a->is_sketch != of_b->is_sketch) {
      return missing("a row has another length in B", a.TextOf(seen_a));
    }
    ProbePair compared{.a = a.SpotOf(seen_a),
                       .b = b.SpotOf(seen_b),
                       .rounding = std::max(of_a->rounding, of_b->rounding),
                       .is_sketch = of_a->is_sketch};
    compared.are_same = of_a->is_sketch && AreSame(a, left.tensor, b, right.tensor);
    bool only_one_has_it = false;
    for (const SharedRows::Row& row : shared->rows) {
      const auto in_a = RowOf(*shared->call_a, name, row.a, row.token);
      const auto in_b = RowOf(*shared->call_b, name, row.b, row.token);
      std::optional<ComparedRow>& one = compared.rows.emplace_back();
      if (in_a && in_b) one = {*in_a, *in_b, CompareRows(*of_a, *in_a, *of_b, *in_b)};
      only_one_has_it |= in_a.has_value() != in_b.has_value();
    }
    if (only_one_has_it) missing("only one side has it of some row", a.TextOf(seen_a));
    return compared;
  }

  const Scope scope_;
  Side a_{.name = "A"};
  Side b_{.name = "B"};
  // Of the calls that both have, by their numbers.
  std::map<std::pair<std::uint64_t, std::uint64_t>, SharedRows> pairs_;
  Tally over_;  // of the others
  std::uint64_t tokens_ = 0;
  std::set<std::int64_t> requests_;
};

}  // namespace

std::unique_ptr<RequestComparison> MakeRequestComparison(const Scope& scope) {
  return std::make_unique<Comparison>(scope);
}

Result<RequestDiff> CompareRequests(Source& a, Source& b, const Scope& scope) {
  Comparison comparison(scope);
  const Result<void> looked = comparison.Look(a, b, /*is_last=*/true);
  if (!looked.ok()) return looked.error();
  return comparison.Answer();
}

}  // namespace cgdebug::analysis::requests
