#include "client/analysis/diff/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>

#include "client/analysis/diff/statistics_verdict.h"
#include "client/analysis/gaps.h"
#include "client/analysis/verify.h"
#include "daemon/core/numerics/format.h"
#include "daemon/core/numerics/kernels/decode.h"

namespace cgdebug::analysis {
namespace {

using numerics::CompareOptions;
using numerics::CompareResult;
using numerics::Stats;
using numerics::TensorView;
using source::Key;
using source::Slot;
using source::Snapshot;
using source::Source;
using source::Values;

enum class PairOutcome { kBitEqual, kClose, kHashEqual, kStatsEqual, kDifferent, kNotCompared };

std::uint64_t* CountOf(PairOutcome outcome, Equal* equal) {
  switch (outcome) {
    case PairOutcome::kBitEqual:
      return &equal->bits;
    case PairOutcome::kClose:
      return &equal->tolerance;
    case PairOutcome::kHashEqual:
      return &equal->hashes;
    case PairOutcome::kStatsEqual:
      return &equal->statistics;
    case PairOutcome::kDifferent:
    case PairOutcome::kNotCompared:
      break;
  }
  return nullptr;
}

std::string PartWords(const Slot& slot) {
  return slot.part.empty() ? "the whole tensor" : "part " + slot.part;
}

// Keeps the K elements that differ most.
class Largest {
 public:
  explicit Largest(std::size_t count) : count_(count) {}

  void AddAll(const TensorView& a, const TensorView& b) {
    for (std::uint64_t i = 0; count_ > 0 && i < a.count(); ++i) Add(a, b, i);
  }

  std::vector<Difference::Element> Elements(const TensorView& a, const TensorView& b) const {
    std::vector<Difference::Element> elements;
    for (const Entry& entry : entries_) {
      elements.push_back({entry.index, numerics::FormatElement(a, entry.index),
                          numerics::FormatElement(b, entry.index)});
    }
    return elements;
  }

 private:
  struct Entry {
    double difference;
    std::uint64_t index;
  };

  void Add(const TensorView& a, const TensorView& b, std::uint64_t index) {
    const double difference =
        std::fabs(numerics::ElementAsDouble(a, index) - numerics::ElementAsDouble(b, index));
    if (difference == 0) return;
    const Entry entry{std::isnan(difference) ? INFINITY : difference, index};
    const auto is_larger = [](const Entry& x, const Entry& y) {
      return x.difference != y.difference ? x.difference > y.difference : x.index < y.index;
    };
    if (entries_.size() == count_ && !is_larger(entry, entries_.back())) return;
    if (entries_.size() == count_) entries_.pop_back();
    entries_.insert(std::upper_bound(entries_.begin(), entries_.end(), entry, is_larger), entry);
  }

  const std::size_t count_;
  std::vector<Entry> entries_;  // largest first
};

class Comparer {
 public:
  Comparer(Source& a, Source& b, const DiffOptions& options) : a_(a), b_(b), options_(options) {}

  Result<Diff> Run() {
    if (const Result<void> good = CheckTolerances(); !good.ok()) return good.error();
    Result<Alignment> alignment = Align(a_, b_, options_.align);
    if (!alignment.ok()) return alignment.error();
    result_.by_step = options_.align.by_step;
    for (const SlotPair& pair : alignment->slots) {
      result_.probes.push_back({.a = pair.a, .b = pair.b});
    }
    result_.missing = std::move(alignment->unmatched);
    result_.missing_count = alignment->unmatched_count;
    AddGaps(a_);
    AddGaps(b_);
    std::uint64_t position = 0;
    for (const SnapshotPair& pair : alignment->snapshots) {
      if (pair.position != position) {
        if (options_.stops_after_first && result_.first) {
          result_.stopped_early = true;
          break;
        }
        position = pair.position;
        ++result_.position_count;
        equal_here_ = 0;
      }
      if (const Result<void> done = CompareOne(pair); !done.ok()) return done.error();
    }
    VerifyEqualOnes();
    for (const ProbeDiff& probe : result_.probes) {
      if (!not_compared_.contains(&probe)) continue;
      const NotCompared& first = not_compared_.at(&probe);
      const std::string more = first.count == 1 ? "" : fmt::format(" and {} more", first.count - 1);
      result_.missing.push_back(fmt::format("{}@{}{}: {}", source::SlotText(a_.slots()[probe.a]),
                                            ReplayText(a_.slots()[probe.a], first.key), more,
                                            first.why));
    }
    return std::move(result_);
  }

