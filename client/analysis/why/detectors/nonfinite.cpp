// Which op made the first NaN or Inf of values that were finite, and of what.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "client/analysis/ops/between_calls.h"
#include "client/analysis/ops/op_log.h"
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

class NonfiniteFinder {
 public:
  explicit NonfiniteFinder(const Evidence& evidence) : evidence_(evidence) {}

  Found Find() {
    // The runs of all logs of a process, in the order of time.
    using At = std::tuple<std::uint64_t, std::size_t, std::size_t>;  // serial, log, run
    std::map<std::pair<std::string, int>, std::vector<At>> processes;
    for (std::size_t log = 0; log < evidence_.logs.size(); ++log) {
      const Log& one = evidence_.logs[log];
      for (std::size_t run = 0; run < one.runs.size(); ++run) {
        processes[{one.session, one.rank}].emplace_back(one.runs[run].serial, log, run);
      }
      for (const Row& row : one.rows) snapshots_ += RunsOf(row).size();
    }
    for (auto& [process, runs] : processes) {
      std::ranges::sort(runs);
      has_found_ = false;
      for (const auto& [serial, log, run] : runs) LookAt(log, run);
    }
    FoldOverRanks();
    AddProbes();
    AddAbsorbed();
    if (answer_.findings.empty() && evidence_.check->snapshots > 0) {
      answer_.clean = fmt::format("no NaN or Inf in {} snapshots, except those that are meant",
                                  evidence_.check->snapshots);
    }
    return std::move(answer_);
  }

 private:
  void LookAt(std::size_t log_place, std::size_t run) {
    const Log& log = evidence_.logs[log_place];
    for (std::size_t place = 0; place < log.rows.size(); ++place) {
      const Row& row = log.rows[place];
      if (!row.at[run].is_here || told_.contains({log_place, place})) continue;
      if (IsAbsorbedNan(row, run)) NoteAbsorbed(log_place, place, run);
      if (!row.at[run].is_bad()) continue;
      const bool is_made = IsMade(log, row, run);
      if (!is_made && has_found_) continue;  // it follows from what was found before
      has_found_ = true;
      told_.insert({log_place, place});
      // A backward pass, or one that is checkpointed, computes it once more.
      const auto [first, is_first] =
          made_of_.try_emplace({log_place, run, row.op, row.inputs}, origins_.size());
      if (is_made && !is_first && !row.inputs.empty()) {
        answer_.findings[first->second].folded.push_back(Describe(log_place, place, run, is_made));
        continue;
      }
      answer_.findings.push_back(Describe(log_place, place, run, is_made));
      const source::Slot& slot = evidence_.SlotOf(row);
      origins_.push_back({.run = slot.run,
                          .graph = log.graph,
                          .session = log.session,
                          .place = {log.runs[run].replay, row.number},
                          .is_made = is_made});
    }
  }

  static bool IsAbsorbedNan(const Row& row, std::size_t run) {
    return row.at[run].nan > 0 && row.at[run].excuse == Excuse::kAbsorbed;
  }

  // Of what is made of one another, the first.
  void NoteAbsorbed(std::size_t log_place, std::size_t place, std::size_t run) {
    const Log& log = evidence_.logs[log_place];
    const Row& row = log.rows[place];
    if (std::ranges::any_of(
            row.inputs, [&](std::size_t input) { return IsAbsorbedNan(log.rows[input], run); })) {
      return;
    }
    told_.insert({log_place, place});
    absorbed_[{log_place, row.op}].emplace_back(place, run);
  }

  // NaN that the program leaves out again. One finding stands for the rows of one op.
  void AddAbsorbed() {
    for (const auto& [key, places] : absorbed_) {
      const std::size_t log_place = key.first;
      const auto& [place, run] = places.front();
      const Log& log = evidence_.logs[log_place];
      Finding finding = Describe(log_place, place, run, IsMade(log, log.rows[place], run));
      finding.level = Level::kConsistent;
      const std::vector<std::string> left_out_by = LeftOutBy(log_place, place, run);
      finding.sentence +=
          left_out_by.empty()
              ? "; it is made between two calls, and nothing that is computed of it has it"
              : fmt::format("; it is left out by {}, and nothing that is read later has it",
                            NamesText(left_out_by, 1));
      if (places.size() > 1) {
        finding.sentence += fmt::format("; so it is with {} of the same op",
                                        CountText(places.size() - 1, "row", "rows"));
      }
      finding.refute = "an op that ought to read what is left out";
      answer_.findings.push_back(std::move(finding));
    }
  }

  // The names of the rows that are made of it and have no NaN.
  std::vector<std::string> LeftOutBy(std::size_t log_place, std::size_t place,
                                     std::size_t run) const {
    const Log& log = evidence_.logs[log_place];
    std::set<std::size_t> have_it = {place};
    std::vector<std::string> names;
    for (std::size_t one = place + 1; one < log.rows.size(); ++one) {
      const Row& row = log.rows[one];
      const bool reads_it = std::ranges::any_of(
          row.inputs, [&](std::size_t input) { return have_it.contains(input); });
      if (!reads_it || !row.at[run].is_here) continue;
      if (row.at[run].nan > 0) {
        have_it.insert(one);
      } else if (evidence_.IsFloating(row)) {
        names.push_back(RowText(evidence_, log_place, one));
      }
    }
    return names;
  }

