#include "client/analysis/diff/diff_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "client/analysis/diff/pattern.h"
#include "client/analysis/wording.h"
#include "daemon/core/base/display_width.h"
#include "daemon/core/numerics/format.h"

namespace cgdebug::analysis {
namespace {

using source::Slot;
using source::Source;

constexpr std::size_t kMaxMissingLines = 8;

const char* PositionWord(const Diff& diff) { return diff.by_step ? "step" : "replay"; }

std::string ToleranceText(const Slot& slot, const numerics::CompareOptions& tolerance) {
  if (tolerance.bitwise) return "bit for bit";
  const numerics::CompareOptions standard = numerics::DefaultTolerances(slot.dtype);
  const bool is_standard = standard.rtol == tolerance.rtol && standard.atol == tolerance.atol;
  const layout::DtypeInfo* info = layout::FindDtype(slot.dtype);
  return fmt::format(
      "rtol {} atol {}{}", numerics::FormatRepr(tolerance.rtol),
      numerics::FormatRepr(tolerance.atol),
      is_standard && info != nullptr ? fmt::format(" ({} defaults)", info->short_name) : "");
}

std::string StatsLine(Source& source, const source::Snapshot& snapshot) {
  const Slot& slot = source.slots()[snapshot.slot];
  const Result<numerics::Stats> stats = source::StatsOf(source, snapshot);
  if (!stats.ok()) return source::TypeText(slot);
  return numerics::FormatTensorLine(slot.dtype, slot.shape, *stats, {.part = slot.part});
}

// No two values differ and still they mismatch: NaN equals nothing, not even itself.
bool IsNanInBoth(const Slot& slot, const Difference& first) {
  const layout::DtypeInfo* info = layout::FindDtype(slot.dtype);
  const numerics::CompareResult& result = *first.values;
  return info != nullptr && info->is_floating && !first.tolerance.bitwise &&
         UlpText(result).empty() && result.mismatched > 0 &&
         result.nan_in_actual + result.nan_in_expected == 0;
}

// What differs first, and where.
std::string FirstHead(Source& a, const Diff& diff) {
  const Difference& first = *diff.first;
  const ProbeDiff& probe = diff.probes[first.pair];
  const Slot& slot = a.slots()[probe.a];
  std::string text =
      fmt::format("first difference: {} {}, {}", diff.by_step ? "step" : ReplayWord(slot),
                  first.position, SlotText(slot));
  if (slot.in_body && (!slot.counts_calls() || first.a.key.iteration > 0)) {
    text += fmt::format(", iteration {}", first.a.key.iteration);
  }
  if (slot.rank >= 0) text += fmt::format(", rank {}", slot.rank);
  return text + fmt::format(" (probe {} of {})", first.pair + 1, diff.probes.size());
}

std::string FirstText(Source& a, Source& b, const Diff& diff) {
  const Difference& first = *diff.first;
  const Slot& slot = a.slots()[diff.probes[first.pair].a];
  std::string text = FirstHead(a, diff);
  if (first.values) text += "          " + ToleranceText(slot, first.tolerance);
  if (diff.by_step)
    text += fmt::format("  A replay {}, B replay {}", ReplayText(slot, first.a.key),
                        ReplayText(slot, first.b.key));
  if (!slot.part.empty()) text += "\nindexes are those" + source::OfPart(slot);
  text += "\n" + (first.values ? first.values->text.lines : first.reason) + "\n";
  if (first.values) {
    const std::string pattern = PatternText(*first.values, slot.shape);
    if (!pattern.empty()) text += "pattern: " + pattern + "\n";
    const std::string ulp = UlpText(*first.values);
    if (!ulp.empty()) text += "ulp apart: " + ulp + "\n";
    if (IsNanInBoth(slot, first)) {
      text += "both are NaN where they mismatch: --equal-nan takes that for equal\n";
    }
  }
  for (const Difference::Element& element : first.largest) {
    text += fmt::format("  {:<20} A {}  B {}\n", numerics::FormatIndex(element.index, slot.shape),
                        element.a, element.b);
  }
  text += fmt::format("A: {}\nB: {}\n", StatsLine(a, first.a), StatsLine(b, first.b));
  text +=
      fmt::format("before it: {} agree{}.   after it in the same {}: {} differ{}.",
                  Count(first.equal_before, "probe"), first.equal_before == 1 ? "s" : "",
                  PositionWord(diff), first.different_after, first.different_after == 1 ? "s" : "");
  return text;
}

// How it is known that they agree; with counts if there are several ways.
std::string EqualText(const Equal& equal) {
  const std::pair<std::uint64_t, const char*> ways[] = {
      {equal.bits, "bit for bit"},
      {equal.tolerance, "within the tolerance"},
      {equal.hashes, "by recorded hash; values not read"},
      {equal.statistics, "by hash and statistics; values were not recorded"}};
  std::string text = equal.total() == 0 ? "nothing was compared" : "";
  for (const auto& [count, how] : ways) {
    if (count > 0 && count == equal.total()) return how;
    if (count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, how);
  }
  return text;
}

std::string Summary(const Diff& diff) {
  const auto probes = static_cast<std::uint64_t>(
      std::count_if(diff.probes.begin(), diff.probes.end(),
                    [](const ProbeDiff& probe) { return probe.different > 0; }));
  const std::string scope = fmt::format("{} of {} over {}", Count(diff.compared, "snapshot"),
                                        Count(diff.probes.size(), "probe"),
                                        Count(diff.position_count, PositionWord(diff)));
  const std::string equal = EqualText(diff.equal);
  switch (diff.verdict()) {
    case Diff::Verdict::kSameInPart:
      return fmt::format("same in the part{}: {}, {}. The rest of {} was not recorded",
                         diff.in_part == diff.compared
                             ? ""
                             : fmt::format(" (of {})", Count(diff.in_part, "snapshot")),
                         scope, equal, diff.in_part == 1 ? "it" : "them");
    case Diff::Verdict::kSame:
      return diff.equal.hashes == diff.compared || diff.equal.statistics == diff.compared
                 ? fmt::format("same {}: {}", equal, scope)
                 : fmt::format("same: {}, {}", scope, equal);
    case Diff::Verdict::kIncomplete:
      return diff.compared == 0
                 ? std::string("inconclusive: nothing was compared")
                 : fmt::format("inconclusive: no difference in {} ({}), but {} not compared", scope,
                               equal,
                               diff.missing_count == 1
                                   ? "1 snapshot was"
                                   : fmt::format("{} snapshots were", diff.missing_count));
    case Diff::Verdict::kDifferent:
      break;
  }
  return fmt::format("different: {} of {} compared, in {}{}", diff.different,
                     Count(diff.compared, "snapshot"), Count(probes, "probe"),
                     diff.stopped_early ? fmt::format("; nothing after {} {} was looked at",
                                                      PositionWord(diff), diff.first->position)
                                        : "");
}

std::string MissingText(const Diff& diff) {
  std::string text;
  for (std::size_t i = 0; i < std::min(diff.missing.size(), kMaxMissingLines); ++i) {
    text += "\n  not compared: " + diff.missing[i];
  }
  if (diff.missing.size() > kMaxMissingLines) {
    text += fmt::format("\n  and {} more like these (--json has them all)",
                        diff.missing.size() - kMaxMissingLines);
  }
  return text;
}

Json ResultJson(const numerics::CompareResult& result) {
  const auto difference = [](const numerics::Difference& greatest) -> Json {
    return {{"value", JsonNumber(greatest.value)}, {"index", greatest.index}};
  };
  return {{"mismatched", result.mismatched},         {"elements", result.compared},
          {"first_mismatch", result.first_mismatch}, {"max_abs", difference(result.max_abs)},
          {"max_rel", difference(result.max_rel)},   {"ulp", result.ulp},
          {"nan_in_a", result.nan_in_actual},        {"nan_in_b", result.nan_in_expected},
          {"message", result.text.Whole()}};
}

Json EqualJson(const Equal& equal) {
  return {{"bits", equal.bits},
          {"tolerance", equal.tolerance},
          {"hashes", equal.hashes},
          {"statistics", equal.statistics}};
}

Json FirstJson(Source& a, const Diff& diff) {
  if (!diff.first) return nullptr;
  const Difference& first = *diff.first;
  const Slot& slot = a.slots()[diff.probes[first.pair].a];
  Json largest = Json::array();
  for (const Difference::Element& element : first.largest) {
    largest.push_back({{"index", element.index}, {"a", element.a}, {"b", element.b}});
  }
  Json json = {{"probe", slot.probe},
               {"invocation", slot.invocation},
               {"rank", slot.rank},
               {"graph", slot.graph},
               {"shape", slot.shape},
               {"part", slot.part},
               {"place", first.pair + 1},
               {"replay", first.a.key.replay},
               {"iteration", first.a.key.iteration},
               {"replay_b", first.b.key.replay},
               {"iteration_b", first.b.key.iteration},
               {"step", first.a.step},
               {"reason", first.reason},
               {"statistics", first.statistics},
               {"pattern", first.values ? PatternText(*first.values, slot.shape) : ""},
               {"rtol", JsonNumber(first.tolerance.rtol)},
               {"atol", JsonNumber(first.tolerance.atol)},
               {"equal_before", first.equal_before},
               {"different_after", first.different_after},
               {"largest", std::move(largest)}};
  json["values"] = first.values ? ResultJson(*first.values) : Json(nullptr);
  return json;
}

}  // namespace

Answer DiffAnswer(Source& a, Source& b, const Diff& diff) {
  std::string text = diff.first ? FirstText(a, b, diff) + "\n" : "";
  std::map<int, bool> ranks;
  for (const ProbeDiff& probe : diff.probes) {
    bool& differs = ranks[a.slots()[probe.a].rank];
    differs = differs || probe.different > 0;
  }
  if (diff.different > 0) text += ByRankText(ranks, "different on", "no difference seen on");
  Answer answer;
  answer.Add(diff.outcome() == Outcome::kNothing ? Severity::kGood : Severity::kBad,
             text + Summary(diff) + MissingText(diff));
  if (diff.first && diff.first->values) answer.SetTitle(FirstHead(a, diff));
  return answer;
}

namespace {

std::string RowName(const Slot& slot) {
  const std::string name = source::SlotText(slot);
  return slot.rank < 0 ? name : fmt::format("{} rank {}", name, slot.rank);
}

}  // namespace

std::string DiffStatText(Source& a, const Diff& diff, bool all) {
  std::size_t width = 0;
  for (const ProbeDiff& probe : diff.probes) {
    width = std::max(width, DisplayWidth(RowName(a.slots()[probe.a])));
  }
  std::string text;
  for (const ProbeDiff& probe : diff.probes) {
    const Slot& slot = a.slots()[probe.a];
    if (probe.different == 0 && !all) continue;
    text += fmt::format("{}  {:>5} of {:<5} differ", PadToColumns(RowName(slot), width),
                        probe.different, probe.compared);
    if (probe.different > 0) {
      text += fmt::format("  first {}", probe.first_different);
      text += probe.has_values ? fmt::format("  max abs {}  max rel {}",
                                             numerics::FormatNumber(probe.max_abs, 4),
                                             numerics::FormatNumber(probe.max_rel, 4))
                               : "  values were not recorded";
      if (probe.with_nonfinite > 0) {
        text += fmt::format("  {} by NaN or Inf", probe.with_nonfinite);
      }
    } else if (probe.not_compared > 0) {
      text += fmt::format("  {} not compared", probe.not_compared);
    } else {
      text += "  " + EqualText(probe.equal);
    }
    text += "\n";
  }
  return text + Summary(diff) + MissingText(diff);
}

std::string DiffNamesText(Source& a, const Diff& diff) {
  std::string text;
  for (const ProbeDiff& probe : diff.probes) {
    if (probe.different > 0) text += source::SlotText(a.slots()[probe.a]) + "\n";
  }
  return text;
}

Json DiffJson(Source& a, Source& b, const Diff& diff) {
  Json probes = Json::array();
  for (const ProbeDiff& probe : diff.probes) {
    const Slot& slot = a.slots()[probe.a];
    probes.push_back(
        {{"probe", slot.probe},
         {"probe_b", b.slots()[probe.b].probe},
         {"invocation", slot.invocation},
         {"rank", slot.rank},
         {"graph", slot.graph},
         {"shape", slot.shape},
         {"part", slot.part},
         {"compared", probe.compared},
         {"equal", EqualJson(probe.equal)},
         {"different", probe.different},
         {"not_compared", probe.not_compared},
         {"first_different", probe.different > 0 ? Json(probe.first_different) : Json(nullptr)},
         {"max_abs", JsonNumber(probe.max_abs)},
         {"with_nonfinite", probe.with_nonfinite},
         {"max_rel", JsonNumber(probe.max_rel)}});
  }
  return {{"verdict", NameOf(diff.verdict())},
          {"a", a.Describe().path},
          {"b", b.Describe().path},
          {"aligned_by", PositionWord(diff)},
          {"compared", diff.compared},
          {"equal", EqualJson(diff.equal)},
          {"different", diff.different},
          {"in_part", diff.in_part},
          {"stopped_early", diff.stopped_early},
          {"missing_count", diff.missing_count},
          {"missing", diff.missing},
          {"first", FirstJson(a, diff)},
          {"probes", std::move(probes)}};
}

}  // namespace cgdebug::analysis
