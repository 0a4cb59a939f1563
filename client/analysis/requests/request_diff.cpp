#include "client/analysis/requests/request_diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <span>

#include "client/analysis/gaps.h"
#include "client/analysis/wording.h"
#include "daemon/core/numerics/kernels/decode.h"

namespace cgdebug::analysis::requests {
namespace {

using source::Slot;
using source::Source;

// Half the distance of 1 to its neighbour, which is what rounding an element once changes at most.
// Types whose sums are added up in the type itself get as much again for these. Numbers that are
// not rounded have none.
double RoundingOf(layout::Dtype dtype) {
  using layout::Dtype;
  switch (dtype) {
    case Dtype::kFloat64:
      return 0x1p-49;
    case Dtype::kFloat32:
      return 0x1p-20;
    case Dtype::kFloat16:
      return 0x1p-11;
    case Dtype::kBfloat16:
      return 0x1p-8;
    case Dtype::kFloat8E4m3fn:
    case Dtype::kFloat8E4m3fnuz:
      return 0x1p-4;
    case Dtype::kFloat8E5m2:
    case Dtype::kFloat8E5m2fnuz:
      return 0x1p-3;
    default:
      return 0;
  }
}

// How many elements one row has, if the first dimensions of the tensor are the rows.
std::optional<std::uint64_t> ElementsOfARow(std::span<const std::uint64_t> shape,
                                            std::uint64_t rows) {
  std::uint64_t count = 1;
  for (std::size_t i = 0; i <= shape.size(); ++i) {
    if (count == rows) return numerics::ElementCount(shape.subspan(i));
    if (i == shape.size() || __builtin_mul_overflow(count, shape[i], &count)) break;
  }
  return std::nullopt;
}

// The values of one snapshot, or sketches, by rows.
struct Rows {
  layout::Dtype dtype = layout::Dtype::kInvalid;  // of the bytes
  source::Values values;
  std::uint64_t bytes_of_row = 0;
  double rounding = 0;  // of the tensor itself
  bool is_sketch = false;

  std::span<const std::byte> Row(std::size_t row) const {
    return values.bytes.subspan(row * bytes_of_row, bytes_of_row);
  }
  std::uint64_t Elements() const { return bytes_of_row / layout::DtypeBytes(dtype); }
};

struct RowError {
  bool is_equal = false;  // bit for bit, as far as these rows show
  double relative = 0;
};

// The difference of two sketches is the sketch of the difference, and as long as that, on average.

RowError Compare(const Rows& a, std::size_t row_a, const Rows& b, std::size_t row_b) {
  const std::span<const std::byte> left = a.Row(row_a), right = b.Row(row_b);
  if (a.dtype == b.dtype && std::ranges::equal(left, right)) return {.is_equal = true};
  double apart = 0, norm_a = 0, norm_b = 0;
  bool only_one_is_finite = false;
  numerics::VisitDtype(a.dtype, [&](auto element_a) {
    using A = typename decltype(element_a)::type;
    numerics::VisitDtype(b.dtype, [&](auto element_b) {
      using B = typename decltype(element_b)::type;
      for (std::size_t i = 0; i < left.size() / sizeof(A); ++i) {
        const double x = numerics::ToDouble(numerics::LoadElement<A>(left, i));
        const double y = numerics::ToDouble(numerics::LoadElement<B>(right, i));
        if (std::isfinite(x) && std::isfinite(y)) {
          apart += (x - y) * (x - y);
          norm_a += x * x;
          norm_b += y * y;
        } else if (x != y && !(std::isnan(x) && std::isnan(y))) {
          only_one_is_finite = true;
        }
      }
    });
  });
  if (only_one_is_finite) return {.relative = std::numeric_limits<double>::infinity()};
  const double norm = std::max(norm_a, norm_b);
  return {.relative = norm == 0 ? 0 : std::sqrt(apart / norm)};
}

// What one call has of a probe.
struct Kept {
  const Seen* tensor = nullptr;
  const Seen* sketch = nullptr;

