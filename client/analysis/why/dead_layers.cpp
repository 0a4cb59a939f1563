// Layers that give one value whatever they are given.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "client/analysis/op_log.h"
#include "client/analysis/why/detectors.h"

namespace cgdebug::analysis::why {
namespace {

constexpr std::array kRectifiers = {std::string_view("relu"), std::string_view("clamp_min"),
                                    std::string_view("threshold"), std::string_view("hardtanh"),
                                    std::string_view("clamp")};
constexpr std::array kWeighted = {std::string_view("mm"),
                                  std::string_view("addmm"),
                                  std::string_view("linear"),
                                  std::string_view("convolution"),
                                  std::string_view("native_batch_norm"),
                                  std::string_view("_native_batch_norm_legit"),
                                  std::string_view("native_layer_norm")};
constexpr std::array kLayers = {
    std::string_view("_softmax"),    std::string_view("mm"),          std::string_view("addmm"),
    std::string_view("bmm"),         std::string_view("baddbmm"),     std::string_view("linear"),
    std::string_view("convolution"), std::string_view("sigmoid"),     std::string_view("tanh"),
    std::string_view("gelu"),        std::string_view("silu"),        std::string_view("mul"),
    std::string_view("div"),         std::string_view("hardsigmoid"), std::string_view("softplus")};

}  // namespace

Answer FindDeadLayers(const Evidence& evidence) {
  constexpr std::uint64_t kManyElements = 64;
  Answer answer;
  std::size_t looked_at = 0;
  for (std::size_t log_place = 0; log_place < evidence.logs.size(); ++log_place) {
    const Log& log = evidence.logs[log_place];
    for (std::size_t place = 0; place < log.rows.size(); ++place) {
      const Row& row = log.rows[place];
      const bool is_rectifier = IsOneOf(StemOf(row.op), kRectifiers);
      if (!is_rectifier && !IsOneOf(StemOf(row.op), kLayers)) continue;
      if (!evidence.NameOf(row).starts_with("fwd/") || !evidence.IsFloating(row)) continue;
      const std::vector<std::size_t> runs = RunsOf(row);
      if (row.count < 2 || runs.size() < kFewestRuns) continue;
      ++looked_at;
      // What is one value because all it reads is one follows from that.
      const bool has_moving_input = std::ranges::any_of(row.inputs, [&](std::size_t input) {
        return MovesOf(log.rows[input]).changed > 0 && !IsConstant(log.rows[input]);
      });
      const bool has_constant_input = std::ranges::any_of(row.inputs, [&](std::size_t input) {
        return !log.rows[input].is_input() && IsZero(log.rows[input]);
      });
      if (!IsConstant(row) || !has_moving_input || has_constant_input) continue;
      // Where a distance is rectified, as in a loss with a margin, 0 is what is wanted.
      const bool is_of_weights = std::ranges::any_of(row.inputs, [&](std::size_t input) {
        return IsOneOf(StemOf(log.rows[input].op), kWeighted);
      });
      const bool is_dead =
          is_rectifier && is_of_weights && IsZero(row) && row.count >= kManyElements;
      const Seen& last = row.at[runs.back()];
      Finding finding{
          .level = is_dead ? Level::kShown : Level::kConsistent,
          .kind = "dead_layer",
          .place = PlaceAt(evidence, log_place, place, runs.back()),
          .sentence = fmt::format("{} is {:.3g} throughout, in all of {}, though what it reads "
                                  "changes: nothing of its input gets through",
                                  evidence.NameOf(row), last.min, RunsWord(log, runs.size())),
          .refute = is_rectifier ? "a call in which an element of it is not 0"
                                 : "weights that begin as 0 on purpose"};
      for (const std::size_t input : row.inputs) {
        const Seen& seen = log.rows[input].at[runs.back()];
        if (!seen.is_here) continue;
        finding.facts.push_back(
            {PlaceAt(evidence, log_place, input, runs.back()),
             fmt::format("it reads {}, {:.3g} to {:.3g} in {}", RowText(evidence, log_place, input),
                         seen.min, seen.max, RunText(log, runs.back()))});
      }
      answer.findings.push_back(std::move(finding));
    }
  }
  if (answer.findings.empty() && looked_at > 0) {
    answer.clean =
        fmt::format("{} layer{} something through", looked_at, looked_at == 1 ? " lets" : "s let");
  }
  return answer;
}

}  // namespace cgdebug::analysis::why
