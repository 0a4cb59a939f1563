// Which op made the first NaN or Inf of values that were finite, and of what.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "client/analysis/why/detectors.h"
#include "client/analysis/why/nonfinite_finding.h"
#include "daemon/core/ops/op_traits.h"

namespace cgdebug::analysis::why {
namespace {

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
        answer_.findings[first->second].folded.push_back(
            DescribeNonfinite(evidence_, log_place, place, run, is_made));
        continue;
      }
      answer_.findings.push_back(DescribeNonfinite(evidence_, log_place, place, run, is_made));
      const source::Slot& slot = evidence_.SlotOf(row);
      origins_.push_back({.run = slot.run,
                          .graph = log.graph,
                          .session = log.session,
                          .place = {log.runs[run].replay, row.number},
                          .is_made = is_made});
    }
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
      Finding finding =
          DescribeNonfinite(evidence_, log_place, place, run, IsMade(log, log.rows[place], run));
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