  const Seen* any() const { return tensor != nullptr ? tensor : sketch; }
};

Kept KeptIn(const Call& call, const ProbeName& name) {
  const auto in = [&](const std::map<ProbeName, Seen>& all) {
    const auto found = all.find(name);
    return found == all.end() ? nullptr : &found->second;
  };
  return {in(call.probes), in(call.sketches)};
}

std::set<ProbeName> NamesIn(const Call& call) {
  std::set<ProbeName> names;
  for (const auto* all : {&call.probes, &call.sketches}) {
    for (const auto& [name, seen] : *all) names.insert(name);
  }
  return names;
}

bool HasValues(Source& source, const Seen* seen) {
  if (seen == nullptr) return false;
  const Result<source::Snapshot> snapshot = source.Get(seen->slot, seen->key);
  return snapshot.ok() && snapshot->has_values;
}

// The rows of one call of A and one of B that hold the same tokens.
struct SharedRows {
  std::size_t call_a = 0;
  std::size_t call_b = 0;
  struct Row {
    Token token;
    std::size_t a = 0;
    std::size_t b = 0;
    double largest = 0;  // error so far
    bool has_grown = false;
  };
  std::vector<Row> rows;
};

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

class Comparer {
  // A call of A, and the place in it.
  using Place = std::tuple<std::size_t, std::int64_t, std::uint64_t>;

 public:
  Comparer(Source& a, Source& b, const Scope& scope) : a_(a), b_(b), scope_(scope) {}

  Result<RequestDiff> Run() {
    for (auto [source, rows] : {std::pair(&a_, &rows_a_), std::pair(&b_, &rows_b_)}) {
      Result<RequestRows> read = ReadRequestRows(*source, scope_);
      if (!read.ok()) return read.error();
      *rows = *std::move(read);
      if (rows->tokens.empty()) {
        return Error{fmt::format(
            "{} does not say which request a row belongs to. Call cgdebug.rows(requests, "
            "positions) before each call of the model; see cgdebug.rows in the manual",
            source->Describe().path)};
      }
    }
    PairTokens();
    for (auto& [calls, shared] : pairs_) {
      std::tie(shared.call_a, shared.call_b) = calls;
      CompareCalls(&shared);
    }
    Finish();
    return std::move(result_);
  }

 private:
  void PairTokens() {
    std::set<std::int64_t> requests;
    std::uint64_t only_a = 0, only_b = 0;
    std::optional<Token> first_a, first_b;
    for (const auto& [token, places] : rows_a_.tokens) {
      const auto other = rows_b_.tokens.find(token);
      const std::size_t shared =
          other == rows_b_.tokens.end() ? 0 : std::min(places.size(), other->second.size());
      for (std::size_t i = 0; i < shared; ++i) {
        const RowPlace &a = places[i], &b = other->second[i];
        pairs_[{a.call, b.call}].rows.push_back({.token = token, .a = a.row, .b = b.row});
      }
      result_.tokens += shared;
      if (shared > 0) requests.insert(token.request);
      if (shared < places.size() && only_a == 0) first_a = token;
      only_a += places.size() - shared;
    }
    for (const auto& [token, places] : rows_b_.tokens) {
      const auto other = rows_a_.tokens.find(token);
      const std::size_t shared =
          other == rows_a_.tokens.end() ? 0 : std::min(places.size(), other->second.size());
      if (shared < places.size() && only_b == 0) first_b = token;
      only_b += places.size() - shared;
    }
    result_.requests = requests.size();
    if (only_a > 0) only_in_one_.push_back(OnlyIn("A", only_a, *first_a));
    if (only_b > 0) only_in_one_.push_back(OnlyIn("B", only_b, *first_b));
  }

  static std::string OnlyIn(const char* side, std::uint64_t count, const Token& first) {
    return fmt::format("only {} has {}, the first {}", side, Count(count, "row"), TokenText(first));
  }