 private:
  struct NotCompared {
    Key key;
    std::string why;
    std::uint64_t count = 0;
  };
  // Called equal because of its hashes.
  struct ByHash {
    SnapshotPair pair;
    bool is_before_first = false;  // in the replay of the first difference
  };

  // Checked here as well, because values with equal bytes are never compared.
  Result<void> CheckTolerances() const {
    for (const auto& [name, value] : {std::pair("rtol", options_.rtol), {"atol", options_.atol}}) {
      if (!value || (std::isfinite(*value) && *value >= 0)) continue;
      return Error{fmt::format("{} is {}; a tolerance is finite, and 0 or more", name, *value)};
    }
    return {};
  }

  void AddGaps(Source& source) {
    const GapSummary gaps = SummarizeGaps(source, options_.align.scope);
    result_.missing.insert(result_.missing.end(), gaps.sentences.begin(), gaps.sentences.end());
    result_.missing_count += gaps.count;
    if (gaps.goes_on.empty()) return;
    result_.missing.push_back(gaps.goes_on);
    ++result_.missing_count;
  }

  void AddNotCompared(ProbeDiff* probe, const source::Key& key, const std::string& why) {
    ++result_.missing_count;
    ++probe->not_compared;
    // One sentence per probe: the first stands for the others.
    NotCompared& first = not_compared_[probe];
    if (first.count++ == 0) first = {key, why, 1};
  }

  CompareOptions Tolerance(layout::Dtype dtype) const {
    CompareOptions tolerance = numerics::DefaultTolerances(dtype);
    if (options_.rtol) tolerance.rtol = *options_.rtol;
    if (options_.atol) tolerance.atol = *options_.atol;
    tolerance.equal_nan = options_.equal_nan;
    tolerance.bitwise = options_.bitwise;
    return tolerance;
  }

  Result<void> CompareOne(const SnapshotPair& pair) {
    ProbeDiff& probe = result_.probes[pair.pair];
    Difference difference{.pair = pair.pair, .position = pair.position};
    Result<Snapshot> a = a_.Get(probe.a, pair.a);
    Result<Snapshot> b = b_.Get(probe.b, pair.b);
    if (!a.ok() || !b.ok()) {
      AddNotCompared(&probe, pair.a, (a.ok() ? b : a).error().message);
      Tell(pair, Judged::Kind::kNotCompared);
      return {};
    }
    difference.a = *std::move(a);
    difference.b = *std::move(b);
    const Result<PairOutcome> outcome = Judge(probe, &difference);
    if (!outcome.ok()) return outcome.error();
    if (*outcome == PairOutcome::kNotCompared) {
      AddNotCompared(&probe, pair.a, difference.reason);
      Tell(pair, Judged::Kind::kNotCompared);
      return {};
    }
    ++probe.compared;
    ++result_.compared;
    if (!a_.slots()[probe.a].part.empty()) ++result_.in_part;
    if (*outcome == PairOutcome::kDifferent) {
      Tell(pair, Judged::Kind::kDifferent, &difference);
      AddDifference(&probe, std::move(difference));
      return {};
    }
    ++*CountOf(*outcome, &probe.equal);
    ++*CountOf(*outcome, &result_.equal);
    ++equal_here_;
    if (*outcome == PairOutcome::kBitEqual && !values_read_) by_hash_.push_back({pair});
    Tell(pair, Judged::Kind::kEqual);
    return {};
  }

  void Tell(const SnapshotPair& pair, Judged::Kind kind,
            const Difference* difference = nullptr) const {
    if (!options_.on_judged) return;
    Judged judged{.pair = pair.pair, .position = pair.position, .kind = kind};
    if (difference != nullptr && difference->values) {
      judged.max_abs = FiniteMaxAbs(*difference);
      judged.by_nonfinite = !std::isfinite(difference->values->max_abs.value);
    }
    options_.on_judged(judged);
  }

  // The greatest finite difference of the values, where there are values.
  static std::optional<double> FiniteMaxAbs(const Difference& difference) {
    if (!difference.values) return std::nullopt;
    const double max_abs = difference.values->max_abs.value;
    return std::isfinite(max_abs) ? max_abs : difference.finite_abs;
  }