  // Between ranks, the place in the program says what came first: what is not made where it is seen
  // follows from what another rank had before.
  void FoldOverRanks() {
    std::vector<std::optional<std::size_t>> above(origins_.size());
    for (std::size_t i = 0; i < origins_.size(); ++i) {
      const Origin& below = origins_[i];
      for (std::size_t j = 0; j < origins_.size() && !below.is_made && !below.run.empty(); ++j) {
        const Origin& one = origins_[j];
        const bool is_before = one.run == below.run && one.session != below.session &&
                               one.graph == below.graph && one.place < below.place;
        if (is_before && (!above[i] || one.place < origins_[*above[i]].place)) above[i] = j;
      }
    }
    std::vector<Finding> kept;
    std::map<std::size_t, std::size_t> place_of;  // of those that are kept
    for (std::size_t i = 0; i < origins_.size(); ++i) {
      if (above[i]) continue;
      place_of[i] = kept.size();
      kept.push_back(std::move(answer_.findings[i]));
    }
    for (std::size_t i = 0; i < origins_.size(); ++i) {
      if (!above[i]) continue;
      std::size_t top = *above[i];  // of a chain whose places descend
      while (above[top]) top = *above[top];
      kept[place_of.at(top)].folded.push_back(std::move(answer_.findings[i]));
    }
    answer_.findings = std::move(kept);
  }

  // Whether all that it read is shown, and finite but for masks.
  static bool IsMade(const Log& log, const Row& row, std::size_t run) {
    // What a collective gives may be another rank's.
    if (row.is_input() || !row.is_covered || ops::IsCollective(row.op)) return false;
    return std::ranges::all_of(row.inputs, [&](std::size_t input) {
      const Seen& seen = log.rows[input].at[run];
      return seen.is_here && !seen.is_bad();
    });
  }

  // Whether what it read has NaN or Inf in padding.
  static bool ReadsPadding(const Log& log, const Row& row, std::size_t run) {
    return std::ranges::any_of(row.inputs, [&](std::size_t input) {
      const Excuse excuse = log.rows[input].at[run].excuse;
      return excuse == Excuse::kPadding || excuse == Excuse::kRowsNotKnown;
    });
  }

