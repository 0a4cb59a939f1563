#include "client/analysis/ops/audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "proto/layout/op_log_layout.h"

namespace cgdebug::analysis {
namespace {

constexpr NotesWords kAuditWords{.nobody = "no graph was captured with an op log",
                                 .what = "the memory",
                                 .look = "Type: cgdebug-cli run --watch 'op:*' -- COMMAND"};

// The rest of one note (layout::IsOpAudit); a kind that a later version knows is something missing.
void ReadAuditNote(std::string_view op, GraphAudit* audit) {
  const std::optional<std::uint64_t> number = TakeNumber(&op);
  if (!number || *number < audit->number) return;
  if (*number > audit->number) {
    GraphAudit newer;
    static_cast<NotedGraph&>(newer) = *audit;
    newer.number = *number;
    *audit = std::move(newer);
  }
  const std::string_view kind = TakeWord(&op);
  if (kind == "looked") {
    const auto tensors = TakeNumber(&op);
    const auto replays = TakeNumber(&op);
    audit->is_known = tensors && replays;
    audit->tensors = tensors.value_or(0);
    audit->replays = replays.value_or(0);
    return;
  }
  std::vector<std::string>* texts = kind == "wrong"    ? &audit->wrong
                                    : kind == "latent" ? &audit->latent
                                    : kind == "hazard" ? &audit->hazards
                                                       : &audit->missing;
  texts->emplace_back(op);
}

void AddMissingMemory(const GraphAudit& one, std::vector<std::string>* not_looked) {
  for (const std::string& text : one.missing) {
    not_looked->push_back(fmt::format("{}: {}", GraphText(one), text));
  }
  if (!one.is_known && one.missing.empty()) not_looked->push_back(GraphText(one));
}

void AddFindings(const std::vector<std::string>& texts, std::string_view level, Severity severity,
                 std::size_t max_rows, Answer* answer) {
  const std::size_t shown = std::min(texts.size(), max_rows);
  for (std::size_t i = 0; i < shown; ++i) {
    answer->Add(severity, fmt::format("  {:<7} {}", level, texts[i]));
  }
  if (shown < texts.size()) {
    answer->Add(Severity::kPlain,
                fmt::format("  and {} more like these (--max-rows)", texts.size() - shown));
  }
}

}  // namespace

bool Audit::found() const {
  return std::ranges::any_of(graphs, [](const GraphAudit& one) { return !one.wrong.empty(); });
}

Audit ReadAudit(const source::Source& source) {
  Audit audit;
  ReadGraphNotes(
      source, kAuditWords, [](const source::Slot& slot) { return layout::IsOpAudit(slot.op); },
      ReadAuditNote, AddMissingMemory, static_cast<GraphNotes<GraphAudit>*>(&audit));
  return audit;
}

Answer AuditAnswer(const Audit& audit, std::size_t max_rows) {
  Answer answer;
  std::uint64_t tensors = 0;
  std::size_t known = 0;
  std::size_t others = 0;
  for (const GraphAudit& one : audit.graphs) {
    tensors += one.tensors;
    known += one.is_known ? 1 : 0;
    others += one.latent.size() + one.hazards.size();
    if (one.wrong.empty() && one.latent.empty() && one.hazards.empty()) continue;
    answer.Add(one.wrong.empty() ? Severity::kWarning : Severity::kBad,
               fmt::format("{}, after {} replay{}:", GraphText(one), one.replays,
                           one.replays == 1 ? "" : "s"));
    AddFindings(one.wrong, "wrong", Severity::kBad, max_rows, &answer);
    AddFindings(one.latent, "latent", Severity::kWarning, max_rows, &answer);
    AddFindings(one.hazards, "hazard", Severity::kPlain, max_rows, &answer);
  }
  if (audit.found()) {
    answer.Add(Severity::kPlain,
               "next: change the values in place (copy_), or capture the graph again");
  } else if (!audit.complete()) {
    answer.Add(Severity::kWarning, "inconclusive: nothing wrong, but not all was looked at");
  } else if (others > 0) {
    answer.Add(Severity::kWarning, "nothing is wrong yet");
  } else {
    answer.Add(Severity::kGood, "the graphs read what the model has");
  }
  if (known > 0) {
    answer.Add(Severity::kPlain,
               fmt::format("looked at {} tensor{} of {} graph{}", tensors, tensors == 1 ? "" : "s",
                           known, known == 1 ? "" : "s"));
  }
  AddNotLooked(audit.not_looked, max_rows, &answer);
  if (audit.goes_on) {
    answer.Add(Severity::kPlain,
               "the job looks again when it loads weights, at most every 10 s when it calls "
               "cgdebug.step(), and at its end");
  }
  return answer;
}

Json AuditJson(const source::Source& source, const Audit& audit) {
  Json graphs = Json::array();
  for (const GraphAudit& one : audit.graphs) {
    graphs.push_back({{"graph", one.graph},
                      {"graph_id", one.graph_id},
                      {"rank", one.rank},
                      {"session", one.session},
                      {"known", one.is_known},
                      {"tensors", one.tensors},
                      {"replays", one.replays},
                      {"wrong", one.wrong},
                      {"latent", one.latent},
                      {"hazards", one.hazards},
                      {"missing", one.missing}});
  }
  return NotesJson(source, audit, std::move(graphs));
}

}  // namespace cgdebug::analysis
