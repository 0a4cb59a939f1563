// Weights that a forward pass reads and that get no gradient, though others get one.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "client/analysis/why/detectors.h"

namespace cgdebug::analysis::why {

Answer FindUntrained(const Evidence& evidence) {
  constexpr std::string_view kGradient = "grad/", kInput = "in/";
  Answer answer;
  std::size_t looked_at = 0;
  for (std::size_t log_place = 0; log_place < evidence.logs.size(); ++log_place) {
    const Log& log = evidence.logs[log_place];
    std::set<std::string> gradients;
    std::vector<bool> trains(log.runs.size());  // runs with a gradient
    for (const Row& row : log.rows) {
      const std::string& name = evidence.NameOf(row);
      if (!name.starts_with(kGradient)) continue;
      gradients.insert(name.substr(kGradient.size()));
      for (const std::size_t run : RunsOf(row)) trains[run] = true;
    }
    if (gradients.empty()) continue;
    std::vector<std::size_t> without;
    std::size_t weights = 0;
    for (std::size_t place = 0; place < log.rows.size(); ++place) {
      const Row& row = log.rows[place];
      const std::string& name = evidence.NameOf(row);
      const bool is_weight = name.ends_with("weight") || name.ends_with("bias");
      if (!row.is_input() || !IsNamedInput(name) || !is_weight) continue;
      const auto is_training = [&](std::size_t run) { return row.at[run].is_here && trains[run]; };
      std::size_t runs = 0;
      for (std::size_t run = 0; run < trains.size(); ++run) runs += is_training(run);
      const bool is_read = std::ranges::any_of(row.readers, [&](std::size_t reader) {
        return evidence.NameOf(log.rows[reader]).starts_with("fwd/");
      });
      if (!is_read || runs == 0) continue;
      ++weights;
      if (!gradients.contains(name.substr(kInput.size()))) without.push_back(place);
    }
    looked_at += weights;
    if (without.empty()) continue;
    std::vector<std::string> names;
    for (const std::size_t row : without) {
      names.push_back(RowText(evidence, log_place, row).substr(kInput.size()));
    }
    Finding finding{.level = Level::kConsistent,
                    .kind = "no_gradient",
                    .place = PlaceAt(evidence, log_place, without.front(), SIZE_MAX),
                    .sentence = fmt::format("{} of {} weights get no gradient: {}", without.size(),
                                            weights, NamesText(names)),
                    .refute = "weights that are frozen on purpose (requires_grad=False)"};
    for (const std::size_t row : without) {
      finding.facts.push_back(
          {PlaceAt(evidence, log_place, row, SIZE_MAX),
           fmt::format("{}: read by the forward pass, and no row is its gradient",
                       RowText(evidence, log_place, row))});
    }
    answer.findings.push_back(std::move(finding));
  }
  if (answer.findings.empty() && looked_at > 0) {
    answer.clean =
        fmt::format("{} weight{} a gradient", looked_at, looked_at == 1 ? " gets" : "s get");
  }
  return answer;
}

}  // namespace cgdebug::analysis::why
