// Ops whose result stays the same although what they read changes.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "client/analysis/op_log.h"
#include "client/analysis/why/detectors.h"

namespace cgdebug::analysis::why {
namespace {

// Each element that they read counts in the result, unless it is multiplied by 0.
constexpr std::array kProducts = {std::string_view("mm"),     std::string_view("addmm"),
                                  std::string_view("bmm"),    std::string_view("baddbmm"),
                                  std::string_view("linear"), std::string_view("convolution")};
// Their result may stay the same: they round, choose or compare, or look at no value.
constexpr std::array kBlunt = {std::string_view("_to_copy"),
                               std::string_view("arange"),
                               std::string_view("argmax"),
                               std::string_view("amax"),
                               std::string_view("amin"),
                               std::string_view("bernoulli"),
                               std::string_view("ceil"),
                               std::string_view("clamp"),
                               std::string_view("clamp_max"),
                               std::string_view("clamp_min"),
                               std::string_view("constant_pad_nd"),
                               std::string_view("copy"),
                               std::string_view("embedding"),
                               std::string_view("fill"),
                               std::string_view("floor"),
                               std::string_view("floor_divide"),
                               std::string_view("fmod"),
                               std::string_view("full_like"),
                               std::string_view("gather"),
                               std::string_view("hardtanh"),
                               std::string_view("heaviside"),
                               std::string_view("index"),
                               std::string_view("index_put"),
                               std::string_view("index_select"),
                               std::string_view("masked_fill"),
                               std::string_view("max"),
                               std::string_view("max_pool2d_with_indices"),
                               std::string_view("maximum"),
                               std::string_view("min"),
                               std::string_view("minimum"),
                               std::string_view("mul"),
                               std::string_view("nan_to_num"),
                               std::string_view("new_full"),
                               std::string_view("new_ones"),
                               std::string_view("new_zeros"),
                               std::string_view("nll_loss_backward"),
                               std::string_view("nll_loss_forward"),
                               std::string_view("normal"),
                               std::string_view("ones_like"),
                               std::string_view("rand_like"),
                               std::string_view("randn_like"),
                               std::string_view("relu"),
                               std::string_view("remainder"),
                               std::string_view("round"),
                               std::string_view("scatter"),
                               std::string_view("select_backward"),
                               std::string_view("select_scatter"),
                               std::string_view("sign"),
                               std::string_view("slice_backward"),
                               std::string_view("slice_scatter"),
                               std::string_view("sort"),
                               std::string_view("threshold"),
                               std::string_view("threshold_backward"),
                               std::string_view("topk"),
                               std::string_view("tril"),
                               std::string_view("triu"),
                               std::string_view("trunc"),
                               std::string_view("uniform"),
                               std::string_view("where"),
                               std::string_view("zero"),
                               std::string_view("zeros_like")};

bool MayStay(const Evidence& evidence, const Row& row) {
  const std::string& name = evidence.NameOf(row);
  // What gathers in place, and what an optimizer steps, may move by less than a digit.
  const bool is_state =
      name.starts_with("opt/") || name.starts_with("scaler/") || name.starts_with("clip/");
  return row.is_input() || is_state || !evidence.IsFloating(row) || row.count < 2 ||
         IsOneOf(StemOf(row.op), kBlunt);
}

// In how many runs it is the same as before although an input of floating type is not. -1: there is
// one in which it changed, or for which that is not known.
int StaleRunsOf(const Evidence& evidence, const Log& log, const Row& row) {
  int stale = 0;
  bool is_first = true;
  for (std::size_t run = 0; run < row.at.size(); ++run) {
    const Seen& seen = row.at[run];
    if (!seen.is_here || std::exchange(is_first, false)) continue;
    if (seen.change != Change::kSame) return -1;
    stale += std::ranges::any_of(row.inputs, [&](std::size_t input) {
      return log.rows[input].at[run].change == Change::kChanged &&
             evidence.IsFloating(log.rows[input]);
    });
  }
  return stale;
}

// Whether a change of what it reads must change it: nothing in it is 0, and not only weights move,
// whose last digits a product may round away.
bool MustFollow(const Evidence& evidence, const Log& log, const Row& row) {
  const auto is_full = [&](std::size_t input) {
    return evidence.IsFloating(log.rows[input]) &&
           std::ranges::all_of(log.rows[input].at, [](const Seen& seen) {
             return seen.zero == 0 && seen.nonfinite() == 0;
           });
  };
  const auto is_moving_value = [&](std::size_t input) {
    return !IsNamedInput(evidence.NameOf(log.rows[input])) &&
           MovesOf(log.rows[input]).changed >= kFewestComparisons;
  };
  return IsOneOf(StemOf(row.op), kProducts) && row.is_covered &&
         std::ranges::all_of(row.inputs, is_full) &&
         std::ranges::any_of(row.inputs, is_moving_value);
}

}  // namespace

Answer FindStaleOutputs(const Evidence& evidence) {
  Answer answer;
  std::size_t looked_at = 0;
  for (std::size_t log_place = 0; log_place < evidence.logs.size(); ++log_place) {
    const Log& log = evidence.logs[log_place];
    for (std::size_t place = 0; place < log.rows.size(); ++place) {
      const Row& row = log.rows[place];
      if (MayStay(evidence, row) || row.inputs.empty()) continue;
      const std::vector<std::size_t> runs = RunsOf(row);
      if (runs.size() < kFewestRuns) continue;
      ++looked_at;
      const int stale = StaleRunsOf(evidence, log, row);
      const bool is_told = IsConstant(row) || row.at[runs.back()].nonfinite() > 0;
      if (stale < static_cast<int>(kFewestComparisons) || is_told) continue;
      Finding finding{
          .level = MustFollow(evidence, log, row) ? Level::kShown : Level::kConsistent,
          .kind = "stale_output",
          .place = PlaceAt(evidence, log_place, place, runs.back()),
          .sentence = fmt::format("{} ({}) does not follow: it is the same in {}, though what it "
                                  "reads changes in {} of them",
                                  evidence.NameOf(row), row.op, RunsWord(log, runs.size()), stale),
          .refute = "an op whose result does not depend on these values"};
      for (const std::size_t input : row.inputs) {
        const Moves moves = MovesOf(log.rows[input]);
        finding.facts.push_back({PlaceAt(evidence, log_place, input, runs.back()),
                                 fmt::format("it reads {}, which changes {} times",
                                             RowText(evidence, log_place, input), moves.changed)});
      }
      answer.findings.push_back(std::move(finding));
    }
  }
  if (answer.findings.empty() && looked_at > 0) {
    answer.clean = fmt::format("{} row{} what they are made of", looked_at,
                               looked_at == 1 ? " follows" : "s follow");
  }
  return answer;
}

}  // namespace cgdebug::analysis::why
