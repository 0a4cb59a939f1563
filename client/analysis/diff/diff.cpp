#include "client/analysis/diff/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "client/analysis/diff/pair_judge.h"
#include "client/analysis/gaps.h"
#include "client/analysis/verify.h"

namespace cgdebug::analysis {
namespace {

using source::Key;
using source::Slot;
using source::Snapshot;
using source::Source;

std::uint64_t* CountOf(PairOutcome outcome, Equal* equal) {
  switch (outcome) {
    case PairOutcome::kBitEqual:
    case PairOutcome::kUnverified:
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

class Comparer {
 public:
  Comparer(Source& a, Source& b, const DiffOptions& options)
      : a_(a), b_(b), options_(options), judge_(a, b, options) {}

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
    const Result<PairOutcome> outcome = judge_.Judge(a_.slots()[probe.a], b_.slots()[probe.b],
                                                     /*lists_largest=*/!result_.first, &difference);
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
    if (*outcome == PairOutcome::kUnverified) by_hash_.push_back({pair});
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

  Source& a_;
  Source& b_;
  const DiffOptions& options_;
  const PairJudge judge_;
  Diff result_;
  std::uint64_t equal_here_ = 0;                          // in this replay so far
  std::vector<ByHash> by_hash_;                           // in order
  std::map<const ProbeDiff*, NotCompared> not_compared_;  // the first of a probe
};

}  // namespace

Result<Diff> Compare(Source& a, Source& b, const DiffOptions& options) {
  return Comparer(a, b, options).Run();
}

}  // namespace cgdebug::analysis
