// NaN and Inf of padding rows that reach real ones.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "client/analysis/ops/op_log.h"
#include "client/analysis/why/detectors.h"

namespace cgdebug::analysis::why {
namespace {

// One run of a log in which it is known which rows are real.
class Leak {
 public:
  Leak(const Evidence& evidence, std::size_t log_place, std::size_t run)
      : evidence_(evidence), log_place_(log_place), log_(evidence.logs[log_place]), run_(run) {
    has_rows_.resize(log_.rows.size());
    for (std::size_t place = 0; place < log_.rows.size(); ++place) {
      const Row& row = log_.rows[place];
      has_rows_[place] = IsKnown(place) || std::ranges::any_of(row.inputs, [&](std::size_t input) {
                           return has_rows_[input];
                         });
      if (!Here(place)) continue;
      if (IsKnown(place)) {
        ++known_;
        if (first_padding_ == SIZE_MAX && InPadding(place) > 0) first_padding_ = place;
      } else if (has_rows_[place]) {
        ++unknown_;
        if (first_unknown_ == SIZE_MAX && IsBad(place)) first_unknown_ = place;
      }
      if (first_real_ == SIZE_MAX && IsKnown(place) && InReal(place) > 0 && Came(place)) {
        first_real_ = place;
      }
    }
  }

  std::size_t known() const { return known_; }
  std::size_t unknown() const { return unknown_; }
  std::size_t first_padding() const { return first_padding_; }
  // A row that has NaN or Inf, and nobody knows in which of its rows.
  std::size_t first_unknown() const { return first_unknown_; }
  bool found() const { return first_real_ != SIZE_MAX; }

  Finding Describe() const {
    const std::size_t mixer = *made_of_.begin();
    const Row& row = log_.rows[mixer];
    const bool is_covered = std::ranges::all_of(
        made_of_, [&](std::size_t place) { return log_.rows[place].is_covered; });
    Finding finding{
        .level = is_covered ? Level::kShown : Level::kConsistent,
        .kind = "padding_leak",
        .place = PlaceAt(evidence_, log_place_, mixer, run_),
        .sentence = fmt::format(
            "{} ({}) lets NaN or Inf of padding into real rows in {}: what it reads is finite in "
            "the real ones",
            RowText(evidence_, log_place_, mixer), row.op, RunText(log_, run_)),
        .refute = "cgdebug.testing.poison(), which runs the call again with other padding"};
    for (const std::size_t place : made_of_) {
      for (const std::size_t input : log_.rows[place].inputs) {
        if (!IsKnown(input) || InPadding(input) == 0) continue;
        finding.facts.push_back(
            ReadFact(evidence_, log_place_, input, run_,
                     fmt::format("which has {} NaN or Inf in {} padding row{}, and none elsewhere",
                                 InPadding(input), log_.runs[run_].padding,
                                 log_.runs[run_].padding == 1 ? "" : "s")));
      }
    }
    finding.facts.push_back(
        {PlaceAt(evidence_, log_place_, first_real_, run_),
         fmt::format("the first real rows: {} has {} NaN or Inf in them",
                     RowText(evidence_, log_place_, first_real_), InReal(first_real_))});
    for (const std::size_t one : DescendantsOf(log_, mixer)) {
      if (Here(one) && log_.rows[one].at[run_].nonfinite() > 0) finding.follows.push_back(one);
    }
    return finding;
  }

 private:
  bool Here(std::size_t place) const { return log_.rows[place].at[run_].is_here; }
  bool IsKnown(std::size_t place) const {
    const std::vector<Padding>& padding = log_.rows[place].padding;
    return run_ < padding.size() && padding[run_].is_here;
  }
  // Not finite, and no mask.
  bool IsBad(std::size_t place) const {
    const Seen& seen = log_.rows[place].at[run_];
    return seen.nonfinite() > 0 &&
           (seen.excuse == Excuse::kNone || seen.excuse == Excuse::kPadding ||
            seen.excuse == Excuse::kRowsNotKnown);
  }
  std::uint64_t InPadding(std::size_t place) const {
    return IsBad(place) ? log_.rows[place].padding[run_].nonfinite : 0;
  }
  std::uint64_t InReal(std::size_t place) const {
    return IsBad(place) ? log_.rows[place].at[run_].nonfinite() - InPadding(place) : 0;
  }