  void CompareCalls(SharedRows* shared) {
    const Call &a = rows_a_.calls[shared->call_a], &b = rows_b_.calls[shared->call_b];
    const std::set<ProbeName> of_a = NamesIn(a), of_b = NamesIn(b);
    std::vector<std::pair<Place, const ProbeName*>> names;
    for (const ProbeName& name : of_a) {
      names.emplace_back(PlaceOf(shared->call_a, *KeptIn(a, name).any()), &name);
    }
    std::ranges::sort(names, [](const auto& x, const auto& y) {
      return std::tie(x.first, *x.second) < std::tie(y.first, *y.second);
    });
    for (const auto& [place, name] : names) {
      const Kept left = KeptIn(a, *name), right = KeptIn(b, *name);
      if (right.any() == nullptr) {
        missing_.Add("B did not see it in the call of these rows", Where(a_, *left.any()));
        continue;
      }
      CompareKept(place, left, right, shared);
    }
    for (const ProbeName& name : of_b) {
      if (!of_a.contains(name)) {
        missing_.Add("A did not see it in the call of these rows",
                     Where(b_, *KeptIn(b, name).any()));
      }
    }
  }

  void CompareKept(const Place& place, const Kept& left, const Kept& right, SharedRows* shared) {
    const bool has_sketches = left.sketch != nullptr && right.sketch != nullptr;
    const bool by_sketch =
        has_sketches && !(HasValues(a_, left.tensor) && HasValues(b_, right.tensor));
    const Seen& seen_a = by_sketch ? *left.sketch : *left.any();
    const Seen& seen_b = by_sketch ? *right.sketch : *right.any();
    const auto rows_of = [&](Source& source, const Seen& seen, const Call& call) {
      return by_sketch ? SketchesOf(source, seen, call.rows.size())
                       : RowsOf(source, seen, call.rows.size());
    };
    if (!by_sketch && (IsSketchGone(a_, left) || IsSketchGone(b_, right))) return;
    const std::optional<Rows> of_a = rows_of(a_, seen_a, rows_a_.calls[shared->call_a]);
    if (!of_a) return;
    const std::optional<Rows> of_b = rows_of(b_, seen_b, rows_b_.calls[shared->call_b]);
    if (!of_b) return;
    if (of_a->Elements() != of_b->Elements() || of_a->is_sketch != of_b->is_sketch) {
      return missing_.Add("a row has another length in B", Where(a_, seen_a));
    }
    const bool are_same = of_a->is_sketch && AreSame(left.tensor, right.tensor);
    CompareProbe(place, seen_a, *of_a, seen_b, *of_b, are_same, shared);
  }

  // Whether the call has neither values nor a sketch, though others have one, and it is said.
  bool IsSketchGone(Source& source, const Kept& kept) {
    const bool is_gone = kept.sketch == nullptr && !HasValues(source, kept.tensor) &&
                         HasSketches(source, source.slots()[kept.any()->slot].probe);
    if (is_gone) {
      missing_.Add("the sketch of this call is not kept any more, or not yet",
                   Where(source, *kept.any()));
    }
    return is_gone;
  }

  // Whether both tensors have the same bits, as their statistics say.
  bool AreSame(const Seen* a, const Seen* b) {
    if (a == nullptr || b == nullptr) return false;
    const Slot &slot_a = a_.slots()[a->slot], &slot_b = b_.slots()[b->slot];
    if (slot_a.dtype != slot_b.dtype || slot_a.shape != slot_b.shape) return false;
    const Result<source::Snapshot> of_a = a_.Get(a->slot, a->key), of_b = b_.Get(b->slot, b->key);
    if (!of_a.ok() || !of_b.ok() || !of_a->stats || !of_b->stats) return false;
    const numerics::Stats &x = *of_a->stats, &y = *of_b->stats;
    return x.has_hash && y.has_hash && x.has_ordered_hash && y.has_ordered_hash &&
           x.hash == y.hash && x.ordered_hash == y.ordered_hash;
  }

  std::string Where(Source& source, const Seen& seen) const {
    const Slot& slot = source.slots()[seen.slot];
    return source::SlotText(slot) + source::ReplayMark(slot, seen.key.replay);
  }

