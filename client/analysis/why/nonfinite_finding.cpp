#include "client/analysis/why/nonfinite_finding.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "client/analysis/ops/between_calls.h"
#include "client/analysis/why/detectors.h"
#include "daemon/core/ops/op_traits.h"
#include "proto/layout/dtype.h"

namespace cgdebug::analysis::why {
namespace {

std::string NonfiniteText(const Seen& seen) {
  std::string text;
  for (const auto& [count, word] : {std::pair(seen.nan, "NaN"), std::pair(seen.pos_inf, "+Inf"),
                                    std::pair(seen.neg_inf, "-Inf")}) {
    if (count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, word);
  }
  return text;
}

// Why an op makes NaN or Inf of finite values.
struct Reason {
  std::string_view kind = "nonfinite";
  std::string text = {};  // "the logarithm of 0"; empty: not known
};

class Explainer {
 public:
  Explainer(const Evidence& evidence, const Log& log, const Row& row, std::size_t run)
      : evidence_(evidence), row_(row), out_(row.at[run]), stem_(StemOf(row.op)) {
    for (const std::size_t input : row.inputs) {
      rows_.push_back(&log.rows[input]);
      inputs_.push_back(&log.rows[input].at[run]);
    }
  }

  Reason Explain() const {
    if (Any([](const Seen& seen) { return seen.neg_inf > 0; })) return OfMask();
    if (inputs_.empty()) return OfNothing();
    const bool has_zero = Any([](const Seen& seen) { return seen.zero > 0; });
    const bool has_negative = Any([](const Seen& seen) { return seen.min < 0; });
    if (ops::HasTrait(ops::OpTrait::kLogarithm, row_.op)) {
      if (out_.nan > 0) return {"domain", "the logarithm of a negative number"};
      if (out_.neg_inf > 0) return {"domain", "the logarithm of 0"};
    }
    if (ops::HasTrait(ops::OpTrait::kRoot, row_.op)) {
      if (out_.nan > 0 && has_negative) return {"domain", "the root of a negative number"};
      if (has_zero) return {"domain", "1 divided by the root of 0"};
    }
    // A divisor that is a number of the program is no row.
    const bool has_divisor = stem_ == "reciprocal" || inputs_.size() > 1;
    if (ops::HasTrait(ops::OpTrait::kQuotient, row_.op) && has_divisor &&
        inputs_.back()->zero > 0) {
      return {"domain", out_.nan > 0 ? "0 divided by 0" : "a division by 0"};
    }
    if (IsMean() && rows_.front()->count <= row_.count) return OfNothing();
    if (stem_ == "pow" && out_.nan > 0 && has_negative) {
      return {"domain", "a power of a negative number"};
    }
    if (stem_ == "pow" && out_.nan == 0 && out_.nonfinite() <= inputs_.front()->zero) {
      return {"domain", "a negative power of 0"};
    }
    if (Reason reason = OfInverse(); !reason.text.empty()) return reason;
    if (stem_ == "nll_loss_forward" || stem_ == "nll_loss2d_forward") {
      return {"domain", "the mean of no element, as where every target is ignored"};
    }
    return OfOverflow();
  }

 private:
  template <typename Test>
  bool Any(Test test) const {
    return std::ranges::any_of(inputs_, [&](const Seen* seen) { return test(*seen); });
  }

  // The inverse of a function that has values between -1 and 1, or from 1 on.
  Reason OfInverse() const {
    constexpr std::array kInverse = {std::pair("acos", "arc cosine"), std::pair("asin", "arc sine"),
                                     std::pair("atanh", "inverse hyperbolic tangent"),
                                     std::pair("erfinv", "inverse error function")};
    if (stem_ == "acosh") return {"domain", "the inverse hyperbolic cosine of a number below 1"};
    for (const auto& [stem, name] : kInverse) {
      if (stem_ != stem) continue;
      return {"domain", fmt::format("the {} of a number {}", name,
                                    out_.nan > 0 ? "above 1 or below -1" : "that is 1 or -1")};
    }
    return {};
  }

  bool IsMean() const { return ops::HasTrait(ops::OpTrait::kMean, row_.op); }
  // An empty tensor has no row.
  Reason OfNothing() const {
    if (!IsMean()) return {};
    return {"domain", inputs_.empty() ? "the mean or deviation of no element"
                                      : "the deviation of a single element"};
  }

