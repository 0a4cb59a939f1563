// An optimizer whose steps change nothing, or not all that it is given.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "client/analysis/ops/masks.h"
#include "client/analysis/why/detectors.h"

namespace cgdebug::analysis::why {
namespace {

// A parameter that an optimizer steps.
struct Stepped {
  std::size_t row = 0;    // as each call finds it
  std::size_t still = 0;  // steps that did not change it
  std::size_t moved = 0;
};

// Which runs have a step of an optimizer that the GradScaler did not skip.
std::vector<bool> StepsOf(const Evidence& evidence, const Log& log) {
  std::vector<bool> steps(log.runs.size());
  for (std::size_t run = 0; run < steps.size(); ++run) {
    steps[run] = HasPhase(evidence, log, run, "opt/");
  }
  for (const Row& row : log.rows) {
    if (!IsOfGradScaler(evidence.SlotOf(row)) || !evidence.NameOf(row).ends_with(".found_inf")) {
      continue;
    }
    for (std::size_t run = 0; run < steps.size(); ++run) {
      if (row.at[run].is_here && row.at[run].abs_max > 0) steps[run] = false;
    }
  }
  return steps;
}

// What the rows of the optimizer read of the backward pass.
std::set<std::size_t> GradientsOf(const Evidence& evidence, const Log& log) {
  constexpr std::array kPhases = {std::string_view("bwd/"), std::string_view("grad/"),
                                  std::string_view("clip/"), std::string_view("scaler/")};
  std::set<std::size_t> gradients;
  for (const Row& row : log.rows) {
    if (!evidence.NameOf(row).starts_with("opt/")) continue;
    for (const std::size_t input : row.inputs) {
      const std::string& name = evidence.NameOf(log.rows[input]);
      if (name.ends_with(".grad") ||
          std::ranges::any_of(kPhases, [&](auto phase) { return name.starts_with(phase); })) {
        gradients.insert(input);
      }
    }
  }
  return gradients;
}

void CountSteps(const Log& log, const std::vector<bool>& steps, Stepped* one) {
  const Row& parameter = log.rows[one->row];
  std::optional<std::size_t> before;
  for (std::size_t run = 0; run < log.runs.size(); ++run) {
    if (!parameter.at[run].is_here) continue;
    if (before && steps[*before]) {
      one->moved += parameter.at[run].change == Change::kChanged;
      one->still += parameter.at[run].change == Change::kSame;
    }
    before = run;
  }
}

Finding Describe(const Evidence& evidence, std::size_t log_place, const std::vector<Stepped>& still,
                 std::size_t count) {
  const Log& log = evidence.logs[log_place];
  const std::set<std::size_t> gradients = GradientsOf(evidence, log);
  double largest = 0;
  for (const std::size_t row : gradients) {
    for (const Seen& seen : log.rows[row].at) {
      if (seen.is_here && seen.abs_max > largest) largest = seen.abs_max;
    }
  }
  std::vector<std::string> names;
  Finding finding{.kind = "idle_optimizer",
                  .place = PlaceAt(evidence, log_place, still.front().row, SIZE_MAX)};
  for (const Stepped& one : still) {
    names.push_back(ParameterName(evidence, log.rows[one.row]));
    finding.facts.push_back(
        {PlaceAt(evidence, log_place, one.row, SIZE_MAX),
         fmt::format("{}: bit for bit the same after each of {} steps", names.back(), one.still)});
  }
  const std::size_t steps = still.front().still;
  const std::string text =
      fmt::format("{} parameter{}", still.size(), still.size() == 1 ? "" : "s");
  if (still.size() < count) {
    finding.level = Level::kConsistent;
    finding.sentence = fmt::format(
        "the optimizer steps {} parameters and never changes {} of them in {} steps: {}", count,
        still.size(), steps, NamesText(names));
    finding.refute = "a learning rate of 0 on purpose for some, or gradients of 0";
  } else if (!gradients.empty() && largest == 0) {
    finding.sentence =
        fmt::format("nothing is trained: all gradients of {} are 0 in {} steps", text, steps);
    finding.refute = "a step with a gradient that is not 0";
  } else {
    finding.sentence = fmt::format(
        "the optimizer changes nothing: {} the same over {} steps, with gradients up to {:.3g}",
        text + (still.size() == 1 ? " is" : " are"), steps, largest);
    finding.refute = "a learning rate of 0 on purpose, as at the start of a warm-up";
  }
  return finding;
}

}  // namespace

Found FindIdleOptimizer(const Evidence& evidence) {
  Found answer;
  std::size_t moving = 0;
  for (std::size_t log_place = 0; log_place < evidence.logs.size(); ++log_place) {
    const Log& log = evidence.logs[log_place];
    const std::vector<bool> steps = StepsOf(evidence, log);
    std::vector<Stepped> still;
    std::size_t count = 0;
    for (std::size_t place = 0; place < log.rows.size(); ++place) {
      if (!IsStepped(evidence, log, log.rows[place])) continue;
      Stepped one{place};
      CountSteps(log, steps, &one);
      count += one.still + one.moved >= kFewestComparisons;
      moving += one.moved > 0;
      if (one.moved == 0 && one.still >= kFewestComparisons) still.push_back(one);
    }
    if (!still.empty()) answer.findings.push_back(Describe(evidence, log_place, still, count));
  }
  if (answer.findings.empty() && moving > 0) {
    answer.clean = fmt::format("{} parameter{} by the optimizer", moving,
                               moving == 1 ? " is changed" : "s are changed");
  }
  return answer;
}

}  // namespace cgdebug::analysis::why