  // Nothing: they are not known, and it is said.
  std::optional<Rows> RowsOf(Source& source, const Seen& seen, std::size_t rows) {
    const Slot& slot = source.slots()[seen.slot];
    const auto missing = [&](const std::string& why) -> std::optional<Rows> {
      missing_.Add(why, Where(source, seen));
      return std::nullopt;
    };
    if (!slot.part.empty()) return missing("only a part was recorded");
    const std::optional<std::uint64_t> elements = ElementsOfARow(slot.shape, rows);
    if (!elements) return missing("its first dimensions are not the rows of the call");
    if (layout::FindDtype(slot.dtype) == nullptr || slot.dtype == layout::Dtype::kFloat4E2m1fnX2) {
      return missing("rows of this dtype are not compared");
    }
    const Result<source::Snapshot> snapshot = source.Get(seen.slot, seen.key);
    if (!snapshot.ok()) return missing(snapshot.error().message);
    if (!snapshot->has_values) {
      return missing(
          "no values were recorded; keep them with cgdebug.watch(..., values=N), or sketches of "
          "rows with sketches=N, in both");
    }
    Result<source::Values> values = source.Load(*snapshot);
    if (!values.ok()) return missing(values.error().message);
    const std::uint64_t bytes = *elements * layout::DtypeBytes(slot.dtype);
    if (values->bytes.size() != bytes * rows) return missing("it has another size than its shape");
    return Rows{slot.dtype, *std::move(values), bytes, RoundingOf(slot.dtype)};
  }

  // Whether there are sketches of what the probe sees, of some call.
  bool HasSketches(Source& source, const std::string& probe) {
    const auto [known, is_new] = sketched_probes_.try_emplace(&source);
    if (is_new) {
      for (const Slot& slot : source.slots()) {
        if (std::optional<std::string> of = SketchedBy(slot.probe)) known->second.insert(*of);
      }
    }
    return known->second.contains(probe);
  }

  // Likewise, of what a probe of sketches saw.
  std::optional<Rows> SketchesOf(Source& source, const Seen& seen, std::size_t rows) {
    const Slot& slot = source.slots()[seen.slot];
    const Sketched of = SketchedIn(source, seen.slot);
    std::optional<Rows> sketches = RowsOf(source, seen, rows);
    if (!sketches) return std::nullopt;
    sketches->rounding = of.rounding;
    sketches->is_sketch = !of.is_whole;
    if (of.is_whole) return sketches;
    const bool is_double = slot.dtype == layout::Dtype::kInt64;  // bits, not numbers
    sketches->dtype = is_double ? layout::Dtype::kFloat64 : layout::Dtype::kFloat32;
    if (of.count == 0 || (!is_double && slot.dtype != layout::Dtype::kInt32)) {
      missing_.Add("it is not told of what it is a sketch", Where(source, seen));
      return std::nullopt;
    }
    return sketches;
  }

  // The tensors of which a slot may have sketches: those of its probe that have as many vectors.
  struct Sketched {
    std::uint64_t count = 0;
    double rounding = 0;    // the largest
    bool is_whole = false;  // they are so short that they are their own sketches
  };

  const Sketched& SketchedIn(Source& source, std::size_t sketch) {
    const auto [known, is_new] = sketched_.try_emplace({&source, sketch});
    if (!is_new) return known->second;
    const Slot& slot = source.slots()[sketch];
    const std::string probe = SketchedBy(slot.probe).value_or("");
    for (const Slot& one : source.slots()) {
      const bool is_of_it = one.probe == probe && one.session == slot.session &&
                            one.uuid == slot.uuid && one.rank == slot.rank &&
                            one.graph_id == slot.graph_id && one.invocation == slot.invocation;
      if (!is_of_it || one.shape.size() != slot.shape.size() || one.shape.empty() ||
          !std::equal(one.shape.begin(), one.shape.end() - 1, slot.shape.begin())) {
        continue;
      }
      Sketched& found = known->second;
      const bool is_whole = one.shape == slot.shape && one.dtype == slot.dtype;
      found.is_whole = is_whole && (found.is_whole || found.count == 0);
      found.rounding = std::max(found.rounding, RoundingOf(one.dtype));
      ++found.count;
    }
    return known->second;
  }