  Reason OfMask() const {
    const bool is_softmax = stem_.find("softmax") != std::string_view::npos ||
                            stem_.find("attention") != std::string_view::npos;
    if (is_softmax && out_.nan > 0) {
      return {"masked_row", "a row that is -Inf throughout: all of it is masked out"};
    }
    return {"masked_row", "-Inf of a mask"};
  }

  // Requires: all that it read is finite.
  Reason OfOverflow() const {
    const layout::DtypeInfo* dtype = layout::FindDtype(evidence_.DtypeOf(row_));
    if (!ops::HasTrait(ops::OpTrait::kGrowing, row_.op) || dtype == nullptr || !dtype->is_floating)
      return {};
    double largest = 0;
    double terms = 1;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      largest = std::max(largest, inputs_[i]->abs_max);
      terms = std::max(terms, static_cast<double>(rows_[i]->count));
    }
    // What a product can be at most. Where that fits, something else made it.
    const bool fits = largest * largest * terms + largest < dtype->max_finite;
    if (ops::HasTrait(ops::OpTrait::kProduct, row_.op) && fits) return {};
    return {"overflow",
            fmt::format("too large for {} (at most {:.3g}); what it read goes up to {:.3g}",
                        dtype->name, dtype->max_finite, largest)};
  }

  const Evidence& evidence_;
  const Row& row_;
  const Seen& out_;
  const std::string_view stem_;
  std::vector<const Row*> rows_;
  std::vector<const Seen*> inputs_;
};

// "1.2e+03, 4e+03, 2e+04" if its largest value grew from run to run before `run`.
std::string GrowthOf(const Row& row, std::size_t run) {
  constexpr std::size_t kShown = 5, kFewest = 3;
  constexpr double kGrowth = 1.2;
  std::vector<double> values;
  for (std::size_t i = 0; i < run; ++i) {
    if (row.at[i].is_here && row.at[i].abs_max > 0) values.push_back(row.at[i].abs_max);
  }
  std::size_t count = values.empty() ? 0 : 1;
  while (count > 0 && count < values.size() && count < kShown &&
         values[values.size() - count] > kGrowth * values[values.size() - count - 1]) {
    ++count;
  }
  if (count < kFewest) return "";
  std::string text;
  for (std::size_t i = values.size() - count; i < values.size(); ++i) {
    text += fmt::format("{}{:.3g}", text.empty() ? "" : ", ", values[i]);
  }
  return text;
}

class Describer {
 public:
  Describer(const Evidence& evidence, std::size_t log_place, std::size_t place, std::size_t run)
      : evidence_(evidence),
        log_place_(log_place),
        place_(place),
        run_(run),
        log_(evidence.logs[log_place]),
        row_(log_.rows[place]) {}

  Finding Describe(bool is_made) const {
    const Seen& seen = row_.at[run_];
    const Reason reason = is_made ? Explainer(evidence_, log_, row_, run_).Explain() : Reason{};
    Finding finding{.kind = reason.kind, .place = PlaceAt(evidence_, log_place_, place_, run_)};
    const std::string where = WhereText();
    const std::string name = RowText(evidence_, log_place_, place_);
    if (row_.is_input()) {
      finding.sentence =
          fmt::format("{} holds {} {}, when it is read first: nothing in the log wrote it", name,
                      NonfiniteText(seen), where);
    } else if (is_made) {
      finding.sentence = fmt::format("{} made {} {}", name, NonfiniteText(seen), where);
      finding.sentence += reason.text.empty() && ReadsPadding()
                              ? ", and all that it read is finite, but for padding"
                          : reason.text.empty() ? ", and all that it read is finite"
                                                : fmt::format(": {}", reason.text);
    } else if (ops::IsCollective(row_.op)) {
      finding.sentence =
          fmt::format("{} holds {} {}, of this rank or another", name, NonfiniteText(seen), where);
    } else {
      finding.sentence = fmt::format("{} holds {} {}, and not all that it read is shown", name,
                                     NonfiniteText(seen), where);
    }
    AddJumps(&finding);
    for (const std::size_t input : row_.inputs) AddInput(input, &finding);
    if (const std::string growth = GrowthOf(row_, run_); !growth.empty()) {
      finding.facts.push_back(
          {finding.place, fmt::format("its largest value grew in the {} before: {}",
                                      log_.graph_id == 0 ? "calls" : "replays", growth)});
    }
    for (const std::size_t one : DescendantsOf(log_, place_)) {
      const Seen& later = log_.rows[one].at[run_];
      if (later.is_here && (later.is_bad() || IsAbsorbedNan(log_.rows[one], run_))) {
        finding.follows.push_back(one);
      }
    }
    finding.refute = is_made ? "a NaN or Inf in what it read, that no row shows"
                             : "rows of what wrote it, with NaN or Inf in what that read";
    return finding;
  }

