#include "client/analysis/why/why_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "client/analysis/ops/op_log.h"
#include "client/analysis/why/detectors.h"
#include "client/analysis/wording.h"

namespace cgdebug::analysis::why {
namespace {

constexpr std::size_t kMostFacts = 4;
constexpr const char* kIndent = "                ";

std::string RowNumber(const source::Slot& slot) {
  const OpText* const text = slot.op.row();
  return text ? fmt::format("#{} ", text->number) : "";
}

void AddCause(const source::Source& source, const Finding& finding, std::size_t number,
              const CommandOf& command_of, Answer* answer) {
  answer->Add(Severity::kPlain,
              fmt::format("{:<3} {:<12}{}", number, NameOf(finding.level), finding.sentence));
  const auto add = [&](const std::string& line) { answer->Add(Severity::kPlain, kIndent + line); };
  const bool is_of_process = finding.place.command == "where";
  const std::size_t facts = std::min(finding.facts.size(), kMostFacts);
  for (std::size_t i = 0; i < facts; ++i) {
    const Fact& fact = finding.facts[i];
    add((is_of_process ? "" : RowNumber(source.slots()[fact.place.slot])) + fact.text);
  }
  if (facts < finding.facts.size()) {
    add(fmt::format("and {} more like these", finding.facts.size() - facts));
  }
  if (!finding.follows.empty()) {
    add(fmt::format("from it follow{} {} row{} of the same run",
                    finding.follows.size() == 1 ? "s" : "", finding.follows.size(),
                    finding.follows.size() == 1 ? "" : "s"));
  }
  for (std::size_t i = 0; i < std::min<std::size_t>(finding.folded.size(), 2); ++i) {
    add(fmt::format("behind it ({}): {}", NameOf(finding.folded[i].level),
                    finding.folded[i].sentence));
  }
  if (finding.folded.size() > 2) {
    add(fmt::format("behind it: {} (--json has them)",
                    CountText(finding.folded.size() - 2, "more finding", "more findings")));
  }
  const source::Slot& slot = source.slots()[finding.place.slot];
  if (!slot.site.empty() && !is_of_process) add("line: " + slot.site);
  if (!finding.refute.empty()) add("refuted by: " + finding.refute);
  add("next: " + command_of(slot, finding.place));
}

Json PlaceJson(const source::Source& source, const Place& place) {
  const source::Slot& slot = source.slots()[place.slot];
  const OpText* const text = slot.op.row();
  return {{"probe", slot.probe},
          {"number", text ? Json(text->number) : Json()},
          {"op", text ? Json(text->op) : Json()},
          {"graph", slot.graph},
          {"graph_id", slot.graph_id},
          {"rank", slot.rank},
          {"shape", slot.shape},
          {"dtype", slot.dtype_name},
          {"site", slot.site},
          {"replay", place.replay == 0 ? Json() : Json(place.replay)}};
}

Json CauseJson(const source::Source& source, const Finding& finding, const CommandOf& command_of) {
  Json facts = Json::array(), folded = Json::array();
  for (const Fact& fact : finding.facts) {
    facts.push_back({{"row", PlaceJson(source, fact.place)}, {"text", fact.text}});
  }
  for (const Finding& one : finding.folded) folded.push_back(CauseJson(source, one, command_of));
  return {{"level", NameOf(finding.level)},
          {"kind", finding.kind},
          {"text", finding.sentence},
          {"place", PlaceJson(source, finding.place)},
          {"evidence", std::move(facts)},
          {"follows", finding.follows.size()},
          {"folded", std::move(folded)},
          {"refute", finding.refute},
          {"next", command_of(source.slots()[finding.place.slot], finding.place)}};
}

}  // namespace

CommandOf CommandsOf(const std::string& source) {
  return [source](const source::Slot& slot, const Place& place) {
    if (!place.command.empty()) {
      return fmt::format("cgdebug-cli {} {}", place.command, QuotedWord(source));
    }
    if (slot.op.row() != nullptr) {
      return "cgdebug-cli ops " + QuotedWord(OpLogPlaceText(source, slot, place.replay));
    }
    const std::string at = place.replay == 0 ? "" : ReplayMark(slot, place.replay);
    return "cgdebug-cli show " + QuotedWord(fmt::format("{}:{}{}", source, SlotText(slot), at));
  };
}

Answer CausesAnswer(const source::Source& source, const Causes& causes, const CommandOf& command_of,
                    std::size_t max_rows) {
  Answer answer;
  const auto add = [&](const std::string& line) { answer.Add(Severity::kPlain, line); };
  const std::size_t shown = std::min(causes.findings.size(), max_rows);
  for (std::size_t i = 0; i < shown; ++i) {
    AddCause(source, causes.findings[i], i + 1, command_of, &answer);
  }
  if (shown < causes.findings.size()) {
    const std::size_t more = causes.findings.size() - shown;
    add(fmt::format("and {} (--max-rows)", CountText(more, "more finding", "more findings")));
  }
  if (causes.findings.empty()) {
    add(causes.complete() ? "no cause found"
                          : "inconclusive: no cause found, but not all was looked at");
  }
  for (std::size_t i = 0; i < causes.clean.size(); ++i) {
    add((i == 0 ? "looked at and clean: " : "                     ") + causes.clean[i]);
  }
  const std::size_t gaps = std::min(causes.not_looked.size(), max_rows);
  for (std::size_t i = 0; i < gaps; ++i) add("not looked at: " + causes.not_looked[i]);
  if (gaps < causes.not_looked.size()) {
    add(fmt::format("not looked at: and {} more like these", causes.not_looked.size() - gaps));
  }
  for (const std::string& sentence : causes.not_asked) add("not asked for: " + sentence);
  if (causes.goes_on) {
    add(causes.stands_still ? "the job stands still: more will come if it goes on"
                            : "more will come: the job goes on");
  }
  return answer;
}

Json CausesJson(const source::Source& source, const Causes& causes, const CommandOf& command_of) {
  Json findings = Json::array();
  for (const Finding& finding : causes.findings) {
    findings.push_back(CauseJson(source, finding, command_of));
  }
  return {{"source", source.Describe().path},
          {"verdict", NameOf(causes.outcome())},
          {"found", causes.found()},
          {"complete", causes.complete()},
          {"findings", std::move(findings)},
          {"clean", causes.clean},
          {"not_looked_at", causes.not_looked},
          {"not_asked_for", causes.not_asked},
          {"goes_on", causes.goes_on}};
}

}  // namespace cgdebug::analysis::why
