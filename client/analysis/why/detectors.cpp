#include "client/analysis/why/detectors.h"

#include <fmt/format.h>

#include <algorithm>

namespace cgdebug::analysis::why {

std::span<const Detector> Detectors() {
  static constexpr Detector kDetectors[] = {
      FindFailedKernels, FindPaddingLeaks, FindNonfinite,       FindBrokenCalls,
      FindMovedPointers, FindTornInputs,   FindUnequalReplicas, FindUnorderedOps,
      FindFailedChecks,  FindGrowth,       FindHangs,           FindUnlikeRanks,
      FindBadCaptures,   FindUnreplayed,   FindZeroWeights,     FindIdleOptimizer,
      FindRepeatedNoise, FindOverwritten,  FindForeignWrites,   FindLostWrites,
      FindStaleOutputs,  FindFrozenInputs, FindDeadLayers,      FindUntrained,
      FindUnread};
  return kDetectors;
}

Place PlaceAt(const Evidence& evidence, std::size_t log, std::size_t row, std::size_t run) {
  const Log& of = evidence.logs[log];
  return {of.rows[row].slot, run < of.runs.size() ? of.runs[run].replay : 0, log, row};
}

std::string RowText(const Evidence& evidence, std::size_t log, std::size_t row) {
  return evidence.NameOf(evidence.logs[log].rows[row]);
}

std::string NamesText(const std::vector<std::string>& names, std::size_t most) {
  std::string text;
  const std::size_t shown = names.size() <= most + 1 ? names.size() : most;
  for (std::size_t i = 0; i < shown; ++i) {
    text += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
  }
  if (shown < names.size()) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

bool HasLosses(const Evidence& evidence) {
  return evidence.check->account.lost_count() > 0 || MayLackNewest(evidence);
}

bool MayLackNewest(const Evidence& evidence) {
  // Of what was lost: what is older than a snapshot that is here.
  const recording::Account& account = evidence.check->account;
  const std::string not_kept(ToText(layout::LossCause::kNotKept));
  const auto kept_no_longer = account.lost.find(not_kept);
  std::uint64_t older = kept_no_longer == account.lost.end() ? 0 : kept_no_longer->second;
  for (const source::Gap& gap : evidence.source->Gaps()) {
    if (gap.cause != not_kept && gap.before_replay > 0) older += gap.count;
  }
  const source::Description description = evidence.source->Describe();
  return account.lost_count() > older || account.unread > 0 || description.is_cut_off ||
         !description.damage.empty() || !description.unread.empty();
}

std::string CountText(std::size_t count, std::string_view one, std::string_view several) {
  return fmt::format("{} {}", count, count == 1 ? one : several);
}

void SetClean(std::size_t looked_at, std::string_view one, std::string_view several, Found* found) {
  if (found->findings.empty() && looked_at > 0) found->clean = CountText(looked_at, one, several);
}

Fact ReadFact(const Evidence& evidence, std::size_t log, std::size_t input, std::size_t run,
              std::string_view what) {
  return {PlaceAt(evidence, log, input, run),
          fmt::format("it reads {}, {}", RowText(evidence, log, input), what)};
}

std::string ParameterName(const Evidence& evidence, const Row& row) {
  constexpr std::string_view kInput = "in/";
  const std::string& name = evidence.NameOf(row);
  return name.starts_with(kInput) ? name.substr(kInput.size()) : name;
}

bool IsOfModule(const Evidence& evidence, const Row& row) {
  const std::string& name = evidence.NameOf(row);
  return name.rfind('/') != name.find('/');
}

bool IsStepped(const Evidence& evidence, const Log& log, const Row& row) {
  const std::string& name = evidence.NameOf(row);
  return row.is_input() && IsNamedInput(name) && !name.ends_with(".grad") &&
         std::ranges::any_of(row.readers, [&](std::size_t reader) {
           return evidence.NameOf(log.rows[reader]).starts_with("opt/");
         });
}

std::vector<std::size_t> DescendantsOf(const Log& log, std::size_t row) {
  std::vector<std::size_t> found;
  std::vector<bool> is_made_of_it(log.rows.size(), false);
  is_made_of_it[row] = true;
  for (std::size_t i = row + 1; i < log.rows.size(); ++i) {
    is_made_of_it[i] = std::ranges::any_of(log.rows[i].inputs,
                                           [&](std::size_t input) { return is_made_of_it[input]; });
    if (is_made_of_it[i]) found.push_back(i);
  }
  return found;
}

bool HasPhase(const Evidence& evidence, const Log& log, std::size_t run, std::string_view prefix) {
  return std::ranges::any_of(log.rows, [&](const Row& row) {
    return row.at[run].is_here && evidence.NameOf(row).starts_with(prefix);
  });
}

}  // namespace cgdebug::analysis::why