 private:
  // Whether what it read has NaN or Inf in padding.
  bool ReadsPadding() const {
    return std::ranges::any_of(row_.inputs, [&](std::size_t input) {
      const Excuse excuse = log_.rows[input].at[run_].excuse;
      return excuse == Excuse::kPadding || excuse == Excuse::kRowsNotKnown;
    });
  }

  // "in call 3", "between call 3 and 4".
  std::string WhereText() const {
    const std::string text = "in " + RunText(log_, run_);
    if (!log_.counts_calls) return text;
    const source::Slot& like = evidence_.SlotOf(row_);
    source::Source& source = *evidence_.source;
    const std::uint64_t call = log_.runs[run_].replay;
    for (std::size_t i = 0; i < source.slots().size(); ++i) {
      const source::Slot& slot = source.slots()[i];
      if (slot.probe != like.probe || slot.session != like.session || slot.rank != like.rank)
        continue;
      const auto key = source.Find(i, call);
      if (!key.ok() || !*key) continue;
      const std::uint64_t next = NextCallOf(source, i, call);
      if (next != 0) return WhenText(slot, call, next);
    }
    return text;
  }

  // Of the inputs of the log that it is made of, those that became much larger since the run
  // before: a weight that something wrote between the two.
  void AddJumps(Finding* finding) const {
    constexpr double kJump = 100;
    std::set<std::size_t> seen;
    for (std::vector<std::size_t> left = {place_}; !left.empty();) {
      const std::size_t one = left.back();
      left.pop_back();
      if (!seen.insert(one).second) continue;
      const Row& row = log_.rows[one];
      left.insert(left.end(), row.inputs.begin(), row.inputs.end());
      if (!row.is_input() || one == place_ || !row.at[run_].is_here) continue;
      std::size_t before = run_;
      while (before > 0 && !row.at[--before].is_here) {
      }
      const Seen &then = row.at[before], &now = row.at[run_];
      if (before == run_ || !then.is_here || !(then.abs_max > 0)) continue;
      if (!(now.abs_max >= kJump * then.abs_max) || now.nonfinite() > 0) continue;
      finding->facts.push_back(
          {PlaceAt(evidence_, log_place_, one, run_),
           fmt::format("it is made of {}, whose largest value went from {:.3g} in {} to {:.3g}",
                       RowText(evidence_, log_place_, one), then.abs_max, RunText(log_, before),
                       now.abs_max)});
    }
  }

  void AddInput(std::size_t input, Finding* finding) const {
    const Row& row = log_.rows[input];
    const Seen& seen = row.at[run_];
    if (!seen.is_here) return;
    std::vector<std::string> parts;
    if (seen.nonfinite() > 0) {
      parts.push_back(fmt::format("{} of {} elements", NonfiniteText(seen), row.count));
    }
    if (seen.nonfinite() < row.count) {
      parts.push_back(fmt::format("{:.3g} to {:.3g}", seen.min, seen.max));
    }
    std::string text = fmt::format("it read {}: {}", RowText(evidence_, log_place_, input),
                                   fmt::join(parts, ", else "));
    if (seen.zero > 0) text += fmt::format(", {} zeros", seen.zero);
    finding->facts.push_back({PlaceAt(evidence_, log_place_, input, run_), std::move(text)});
  }

  const Evidence& evidence_;
  const std::size_t log_place_;
  const std::size_t place_;
  const std::size_t run_;
  const Log& log_;
  const Row& row_;
};

}  // namespace

Finding DescribeNonfinite(const Evidence& evidence, std::size_t log_place, std::size_t place,
                          std::size_t run, bool is_made) {
  return Describer(evidence, log_place, place, run).Describe(is_made);
}

}  // namespace cgdebug::analysis::why
