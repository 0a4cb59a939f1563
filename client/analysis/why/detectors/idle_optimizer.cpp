// An optimizer that does not step, or whose steps change nothing, or not all that it is given.
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

// What a log without a step of an optimizer has of its weights.
class Unstepped {
 public:
  Unstepped(const Evidence& evidence, std::size_t log_place)
      : evidence_(evidence), log_place_(log_place), log_(evidence.logs[log_place]) {}

  std::optional<Finding> Find() {
    if (HasLosses(evidence_)) return std::nullopt;  // the rows of the steps may be among them
    std::size_t runs = 0;
    for (std::size_t run = 0; run < log_.runs.size(); ++run) {
      if (HasPhase(evidence_, log_, run, "opt/")) return std::nullopt;
      runs += HasPhase(evidence_, log_, run, "bwd/");
    }
    if (runs < kFewestRuns || !FindWeights()) return std::nullopt;
    FindGradients();
    if (!is_reached_) {
      return Describe("no_gradient",
                      "the optimizer has nothing to step: the backward pass reaches "
                      "none of {} in {}, and they stay the same",
                      runs, "weights that are frozen on purpose (requires_grad=False)");
    }
    if (!has_gradients_ || is_used_) return std::nullopt;
    return Describe("not_stepped",
                    "gradients are computed and no optimizer steps: none of {} changes in {}, and "
                    "nothing reads its gradient",
                    runs, "gradients that nobody needs, as where the backward pass is measured");
  }

 private:
  bool StartsWith(const Row& row, std::string_view phase) const {
    return evidence_.NameOf(row).starts_with(phase);
  }

  // Whether there are any, and all stay the same.
  bool FindWeights() {
    for (std::size_t place = 0; place < log_.rows.size(); ++place) {
      const Row& row = log_.rows[place];
      const std::string& name = evidence_.NameOf(row);
      const bool is_weight = name.ends_with("weight") || name.ends_with("bias");
      const bool is_read = std::ranges::any_of(
          row.readers, [&](std::size_t reader) { return StartsWith(log_.rows[reader], "fwd/"); });
      if (!row.is_input() || !IsNamedInput(name) || !is_weight || !is_read) continue;
      const Moves moves = MovesOf(row);
      if (moves.changed > 0) return false;
      if (moves.is_still(kFewestComparisons)) weights_.push_back(place);
    }
    return !weights_.empty();
  }

  // The rows of the backward pass that are the gradient of a weight: by its module and its size.
  // Those that stay the same are of one batch again and again, as a measurement has them.
  void FindGradients() {
    for (const Row& row : log_.rows) {
      if (StartsWith(row, "grad/"))
        is_used_ = is_reached_ = true;  // it is added to what was before
      if (!StartsWith(row, "bwd/")) continue;
      const std::string& name = evidence_.NameOf(row);
      is_reached_ = is_reached_ || name.rfind('/') != name.find('/');
      for (const std::size_t one : weights_) {
        const Row& weight = log_.rows[one];
        const std::string of = ParameterName(evidence_, weight);
        const std::string module = of.substr(0, std::min(of.rfind('.'), of.size()));
        const bool has_size = row.count == weight.count;
        is_reached_ = is_reached_ || (has_size && row.count > 1) ||
                      std::ranges::find(row.inputs, one) != row.inputs.end();
        if (!has_size || !row.readers.empty() || !StartsWith(row, "bwd/" + module + "/")) continue;
        if (MovesOf(row).changed >= kFewestComparisons) has_gradients_ = true;
      }
      // An attack, a penalty or a norm is made of gradients.
      is_used_ = is_used_ || std::ranges::any_of(row.readers, [&](std::size_t reader) {
                   return !StartsWith(log_.rows[reader], "bwd/");
                 });
    }
  }

  Finding Describe(std::string_view kind, fmt::format_string<std::string, std::string> sentence,
                   std::size_t runs, std::string_view refute) const {
    Finding finding{
        .level = Level::kConsistent,
        .kind = kind,
        .place = PlaceAt(evidence_, log_place_, weights_.front(), SIZE_MAX),
        .sentence = fmt::format(sentence, CountText(weights_.size(), "weight", "weights"),
                                RunsWord(log_, runs)),
        .refute = std::string(refute)};
    for (const std::size_t one : weights_) {
      finding.facts.push_back(
          {PlaceAt(evidence_, log_place_, one, SIZE_MAX),
           fmt::format("{}: bit for bit the same in {}", ParameterName(evidence_, log_.rows[one]),
                       RunsWord(log_, RunsOf(log_.rows[one]).size()))});
    }
    return finding;
  }

  const Evidence& evidence_;
  const std::size_t log_place_;
  const Log& log_;
  std::vector<std::size_t> weights_;  // that stay the same
  bool has_gradients_ = false;        // of these, which change and nothing reads
  bool is_reached_ = false;           // the backward pass has a row of a weight, or of its module
  bool is_used_ = false;              // another row than one of the backward pass reads a gradient
};

// The GradScaler of torch begins with a scale that it halves until gradients are finite.
void AddSkipped(const Evidence& evidence, std::size_t log_place, Found* answer) {
  const Log& log = evidence.logs[log_place];
  std::set<std::size_t> runs;
  std::size_t last = 0;  // a row
  for (std::size_t place = 0; place < log.rows.size(); ++place) {
    const Row& row = log.rows[place];
    if (!IsOfGradScaler(evidence.SlotOf(row)) || !evidence.NameOf(row).ends_with(".found_inf")) {
      continue;
    }
    for (const std::size_t run : RunsOf(row)) {
      if (!(row.at[run].abs_max > 0)) return;
      runs.insert(run);
    }
    last = place;
  }
  if (runs.size() < kFewestComparisons) return;
  answer->findings.push_back(
      {.level = Level::kConsistent,
       .kind = "skipped_steps",
       .place = PlaceAt(evidence, log_place, last, *runs.rbegin()),
       .sentence =
           fmt::format("the GradScaler skips all {} steps: in each it finds NaN or Inf in a "
                       "gradient",
                       runs.size()),
       .refute = "a step that it does not skip: it halves a scale that begins too large until "
                 "gradients are finite"});
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
    if (std::optional<Finding> found = Unstepped(evidence, log_place).Find()) {
      answer.findings.push_back(*std::move(found));
    }
    AddSkipped(evidence, log_place, &answer);
  }
  if (answer.findings.empty() && moving > 0) {
    answer.clean = fmt::format("{} parameter{} by the optimizer", moving,
                               moving == 1 ? " is changed" : "s are changed");
  }
  return answer;
}

}  // namespace cgdebug::analysis::why
