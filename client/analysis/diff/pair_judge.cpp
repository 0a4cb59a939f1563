#include "client/analysis/diff/pair_judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "client/analysis/diff/statistics_verdict.h"
#include "daemon/core/numerics/format.h"
#include "daemon/core/numerics/kernels/decode.h"

namespace cgdebug::analysis {
namespace {

using numerics::CompareOptions;
using numerics::CompareResult;
using numerics::Stats;
using numerics::TensorView;
using source::Slot;
using source::Snapshot;
using source::Source;
using source::Values;

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

std::optional<Stats> StatsIfKnown(Source& source, const Snapshot& snapshot) {
  if (!snapshot.stats && !snapshot.has_values) return std::nullopt;
  const Result<Stats> stats = source::StatsOf(source, snapshot);
  return stats.ok() ? std::optional(*stats) : std::nullopt;
}

// NaN is greater than any number, and would hide them all.
void FindFinite(const TensorView& a, const TensorView& b, Difference* difference) {
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

}  // namespace

Result<PairOutcome> PairJudge::Judge(const Slot& slot_a, const Slot& slot_b, bool lists_largest,
                                     Difference* difference) const {
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
  if (have_hashes && *a.hash == *b.hash && !NanCanDiffer(a, slot_a.dtype)) {
    return have_values && !options_.trusts_hashes ? PairOutcome::kUnverified
                                                  : PairOutcome::kHashEqual;
  }
  if (have_values) return JudgeValues(slot_a, lists_largest, difference);
  if (have_hashes && *a.hash != *b.hash && options_.bitwise) {
    difference->reason = "the bits differ; the values were not recorded";
    return PairOutcome::kDifferent;
  }
  return JudgeByStatistics(slot_a, difference);
}

Result<PairOutcome> PairJudge::JudgeValues(const Slot& slot, bool lists_largest,
                                           Difference* difference) const {
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
  if (lists_largest) {
    Largest largest(options_.topk);
    largest.AddAll(*view_a, *view_b);
    difference->largest = largest.Elements(*view_a, *view_b);
  }
  difference->values = *std::move(result);
  return PairOutcome::kDifferent;
}

PairOutcome PairJudge::JudgeByStatistics(const Slot& slot, Difference* difference) const {
  const std::optional<Stats> a = StatsIfKnown(a_, difference->a),
                             b = StatsIfKnown(b_, difference->b);
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

CompareOptions PairJudge::Tolerance(layout::Dtype dtype) const {
  CompareOptions tolerance = numerics::DefaultTolerances(dtype);
  if (options_.rtol) tolerance.rtol = *options_.rtol;
  if (options_.atol) tolerance.atol = *options_.atol;
  tolerance.equal_nan = options_.equal_nan;
  tolerance.bitwise = options_.bitwise;
  return tolerance;
}

bool PairJudge::NanCanDiffer(const Snapshot& snapshot, layout::Dtype dtype) const {
  const layout::DtypeInfo* info = layout::FindDtype(dtype);
  if (options_.bitwise || options_.equal_nan || info == nullptr || !info->is_floating) {
    return false;
  }
  return !snapshot.stats || snapshot.stats->nan > 0;
}

}  // namespace cgdebug::analysis