  // are_same: both tensors are equal bit for bit.
  void CompareProbe(const Place& place, const Seen& seen_a, const Rows& a, const Seen& seen_b,
                    const Rows& b, bool are_same, SharedRows* shared) {
    const std::size_t index = IndexOf(seen_a);
    ProbeRows& probe = result_.probes[index];
    const double rounding = std::max(a.rounding, b.rounding);
    const double growth = a.is_sketch ? kGrowthOfSketches : kGrowth;
    for (SharedRows::Row& row : shared->rows) {
      const RowError error = Compare(a, row.a, b, row.b);
      const bool is_known_equal = error.is_equal && (!a.is_sketch || (are_same && row.a == row.b));
      const bool is_by_sketch = a.is_sketch && !is_known_equal;
      const RowPair pair{.probe = index,
                         .token = row.token,
                         .a = seen_a,
                         .b = seen_b,
                         .row_a = row.a,
                         .row_b = row.b,
                         .error = error.relative,
                         .is_by_sketch = is_by_sketch};
      ++probe.compared;
      ++result_.compared;
      probe.equal += is_known_equal;
      result_.equal += is_known_equal;
      result_.by_sketch += is_by_sketch;
      result_.alike += is_by_sketch && error.is_equal;
      probe.largest = std::max(probe.largest, error.relative);
      if (!error.is_equal && (!result_.unequal || place < first_unequal_)) {
        first_unequal_ = place;
        result_.unequal = pair;
      }
      const double least_growth = growth * std::max(row.largest, rounding);
      result_.least_growth = std::max(result_.least_growth, least_growth);
      if (!row.has_grown && error.relative > least_growth) {
        row.has_grown = true;
        ++probe.grown;
        ++result_.grown;
        if (!result_.first || place < first_place_) {
          first_place_ = place;
          result_.first = pair;
          result_.before_first = row.largest;
        }
      }
      row.largest = std::max(row.largest, error.relative);
      if (!row.has_grown && (!result_.largest || error.relative > result_.largest->error)) {
        result_.largest = pair;
      }
    }
  }

  // A slot of an eager call is registered when its tensor first comes, which may be in a later call
  // than that of slots behind it.
  Place PlaceOf(std::size_t call, const Seen& seen) {
    const Slot& slot = a_.slots()[seen.slot];
    std::int64_t time_ns = 0;
    if (slot.graph_id == 0) {
      const Result<source::Snapshot> snapshot = a_.Get(seen.slot, seen.key);
      if (snapshot.ok()) time_ns = snapshot->timestamp_ns;
    }
    return {call, time_ns, source::PlaceInCall(slot)};
  }

  std::size_t IndexOf(const Seen& seen) {
    const Slot& slot = a_.slots()[seen.slot];
    const std::string full = source::SlotName(slot);
    const std::string name = SketchedBy(full).value_or(full);
    const auto [found, is_new] = places_.try_emplace(name, result_.probes.size());
    if (is_new) result_.probes.push_back({.name = name});
    return found->second;
  }

  void Finish() {
    std::vector<std::string>& missing = result_.missing;
    missing = missing_.Sentences();
    missing.insert(missing.end(), only_in_one_.begin(), only_in_one_.end());
    for (const auto& [side, source, rows] :
         {std::tuple("A", &a_, &rows_a_), std::tuple("B", &b_, &rows_b_)}) {
      if (rows->calls_without_rows > 0) {
        missing.push_back(fmt::format("{}: nobody told the rows of {}", side,
                                      Count(rows->calls_without_rows, "call")));
      }
      for (const std::string& gap : SummarizeGaps(*source, scope_).sentences) {
        missing.push_back(fmt::format("{}: {}", side, gap));
      }
    }
  }

  Source& a_;
  Source& b_;
  const Scope& scope_;
  RequestRows rows_a_;
  RequestRows rows_b_;
  std::map<std::pair<std::size_t, std::size_t>, SharedRows> pairs_;  // by call of A and of B
  std::map<Source*, std::set<std::string>> sketched_probes_;
  std::map<std::pair<Source*, std::size_t>, Sketched> sketched_;  // by slot
  std::map<std::string, std::size_t> places_;                     // in RequestDiff::probes
  Place first_place_;                                             // of RequestDiff::first
  Place first_unequal_;                                           // of RequestDiff::unequal
  Missing missing_;
  std::vector<std::string> only_in_one_;
  RequestDiff result_;
};

}  // namespace

Result<RequestDiff> CompareRequests(Source& a, Source& b, const Scope& scope) {
  return Comparer(a, b, scope).Run();
}

}  // namespace cgdebug::analysis::requests