  // Reads the values that were called equal because their hashes are, and takes back each verdict
  // whose values do not match the hash.
  void VerifyEqualOnes() {
    std::vector<SnapshotName> of_a, of_b;
    for (const ByHash& one : by_hash_) {
      of_a.push_back({result_.probes[one.pair.pair].a, one.pair.a});
      of_b.push_back({result_.probes[one.pair.pair].b, one.pair.b});
    }
    std::map<std::size_t, std::string> damaged;
    for (DamagedSnapshot& one : FindDamaged(a_, of_a)) damaged[one.place] = std::move(one.why);
    for (DamagedSnapshot& one : FindDamaged(b_, of_b)) damaged[one.place] = std::move(one.why);
    std::vector<std::string> sentences;
    for (const auto& [place, why] : damaged) {
      const SnapshotPair& pair = by_hash_[place].pair;
      ProbeDiff& probe = result_.probes[pair.pair];
      for (auto [compared, equal] : {std::pair(&probe.compared, &probe.equal.bits),
                                     std::pair(&result_.compared, &result_.equal.bits)}) {
        --*compared;
        --*equal;
      }
      if (!a_.slots()[probe.a].part.empty()) --result_.in_part;
      if (by_hash_[place].is_before_first) --result_.first->equal_before;
      ++probe.not_compared;
      ++result_.missing_count;
      Tell(pair, Judged::Kind::kNotCompared);
      const Slot& slot = a_.slots()[probe.a];
      sentences.push_back(
          fmt::format("{}@{}{}: {}", source::SlotText(slot), ReplayText(slot, pair.a),
                      slot.rank < 0 ? "" : fmt::format(" of rank {}", slot.rank), why));
    }
    result_.missing.insert(result_.missing.begin(), sentences.begin(), sentences.end());
  }

  void AddDifference(ProbeDiff* probe, Difference difference) {
    ++result_.different;
    if (probe->different++ == 0) probe->first_different = difference.position;
    if (difference.values) {
      const double max_rel = difference.values->max_rel.value;
      probe->has_values = true;
      probe->max_abs = std::max(probe->max_abs, *FiniteMaxAbs(difference));
      probe->max_rel =
          std::max(probe->max_rel, std::isfinite(max_rel) ? max_rel : difference.finite_rel);
      probe->with_nonfinite += !std::isfinite(difference.values->max_abs.value);
    }
    if (!result_.first) {
      difference.equal_before = equal_here_;
      for (ByHash& one : by_hash_) one.is_before_first = one.pair.position == difference.position;
      result_.first = std::move(difference);
    } else if (result_.first->position == difference.position) {
      ++result_.first->different_after;
    }
  }

  // Whether NaN makes equal bytes a mismatch, as it does for assert_close.
  bool NanCanDiffer(const Snapshot& snapshot, layout::Dtype dtype) const {
    const layout::DtypeInfo* info = layout::FindDtype(dtype);
    if (options_.bitwise || options_.equal_nan || info == nullptr || !info->is_floating) {
      return false;
    }
    return !snapshot.stats || snapshot.stats->nan > 0;
  }

  Result<PairOutcome> Judge(const ProbeDiff& probe, Difference* difference) {
    const Slot& slot_a = a_.slots()[probe.a];
    const Slot& slot_b = b_.slots()[probe.b];
    const Snapshot& a = difference->a;
    const Snapshot& b = difference->b;
    const bool same_part = slot_a.part == slot_b.part;
    if (!same_part && slot_a.dtype_name == slot_b.dtype_name &&
        source::FullShapeText(slot_a) == source::FullShapeText(slot_b)) {
      difference->reason = fmt::format("A has {}, B has {}: record the same part of both",
                                       PartWords(slot_a), PartWords(slot_b));
      return PairOutcome::kNotCompared;
    }
    if (slot_a.dtype_name != slot_b.dtype_name || slot_a.shape != slot_b.shape || !same_part) {
      difference->reason = fmt::format("{} against {}: the {} differs", source::TypeText(slot_a),
                                       source::TypeText(slot_b),
                                       slot_a.dtype_name == slot_b.dtype_name ? "shape" : "dtype");
      return PairOutcome::kDifferent;
    }
    difference->tolerance = Tolerance(slot_a.dtype);
    const bool have_hashes = a.hash && b.hash;
    const bool have_values = a.has_values && b.has_values;
    values_read_ = false;
    if (have_hashes && *a.hash == *b.hash && !NanCanDiffer(a, slot_a.dtype)) {
      return have_values && !options_.trusts_hashes ? PairOutcome::kBitEqual
                                                    : PairOutcome::kHashEqual;
    }
    if (have_values) {
      values_read_ = true;
      return JudgeValues(slot_a, difference);
    }
    if (have_hashes && *a.hash != *b.hash && options_.bitwise) {
      difference->reason = "the bits differ; the values were not recorded";
      return PairOutcome::kDifferent;
    }
    return JudgeByStatistics(slot_a, difference);
  }

  std::optional<Stats> StatsOf(Source& source, const Snapshot& snapshot) {
    if (!snapshot.stats && !snapshot.has_values) return std::nullopt;
    const Result<Stats> stats = source::StatsOf(source, snapshot);
    return stats.ok() ? std::optional(*stats) : std::nullopt;
  }

