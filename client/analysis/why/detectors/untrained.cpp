// Weights that a forward pass reads and no optimizer steps, though it steps others.
#include <fmt/format.h>

#include <algorithm>

#include "client/analysis/why/detectors.h"

namespace cgdebug::analysis::why {
namespace {

bool IsReadIn(const Evidence& evidence, const Log& log, const Row& row, std::string_view phase) {
  return std::ranges::any_of(row.readers, [&](std::size_t reader) {
    return evidence.NameOf(log.rows[reader]).starts_with(phase);
  });
}

// Whether the backward pass has a row in the module of a weight.
bool IsReached(const Evidence& evidence, const Log& log, const std::string& weight) {
  const std::string module = weight.substr(0, std::min(weight.rfind('.'), weight.size()));
  const std::string place = "bwd/" + module + "/", gradient = "grad/" + weight;
  return std::ranges::any_of(log.rows, [&](const Row& row) {
    const std::string& name = evidence.NameOf(row);
    return name.starts_with(place) || name == gradient;
  });
}

Finding Describe(const Evidence& evidence, std::size_t log_place,
                 const std::vector<std::size_t>& rows, std::size_t count, bool is_reached) {
  const Log& log = evidence.logs[log_place];
  std::vector<std::string> names;
  for (const std::size_t row : rows) names.push_back(ParameterName(evidence, log.rows[row]));
  Finding finding{.level = Level::kConsistent,
                  .kind = is_reached ? "not_stepped" : "no_gradient",
                  .place = PlaceAt(evidence, log_place, rows.front(), SIZE_MAX)};
  const char* const what =
      is_reached ? "are not stepped by the optimizer, though the backward pass reaches "
                   "their layers"
                 : "get no gradient, because the backward pass does not reach their "
                   "layers";
  finding.sentence =
      fmt::format("{} of {} weights {}: {}", rows.size(), count, what, NamesText(names));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    finding.facts.push_back(
        {PlaceAt(evidence, log_place, rows[i], SIZE_MAX),
         fmt::format("{}: read by the forward pass, and by no row of an optimizer", names[i])});
  }
  finding.refute = "weights that are frozen on purpose (requires_grad=False)";
  return finding;
}

}  // namespace

Found FindUntrained(const Evidence& evidence) {
  Found answer;
  std::size_t stepped = 0;
  for (std::size_t log_place = 0; log_place < evidence.logs.size(); ++log_place) {
    const Log& log = evidence.logs[log_place];
    std::vector<bool> trains(log.runs.size());
    for (std::size_t run = 0; run < trains.size(); ++run) {
      trains[run] = HasPhase(evidence, log, run, "opt/");
    }
    std::vector<std::size_t> reached, others;
    std::size_t count = 0;
    bool has_stepped = false;
    for (std::size_t place = 0; place < log.rows.size(); ++place) {
      const Row& row = log.rows[place];
      const std::string& name = evidence.NameOf(row);
      const std::vector<std::size_t> runs = RunsOf(row);
      const bool is_weight = name.ends_with("weight") || name.ends_with("bias");
      if (!row.is_input() || !IsNamedInput(name) || !is_weight || row.needs_no_gradient) continue;
      if (!IsReadIn(evidence, log, row, "fwd/") ||
          std::ranges::none_of(runs, [&](std::size_t run) { return trains[run]; })) {
        continue;
      }
      const bool is_stepped = IsStepped(evidence, log, row);
      const bool is_reached = IsReached(evidence, log, ParameterName(evidence, row));
      // Others that change are written, as those of a teacher are that follows its student.
      if (!is_stepped && !is_reached && MovesOf(row).changed > 0) continue;
      ++count;
      if (is_stepped) {
        has_stepped = true;
        ++stepped;
      } else {
        (is_reached ? reached : others).push_back(place);
      }
    }
    if (!has_stepped) continue;
    if (!others.empty()) {
      answer.findings.push_back(Describe(evidence, log_place, others, count, false));
    }
    if (!reached.empty()) {
      answer.findings.push_back(Describe(evidence, log_place, reached, count, true));
    }
  }
  if (answer.findings.empty() && stepped > 0) {
    answer.clean = fmt::format("{} weight{} by the optimizer", stepped,
                               stepped == 1 ? " is stepped" : "s are stepped");
  }
  return answer;
}

}  // namespace cgdebug::analysis::why