  // Whether NaN or Inf of real rows comes from padding alone: it is made of rows that are finite in
  // the real ones, and by an op that may read other rows. Fills made_of_.
  bool Came(std::size_t place) {
    made_of_ = {place};
    bool reads_padding = false;
    bool is_mixed = log_.rows[place].padding[run_].mixes;
    for (std::size_t one = place + 1; one-- > 0;) {
      if (!made_of_.contains(one)) continue;
      for (const std::size_t input : log_.rows[one].inputs) {
        if (!Here(input)) return false;
        if (!IsBad(input)) continue;
        if (IsKnown(input)) {
          if (InReal(input) > 0) return false;
          reads_padding = true;
        } else if (has_rows_[input]) {
          made_of_.insert(input);
          is_mixed = true;
        } else {
          return false;
        }
      }
    }
    return reads_padding && is_mixed;
  }

  const Evidence& evidence_;
  const std::size_t log_place_;
  const Log& log_;
  const std::size_t run_;
  std::vector<bool> has_rows_;  // whether it is made of rows of the batch
  std::size_t known_ = 0, unknown_ = 0;
  std::size_t first_padding_ = SIZE_MAX, first_unknown_ = SIZE_MAX, first_real_ = SIZE_MAX;
  // The row with the first NaN or Inf in real rows, and those between it and the padding whose rows
  // are not known.
  std::set<std::size_t> made_of_;
};

// A greatest value over all rows that is in no real one, if rows of the batch are made of it, as
// those are that a scale is divided by.
std::optional<Finding> FindGreatestOfPadding(const Evidence& evidence, std::size_t log_place,
                                             std::size_t run) {
  const Log& log = evidence.logs[log_place];
  const auto is_known = [&](const Row& row) {
    return run < row.padding.size() && row.padding[run].is_here;
  };
  for (std::size_t place = 0; place < log.rows.size(); ++place) {
    const Row& row = log.rows[place];
    const std::string_view base = BaseOf(row.op);
    if ((base != "amax" && base != "max") || row.inputs.empty() || !row.at[run].is_here ||
        is_known(row)) {
      continue;
    }
    const Row& read = log.rows[row.inputs.front()];
    if (!is_known(read) || !evidence.IsFloating(read) || read.at[run].nonfinite() > 0) continue;
    const double greatest = row.at[run].max;
    if (greatest <= 0 || read.padding[run].abs_max != greatest ||
        read.at[run].abs_max != greatest) {
      continue;
    }
    std::vector<std::size_t> follows = DescendantsOf(log, place);
    if (std::ranges::none_of(follows, [&](std::size_t one) { return is_known(log.rows[one]); })) {
      continue;
    }
    return Finding{
        .level = row.is_covered ? Level::kShown : Level::kConsistent,
        .kind = "padding_leak",
        .place = PlaceAt(evidence, log_place, place, run),
        .sentence =
            fmt::format("{} ({}) takes {:.6g} from a padding row in {}, and real rows are "
                        "made of it",
                        RowText(evidence, log_place, place), row.op, greatest, RunText(log, run)),
        .facts = {ReadFact(evidence, log_place, row.inputs.front(), run,
                           fmt::format("whose {} padding row{} up to that", log.runs[run].padding,
                                       log.runs[run].padding == 1 ? " goes" : "s go"))},
        .follows = std::move(follows),
        .refute = "a real row that has the same value"};
  }
  return std::nullopt;
}

// What is found in all logs, and what could not be looked at.
class PaddingLeaks {
 public:
  explicit PaddingLeaks(const Evidence& evidence) : evidence_(evidence) {}