  PairOutcome JudgeByStatistics(const Slot& slot, Difference* difference) {
    const std::optional<Stats> a = StatsOf(a_, difference->a), b = StatsOf(b_, difference->b);
    if (!a || !b) {
      difference->reason = (a ? b_ : a_).Describe().path + " has neither values nor statistics";
      return PairOutcome::kNotCompared;
    }
    const layout::DtypeInfo* info = layout::FindDtype(slot.dtype);
    StatisticsVerdict verdict =
        JudgeStatistics({*a, a_.Describe().path}, {*b, b_.Describe().path}, difference->tolerance,
                        {.can_be_nan = info != nullptr && info->is_floating,
                         .has_tolerance = !options_.bitwise && (options_.rtol || options_.atol)});
    difference->reason = std::move(verdict.reason);
    difference->statistics = std::move(verdict.differing);
    switch (verdict.kind) {
      case StatisticsVerdict::Kind::kSame:
        return PairOutcome::kStatsEqual;
      case StatisticsVerdict::Kind::kDifferent:
        return PairOutcome::kDifferent;
      case StatisticsVerdict::Kind::kUnknown:
        break;
    }
    return PairOutcome::kNotCompared;
  }

  // NaN is greater than any number, and would hide them all.
  static void FindFinite(const TensorView& a, const TensorView& b, Difference* difference) {
    const CompareOptions& tolerance = difference->tolerance;
    for (std::uint64_t i = 0; i < a.count(); ++i) {
      const double expected = numerics::ElementAsDouble(b, i);
      const double apart = std::fabs(numerics::ElementAsDouble(a, i) - expected);
      const double allowed = tolerance.atol + tolerance.rtol * std::fabs(expected);
      if (!std::isfinite(apart) || (!tolerance.bitwise && apart <= allowed)) continue;
      difference->finite_abs = std::max(difference->finite_abs, apart);
      if (expected == 0) continue;
      difference->finite_rel = std::max(difference->finite_rel, apart / std::fabs(expected));
    }
  }

  Result<PairOutcome> JudgeValues(const Slot& slot, Difference* difference) {
    const Result<Values> a = a_.Load(difference->a);
    const Result<Values> b = b_.Load(difference->b);
    if (!a.ok() || !b.ok()) {
      difference->reason = (a.ok() ? b : a).error().message;
      return PairOutcome::kNotCompared;
    }
    const bool same_bytes =
        a->bytes.size() == b->bytes.size() &&
        (a->bytes.empty() || std::memcmp(a->bytes.data(), b->bytes.data(), a->bytes.size()) == 0);
    if (same_bytes && !NanCanDiffer(difference->a, slot.dtype)) return PairOutcome::kBitEqual;
    if (slot.dtype == layout::Dtype::kInvalid) {
      if (same_bytes) return PairOutcome::kBitEqual;
      difference->reason = "the bits differ, and this version does not know the dtype";
      return PairOutcome::kDifferent;
    }
    const auto view_a = numerics::MakeTensorView(slot.dtype, slot.shape, a->bytes);
    const auto view_b = numerics::MakeTensorView(slot.dtype, slot.shape, b->bytes);
    if (!view_a.ok()) return view_a.error();
    if (!view_b.ok()) return view_b.error();
    Result<CompareResult> result = numerics::Compare(*view_a, *view_b, difference->tolerance);
    if (!result.ok()) return result.error();
    if (result->ok) return same_bytes ? PairOutcome::kBitEqual : PairOutcome::kClose;
    if (!std::isfinite(result->max_abs.value) || !std::isfinite(result->max_rel.value)) {
      FindFinite(*view_a, *view_b, difference);
    }
    if (!result_.first) {
      Largest largest(options_.topk);
      largest.AddAll(*view_a, *view_b);
      difference->largest = largest.Elements(*view_a, *view_b);
    }
    difference->values = *std::move(result);
    return PairOutcome::kDifferent;
  }

  Source& a_;
  Source& b_;
  const DiffOptions& options_;
  Diff result_;
  std::uint64_t equal_here_ = 0;                          // in this replay so far
  bool values_read_ = false;                              // of the last pair that was judged
  std::vector<ByHash> by_hash_;                           // in order
  std::map<const ProbeDiff*, NotCompared> not_compared_;  // the first of a probe
};

}  // namespace

Result<Diff> Compare(Source& a, Source& b, const DiffOptions& options) {
  return Comparer(a, b, options).Run();
}

}  // namespace cgdebug::analysis
