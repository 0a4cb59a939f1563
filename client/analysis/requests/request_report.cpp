#include "client/analysis/requests/request_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "client/analysis/wording.h"

namespace cgdebug::analysis::requests {
namespace {

constexpr std::size_t kMostMissing = 8;
constexpr std::size_t kMostProbes = 5;

// "fwd/layers.3.attn{8,512}@call:11 row 3".
std::string PlaceText(const Spot& spot, std::size_t row) {
  return fmt::format("{}{} row {}", source::SlotText(*spot.slot),
                     source::ReplayMark(*spot.slot, spot.key.replay), row);
}

std::string ErrorText(const RowPair& pair) {
  if (std::isinf(pair.error)) return "only one of them is finite";
  return fmt::format("they are {}{:.2g} of their size apart{}", pair.is_by_sketch ? "about " : "",
                     pair.error, pair.is_by_sketch ? ", by their sketches" : "");
}

std::string Compared(const RequestDiff& diff) {
  return fmt::format("{} of {} in {}", Count(diff.tokens, "token"), Count(diff.requests, "request"),
                     Count(diff.probes.size(), "probe"));
}

void AddGrowth(const RequestDiff& diff, Answer* answer) {
  const RowPair& first = *diff.first;
  const std::string& name = diff.probes[first.probe].name;
  answer->Add(Severity::kBad,
              fmt::format("first growth of the error: {}, {}", name, TokenText(first.token)));
  answer->Add(
      Severity::kPlain,
      fmt::format(
          "  A: {}\n  B: {}\n  {}; in the probes before, this row's were {}",
          PlaceText(first.a, first.row_a), PlaceText(first.b, first.row_b), ErrorText(first),
          diff.before_first == 0 ? "equal" : fmt::format("{:.2g} at most", diff.before_first)));
  std::vector<const ProbeRows*> grown;
  for (const ProbeRows& probe : diff.probes) {
    if (probe.grown > 0) grown.push_back(&probe);
  }
  std::string where;
  for (std::size_t i = 0; i < std::min(grown.size(), kMostProbes); ++i) {
    where += fmt::format("{}{} {}", i == 0 ? "" : ", ", grown[i]->name, grown[i]->grown);
  }
  answer->Add(Severity::kPlain,
              fmt::format("  it grows in {} of {}: {}{}", diff.grown, Count(diff.tokens, "token"),
                          where, AndMore(grown.size(), std::min(grown.size(), kMostProbes))));
}

// What an estimate is worth: the quotient of two sums of eight squares lies within 2.5 squared in
// 98 of 100, as the F distribution with 8 and 8 degrees of freedom says.
void AddSketches(const RequestDiff& diff, Answer* answer) {
  if (diff.by_sketch == 0) return;
  answer->Add(Severity::kPlain,
              fmt::format("  {} of {} were compared by sketches, which tell how far two rows are "
                          "apart to within a factor of 2.5 in 98 of 100",
                          diff.by_sketch, Count(diff.compared, "row")));
}

void AddLargest(const RequestDiff& diff, Answer* answer) {
  const std::string alike =
      diff.alike == 0 ? "" : fmt::format(", {} have equal sketches", diff.alike);
  answer->Add(Severity::kGood,
              fmt::format("no growth of the error: {}; {} of {} are equal bit for bit{}",
                          Compared(diff), diff.equal, Count(diff.compared, "row"), alike));
  const auto line = [&](const char* what, const RowPair& pair) {
    answer->Add(Severity::kPlain,
                fmt::format("  {}: {}, {}: {}\n    A: {}\n    B: {}", what,
                            diff.probes[pair.probe].name, TokenText(pair.token), ErrorText(pair),
                            PlaceText(pair.a, pair.row_a), PlaceText(pair.b, pair.row_b)));
  };
  if (diff.unequal) line("the first that are not equal", *diff.unequal);
  if (diff.largest && diff.largest->error > 0) line("the largest", *diff.largest);
  if (diff.by_sketch > 0 || (diff.largest && diff.largest->error > 0)) {
    answer->Add(Severity::kPlain,
                fmt::format("  a fault that changes a row by less than {:.2g} of its size cannot "
                            "be told from rounding",
                            diff.least_growth));
  }
}

Json PairJson(const RequestDiff& diff, const RowPair& pair) {
  const auto side = [](const Spot& spot, std::size_t row) -> Json {
    return {{"probe", source::SlotText(*spot.slot)},
            {"replay", spot.key.replay},
            {"iteration", spot.key.iteration},
            {"rank", spot.slot->rank},
            {"row", row}};
  };
  return {{"probe", diff.probes[pair.probe].name}, {"request", pair.token.request},
          {"position", pair.token.position},       {"error", JsonNumber(pair.error)},
          {"by_sketch", pair.is_by_sketch},        {"a", side(pair.a, pair.row_a)},
          {"b", side(pair.b, pair.row_b)}};
}

}  // namespace

Answer RequestAnswer(const RequestDiff& diff) {
  Answer answer;
  if (diff.first) {
    AddGrowth(diff, &answer);
  } else if (diff.compared == 0) {
    answer.Add(Severity::kWarning, "inconclusive: no row was compared");
  } else {
    if (!diff.missing.empty()) {
      answer.Add(Severity::kWarning, "inconclusive: not all rows were compared");
    }
    if (diff.equal == diff.compared) {
      answer.Add(Severity::kGood, fmt::format("same: {}, bit for bit", Compared(diff)));
    } else {
      AddLargest(diff, &answer);
    }
  }
  AddSketches(diff, &answer);
  for (std::size_t i = 0; i < std::min(diff.missing.size(), kMostMissing); ++i) {
    answer.Add(Severity::kPlain, "  not compared: " + diff.missing[i]);
  }
  if (diff.missing.size() > kMostMissing) {
    answer.Add(Severity::kPlain, fmt::format("  and {} more like these (--json has them all)",
                                             diff.missing.size() - kMostMissing));
  }
  return answer;
}

Json RequestJson(const RequestDiff& diff) {
  const auto pair = [&](const std::optional<RowPair>& one) {
    return one ? PairJson(diff, *one) : Json(nullptr);
  };
  Json probes = Json::array();
  for (const ProbeRows& probe : diff.probes) {
    probes.push_back({{"probe", probe.name},
                      {"compared", probe.compared},
                      {"equal", probe.equal},
                      {"grown", probe.grown},
                      {"largest", JsonNumber(probe.largest)}});
  }
  return {{"verdict", diff.first                            ? "growth"
                      : diff.outcome() != Outcome::kNothing ? "inconclusive"
                      : diff.equal == diff.compared         ? "same"
                                                            : "no_growth"},
          {"requests", diff.requests},
          {"tokens", diff.tokens},
          {"compared", diff.compared},
          {"equal", diff.equal},
          {"equal_sketches", diff.alike},
          {"by_sketch", diff.by_sketch},
          {"grown", diff.grown},
          {"first", pair(diff.first)},
          {"before_first", JsonNumber(diff.before_first)},
          {"least_growth", JsonNumber(diff.least_growth)},
          {"unequal", pair(diff.unequal)},
          {"largest", pair(diff.largest)},
          {"probes", std::move(probes)},
          {"missing", diff.missing}};
}

}  // namespace cgdebug::analysis::requests
