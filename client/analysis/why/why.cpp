#include "client/analysis/why/why.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "client/analysis/why/detectors.h"
#include "client/analysis/why/evidence.h"

namespace cgdebug::analysis::why {
namespace {

// Whether rows could be compared from run to run; a sentence if they could not. What has another
// shape in another run has changed.
std::string FewRunsText(const Evidence& evidence) {
  std::vector<std::string> few;
  for (const Log& log : evidence.logs) {
    std::map<std::pair<std::string, std::string>, std::set<std::size_t>> runs;  // by name and op
    for (const Row& row : log.rows) {
      for (const std::size_t run : RunsOf(row)) {
        runs[{evidence.NameOf(row), row.op}].insert(run);
      }
    }
    const auto has_enough = [&](const Row& row) {
      return runs[{evidence.NameOf(row), row.op}].size() >= kFewestRuns;
    };
    const auto compared = std::ranges::count_if(log.rows, has_enough);
    if (log.rows.empty() || 2 * compared >= static_cast<std::ptrdiff_t>(log.rows.size())) continue;
    few.push_back(compared == 0
                      ? fmt::format("{} has {}", log.graph, RunsWord(log, log.runs.size()))
                      : fmt::format("{} rows of {} of {} come less often",
                                    log.rows.size() - compared, log.rows.size(), log.graph));
  }
  if (few.empty()) return "";
  return fmt::format("what stays the same from run to run, for which {} are needed: {}",
                     kFewestRuns, NamesText(few));
}

// What rows are made of that no row shows, as where the ops of a module are not in the log; empty
// if there is nothing.
std::string UnseenInputsText(const Evidence& evidence) {
  std::size_t count = 0;
  std::string first;
  ForEachRow(evidence, [&](std::size_t log_place, const Log&, std::size_t place, const Row& row) {
    if (row.is_covered) return;
    if (count++ == 0) first = RowText(evidence, log_place, place);
  });
  if (count == 0) return "";
  return fmt::format("who wrote what {} no row shows, the first {}",
                     CountText(count, "row reads and", "rows read and"), first);
}

void AddNotLooked(const Evidence& evidence, const Check& check, Causes* causes) {
  std::vector<std::string>& out = causes->not_looked;
  if (check.snapshots == 0) {
    out.push_back("anything: no snapshot is in it");
  } else if (evidence.logs.empty()) {
    const bool is_recorded = !evidence.source->Recordings().empty();
    out.push_back(
        fmt::format("what each op did: there is no op log. Record one: cgdebug-cli run --watch "
                    "'op:*' --eager {}-- COMMAND",
                    is_recorded ? "-o ops.cgrec " : ""));
  } else if (std::string few = evidence.asks_padding ? "" : FewRunsText(evidence); !few.empty()) {
    out.push_back(std::move(few));
  }
  out.insert(out.end(), check.missing.begin(), check.missing.end());
  if (std::string unseen = UnseenInputsText(evidence); !unseen.empty()) {
    out.push_back(std::move(unseen));
  }
  if (check.unseen_kernels.count > 0) {
    out.push_back(
        fmt::format("{} kernel{} that no row shows, the first: {}", check.unseen_kernels.count,
                    check.unseen_kernels.count == 1 ? "" : "s", check.unseen_kernels.first));
  }
}

// Whether it is about the values of one row, which flow into others.
bool IsOfValues(const Finding& finding) {
  constexpr std::array kKinds = {std::string_view("nonfinite"),   std::string_view("padding_leak"),
                                 std::string_view("domain"),      std::string_view("overflow"),
                                 std::string_view("masked_row"),  std::string_view("dead_layer"),
                                 std::string_view("stale_output")};
  return finding.place.log != SIZE_MAX && std::ranges::find(kKinds, finding.kind) != kKinds.end();
}

// Whether `below` is about the row of `above`, or about values that are made of those.
bool FollowsFrom(const Evidence& evidence, const Finding& below, const Finding& above) {
  const auto is_of_process = [](const Finding& one) {
    return one.place.command == "where" || one.place.command == "graphs";
  };
  if (is_of_process(below) || is_of_process(above)) return false;
  if (below.place.slot == above.place.slot) return true;
  return IsOfValues(above) && IsOfValues(below) && above.place.log == below.place.log &&
         std::ranges::binary_search(DescendantsOf(evidence.logs[above.place.log], above.place.row),
                                    below.place.row);
}

// Puts findings under the first one that they follow from.
std::vector<Finding> Fold(const Evidence& evidence, std::vector<Finding> findings) {
  std::vector<Finding> kept;
  for (Finding& finding : findings) {
    const auto above = std::ranges::find_if(
        kept, [&](const Finding& one) { return FollowsFrom(evidence, finding, one); });
    if (above == kept.end()) {
      kept.push_back(std::move(finding));
    } else {
      above->folded.push_back(std::move(finding));
    }
  }
  return kept;
}

Result<Causes> Find(source::Source& source, std::span<const Detector> detectors,
                    bool asks_padding) {
  const Result<Check> check = RunCheck(source, {});
  if (!check.ok()) return check.error();
  Result<Evidence> evidence = ReadEvidence(source, *check);
  if (!evidence.ok()) return evidence.error();
  evidence->asks_padding = asks_padding;
  Causes causes;
  causes.goes_on = check->goes_on;
  causes.stands_still = source.Describe().stalled_seconds > 0;
  AddNotLooked(*evidence, *check, &causes);
  std::vector<Finding> findings;
  for (const Detector detect : detectors) {
    Found answer = detect(*evidence);
    std::ranges::move(answer.findings, std::back_inserter(findings));
    if (!answer.clean.empty()) causes.clean.push_back(std::move(answer.clean));
    if (!answer.not_looked.empty()) causes.not_looked.push_back(std::move(answer.not_looked));
    if (!answer.not_asked.empty()) causes.not_asked.push_back(std::move(answer.not_asked));
  }
  std::ranges::stable_sort(findings, {}, &Finding::level);
  causes.findings = Fold(*evidence, std::move(findings));
  return causes;
}

}  // namespace

Result<Causes> FindCauses(source::Source& source) { return Find(source, Detectors(), false); }

Result<Causes> FindPaddingCauses(source::Source& source) {
  constexpr Detector kDetectors[] = {FindPaddingLeaks};
  return Find(source, kDetectors, true);
}

}  // namespace cgdebug::analysis::why
