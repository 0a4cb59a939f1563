// An optimizer whose steps change no parameter, or not all that have gradients.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "client/analysis/masks.h"
#include "client/analysis/why/detectors.h"

namespace cgdebug::analysis::why {
namespace {

// A parameter with a gradient.
struct Trained {
  std::string name;
  std::size_t row = 0;       // of the parameter, as each call finds it
  std::size_t gradient = 0;  // row
  std::size_t still = 0;     // steps with a gradient that is not 0 and that did not change it
  std::size_t moved = 0;
  std::size_t zero = 0;  // steps with a gradient of zeros
};

// Which runs have a step of an optimizer that was not skipped.
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

std::vector<Trained> TrainedOf(const Evidence& evidence, const Log& log) {
  constexpr std::string_view kGradient = "grad/", kInput = "in/";
  std::map<std::string, std::size_t> gradients;
  for (std::size_t place = 0; place < log.rows.size(); ++place) {
    const std::string& name = evidence.NameOf(log.rows[place]);
    if (name.starts_with(kGradient)) gradients[name.substr(kGradient.size())] = place;
  }
  std::vector<Trained> trained;
  for (std::size_t place = 0; place < log.rows.size(); ++place) {
    const Row& row = log.rows[place];
    const std::string& name = evidence.NameOf(row);
    if (!row.is_input() || !name.starts_with(kInput)) continue;
    const auto gradient = gradients.find(name.substr(kInput.size()));
    if (gradient == gradients.end()) continue;
    trained.push_back({gradient->first, place, gradient->second});
  }
  return trained;
}

void CountSteps(const Log& log, const std::vector<bool>& steps, Trained* one) {
  const Row& parameter = log.rows[one->row];
  const Row& gradient = log.rows[one->gradient];
  std::optional<std::size_t> before;
  for (std::size_t run = 0; run < log.runs.size(); ++run) {
    if (!parameter.at[run].is_here) continue;
    if (before && steps[*before] && gradient.at[*before].is_here) {
      const Change change = parameter.at[run].change;
      const bool is_zero =
          gradient.at[*before].abs_max == 0 && gradient.at[*before].nonfinite() == 0;
      if (change == Change::kChanged) ++one->moved;
      if (change == Change::kSame) ++(is_zero ? one->zero : one->still);
    }
    before = run;
  }
}

}  // namespace

Answer FindIdleOptimizer(const Evidence& evidence) {
  Answer answer;
  std::size_t moving = 0;
  for (std::size_t log_place = 0; log_place < evidence.logs.size(); ++log_place) {
    const Log& log = evidence.logs[log_place];
    const std::vector<bool> steps = StepsOf(evidence, log);
    std::vector<Trained> all = TrainedOf(evidence, log);
    std::vector<const Trained*> still, without;
    std::size_t moved = 0;
    for (Trained& one : all) {
      CountSteps(log, steps, &one);
      if (one.moved > 0) {
        ++moved;
      } else if (one.still >= kFewestComparisons) {
        still.push_back(&one);
      } else if (one.zero >= kFewestComparisons) {
        without.push_back(&one);
      }
    }
    moving += moved;
    if (still.empty() && (without.empty() || moved > 0)) continue;
    const bool is_zero = still.empty();
    const std::vector<const Trained*>& found = is_zero ? without : still;
    const Trained& first = *found.front();
    const std::size_t count = is_zero ? first.zero : first.still;
    std::vector<std::string> names;
    for (const Trained* one : found) names.push_back(one->name);
    Finding finding{.kind = "idle_optimizer",
                    .place = PlaceAt(evidence, log_place, first.row, SIZE_MAX)};
    if (is_zero) {
      finding.sentence =
          fmt::format("nothing is trained: the gradients of all {} parameters are 0 in {} steps",
                      found.size(), count);
      finding.refute = "a step in which a gradient is not 0";
    } else if (moved == 0) {
      finding.sentence = fmt::format(
          "the optimizer changes nothing: {} parameter{} with gradients stay{} the same over {} "
          "steps",
          found.size(), found.size() == 1 ? "" : "s", found.size() == 1 ? "s" : "", count);
      finding.refute = "a learning rate of 0 on purpose, as at the start of a warm-up";
    } else {
      finding.level = Level::kConsistent;
      finding.sentence = fmt::format(
          "{} of {} parameters never change over {} steps, though their gradients are not 0: {}",
          found.size(), all.size(), count, NamesText(names));
      finding.refute = "parameters that were kept from the optimizer on purpose";
    }
    for (const Trained* one : found) {
      const std::vector<std::size_t> runs = RunsOf(log.rows[one->gradient]);
      const Seen& gradient = log.rows[one->gradient].at[runs.back()];
      finding.facts.push_back(
          {PlaceAt(evidence, log_place, one->row, SIZE_MAX),
           fmt::format("{}: bit for bit the same after each of {} steps; its gradient goes up to "
                       "{:.3g}",
                       one->name, is_zero ? one->zero : one->still, gradient.abs_max)});
    }
    answer.findings.push_back(std::move(finding));
  }
  if (answer.findings.empty() && moving > 0) {
    answer.clean = fmt::format("{} parameter{} by the optimizer", moving,
                               moving == 1 ? " is changed" : "s are changed");
  }
  return answer;
}

}  // namespace cgdebug::analysis::why