  Found Find() {
    for (std::size_t log_place = 0; log_place < evidence_.logs.size(); ++log_place) {
      const Log& log = evidence_.logs[log_place];
      if (log.graph_id != 0 && std::ranges::none_of(log.runs, &Run::tells_rows)) {
        graphs_.push_back(log.graph);
      } else {
        LookAt(log_place);
      }
    }
    if (told_ == 0 && !evidence_.asks_padding) return std::move(found_);
    if (told_ == 0) {
      not_looked_.push_back("which rows are padding: nothing called cgdebug.valid_rows()");
    } else if (told_ < runs_) {
      not_looked_.push_back(fmt::format(
          "the padding of {} of {} calls, for which cgdebug.valid_rows() was not called",
          runs_ - told_, runs_));
    }
    if (!graphs_.empty()) {
      not_looked_.push_back(
          fmt::format("padding in {}: rows not known: in a captured graph", NamesText(graphs_)));
    }
    if (found_.findings.empty() && told_ > 0) {
      found_.clean = fmt::format("no NaN or Inf of padding reached a real row, in {} rows{}",
                                 known_, in_padding_);
    }
    found_.not_looked = fmt::format("{}", fmt::join(not_looked_, "; "));
    return std::move(found_);
  }

 private:
  void LookAt(std::size_t log_place) {
    const Log& log = evidence_.logs[log_place];
    bool is_found = false;
    bool is_in_doubt = false;  // one sentence is enough
    std::optional<Finding> greatest;
    for (std::size_t run = 0; run < log.runs.size(); ++run) {
      ++runs_;
      told_ += log.runs[run].tells_rows ? 1 : 0;
      if (log.runs[run].padding == 0) continue;
      const Leak leak(evidence_, log_place, run);
      known_ += leak.known();
      if (in_padding_.empty() && leak.first_padding() != SIZE_MAX) {
        in_padding_ =
            fmt::format("; padding has NaN or Inf first in {}, {}",
                        RowText(evidence_, log_place, leak.first_padding()), RunText(log, run));
      }
      if (is_found) continue;
      if (leak.found()) {
        is_found = true;
        found_.findings.push_back(leak.Describe());
        continue;
      }
      if (!greatest) greatest = FindGreatestOfPadding(evidence_, log_place, run);
      if (!greatest && !is_in_doubt) {
        std::string doubt = DoubtText(leak, log_place, run);
        is_in_doubt = !doubt.empty();
        if (is_in_doubt) not_looked_.push_back(std::move(doubt));
      }
    }
    // NaN that went the same way says more.
    if (!is_found && greatest) found_.findings.push_back(*std::move(greatest));
  }

  // Why padding may have leaked unseen; empty if it cannot.
  std::string DoubtText(const Leak& leak, std::size_t log_place, std::size_t run) const {
    const std::string run_text = RunText(evidence_.logs[log_place], run);
    if (leak.known() == 0) {
      return fmt::format("the padding of {}: no row of the log is known by the rows of the batch",
                         run_text);
    }
    if (leak.first_unknown() == SIZE_MAX) return {};
    return fmt::format(
        "whether padding reached real rows in {}: {} of {} rows of the log are not known by the "
        "rows of the batch, and {} of these has NaN or Inf",
        run_text, leak.unknown(), leak.known() + leak.unknown(),
        RowText(evidence_, log_place, leak.first_unknown()));
  }

  const Evidence& evidence_;
  Found found_;
  std::vector<std::string> not_looked_, graphs_;
  std::size_t runs_ = 0, told_ = 0, known_ = 0;
  std::string in_padding_;
};

}  // namespace

Found FindPaddingLeaks(const Evidence& evidence) { return PaddingLeaks(evidence).Find(); }

}  // namespace cgdebug::analysis::why