  // "in call 3", "between call 3 and 4".
  std::string WhereText(std::size_t log_place, std::size_t place, std::size_t run) const {
    const Log& log = evidence_.logs[log_place];
    const std::string text = "in " + RunText(log, run);
    if (!log.counts_calls) return text;
    const source::Slot& like = evidence_.SlotOf(log.rows[place]);
    source::Source& source = *evidence_.source;
    const std::uint64_t call = log.runs[run].replay;
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

  Finding Describe(std::size_t log_place, std::size_t place, std::size_t run, bool is_made) const {
    const Log& log = evidence_.logs[log_place];
    const Row& row = log.rows[place];
    const Seen& seen = row.at[run];
    const Reason reason = is_made ? Explainer(evidence_, log, row, run).Explain() : Reason{};
    Finding finding{.kind = reason.kind, .place = PlaceAt(evidence_, log_place, place, run)};
    const std::string where = WhereText(log_place, place, run);
    const std::string name = RowText(evidence_, log_place, place);
    if (row.is_input()) {
      finding.sentence =
          fmt::format("{} holds {} {}, when it is read first: nothing in the log wrote it", name,
                      NonfiniteText(seen), where);
    } else if (is_made) {
      finding.sentence = fmt::format("{} made {} {}", name, NonfiniteText(seen), where);
      finding.sentence += reason.text.empty() && ReadsPadding(log, row, run)
                              ? ", and all that it read is finite, but for padding"
                          : reason.text.empty() ? ", and all that it read is finite"
                                                : fmt::format(": {}", reason.text);
    } else if (ops::IsCollective(row.op)) {
      finding.sentence =
          fmt::format("{} holds {} {}, of this rank or another", name, NonfiniteText(seen), where);
    } else {
      finding.sentence = fmt::format("{} holds {} {}, and not all that it read is shown", name,
                                     NonfiniteText(seen), where);
    }
    AddJumps(log_place, place, run, &finding);
    for (const std::size_t input : row.inputs) AddInput(log_place, input, run, &finding);
    if (const std::string growth = GrowthOf(row, run); !growth.empty()) {
      finding.facts.push_back(
          {finding.place, fmt::format("its largest value grew in the {} before: {}",
                                      log.graph_id == 0 ? "calls" : "replays", growth)});
    }
    for (const std::size_t one : DescendantsOf(log, place)) {
      const Seen& later = log.rows[one].at[run];
      if (later.is_here && (later.is_bad() || IsAbsorbedNan(log.rows[one], run))) {
        finding.follows.push_back(one);
      }
    }
    finding.refute = is_made ? "a NaN or Inf in what it read, that no row shows"
                             : "rows of what wrote it, with NaN or Inf in what that read";
    return finding;
  }

  // Of the inputs of the log that it is made of, those that became much larger since the run
  // before: a weight that something wrote between the two.
  void AddJumps(std::size_t log_place, std::size_t place, std::size_t run, Finding* finding) const {
    constexpr double kJump = 100;
    const Log& log = evidence_.logs[log_place];
    std::set<std::size_t> seen;
    for (std::vector<std::size_t> left = {place}; !left.empty();) {
      const std::size_t one = left.back();
      left.pop_back();
      if (!seen.insert(one).second) continue;
      const Row& row = log.rows[one];
      left.insert(left.end(), row.inputs.begin(), row.inputs.end());
      if (!row.is_input() || one == place || !row.at[run].is_here) continue;
      std::size_t before = run;
      while (before > 0 && !row.at[--before].is_here) {
      }
      const Seen &then = row.at[before], &now = row.at[run];
      if (before == run || !then.is_here || !(then.abs_max > 0)) continue;
      if (!(now.abs_max >= kJump * then.abs_max) || now.nonfinite() > 0) continue;
      finding->facts.push_back(
          {PlaceAt(evidence_, log_place, one, run),
           fmt::format("it is made of {}, whose largest value went from {:.3g} in {} to {:.3g}",
                       RowText(evidence_, log_place, one), then.abs_max, RunText(log, before),
                       now.abs_max)});
    }
  }

  void AddInput(std::size_t log_place, std::size_t input, std::size_t run, Finding* finding) const {
    const Row& row = evidence_.logs[log_place].rows[input];
    const Seen& seen = row.at[run];
    if (!seen.is_here) return;
    std::vector<std::string> parts;
    if (seen.nonfinite() > 0) {
      parts.push_back(fmt::format("{} of {} elements", NonfiniteText(seen), row.count));
    }
    if (seen.nonfinite() < row.count) {
      parts.push_back(fmt::format("{:.3g} to {:.3g}", seen.min, seen.max));
    }
    std::string text = fmt::format("it read {}: {}", RowText(evidence_, log_place, input),
                                   fmt::join(parts, ", else "));
    if (seen.zero > 0) text += fmt::format(", {} zeros", seen.zero);
    finding->facts.push_back({PlaceAt(evidence_, log_place, input, run), std::move(text)});
  }

  // Probes that are no rows: what `check` found first.
  void AddProbes() {
    const Check& check = *evidence_.check;
    const auto is_row = [&](std::size_t slot) {
      return evidence_.source->slots()[slot].op.row() != nullptr;
    };
    if (check.first_told) {
      const source::Finding& told = *check.first_told;
      answer_.findings.push_back(
          {.kind = "nonfinite",
           .place = {told.slot, told.replay},
           .sentence =
               fmt::format("{} held {} in {} {}: the daemon saw it, and the tensor is not in here",
                           SlotText(evidence_.source->slots()[told.slot]),
                           told.kind == layout::FindingKind::kNan ? "NaN" : "Inf",
                           ReplayWord(evidence_.source->slots()[told.slot]), told.replay),
           .refute = "nothing: it was recorded when it came"});
    }
    for (const analysis::Finding& one : check.findings) {
      if (one.kind != FindingKind::kNonfinite || one.told || is_row(one.slot)) continue;
      const bool is_first = check.first && check.first->slot == one.slot;
      // Without links nobody knows what follows from what, except that time goes on.
      if (!is_first && !answer_.findings.empty()) {
        continue;
      }
      if (!is_first && check.first && !is_row(check.first->slot)) continue;
      answer_.findings.push_back(
          {.kind = "nonfinite",
           .place = {one.slot, one.first_replay},
           .sentence =
               fmt::format("{} is the first probe that is not finite, in {} {}",
                           SlotText(evidence_.source->slots()[one.slot]),
                           ReplayWord(evidence_.source->slots()[one.slot]), one.first_replay),
           .refute = "an op log, which shows what it was made of: cgdebug-cli run --watch 'op:*' "
                     "--eager -- COMMAND"});
    }
  }

  // Where a finding is, of those of answer_.
  struct Origin {
    std::string run, graph, session;
    std::pair<std::uint64_t, std::uint32_t> place;  // replay or call, and number of the row
    bool is_made = false;
  };

  const Evidence& evidence_;
  Found answer_;
  std::vector<Origin> origins_;
  std::uint64_t snapshots_ = 0;
  bool has_found_ = false;  // in this process
  std::set<std::pair<std::size_t, std::size_t>> told_;
  // Findings, by log, run, op, and what it read.
  std::map<std::tuple<std::size_t, std::size_t, std::string, std::vector<std::size_t>>, std::size_t>
      made_of_;
  // By log and op: rows and runs.
  std::map<std::pair<std::size_t, std::string>, std::vector<std::pair<std::size_t, std::size_t>>>
      absorbed_;
};

}  // namespace

Found FindNonfinite(const Evidence& evidence) { return NonfiniteFinder(evidence).Find(); }

}  // namespace cgdebug::analysis::why
