#include "client/analysis/ops/audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>

#include "client/analysis/ops/op_log.h"
#include "proto/layout/op_log_layout.h"

namespace cgdebug::analysis {
namespace {

constexpr const char* kLook = "Type: cgdebug-cli run --watch 'op:*' -- COMMAND";

std::string_view TakeWord(std::string_view* text) {
  const std::size_t end = std::min(text->find(' '), text->size());
  const std::string_view word = text->substr(0, end);
  text->remove_prefix(std::min(end + 1, text->size()));
  return word;
}

std::optional<std::uint64_t> NumberOf(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// The rest of one note (layout::IsOpAudit); a kind that a later version knows is something missing.
void Read(std::string_view op, GraphAudit* audit) {
  const std::string_view kind = TakeWord(&op);
  if (kind == "looked") {
    const auto tensors = NumberOf(TakeWord(&op));
    const auto replays = NumberOf(TakeWord(&op));
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

std::string GraphText(const GraphAudit& audit) {
  return (audit.rank >= 0 ? fmt::format("rank {}, ", audit.rank) : "") + "graph " + audit.graph;
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
  using GraphKey = std::tuple<std::string, int, std::uint64_t>;  // session, rank, graph_id
  Audit audit;
  std::map<GraphKey, GraphAudit> graphs;
  std::map<GraphKey, std::string> others;  // that rows or probes are of: their names
  for (std::size_t i = 0; i < source.slots().size(); ++i) {
    const source::Slot& slot = source.slots()[i];
    if (slot.graph_id != 0) others[{slot.session, slot.rank, slot.graph_id}] = slot.graph;
    if (!layout::IsOpAudit(slot.op)) continue;
    std::string_view op = slot.op;
    (void)TakeWord(&op);
    const std::optional<std::uint64_t> graph_id = NumberOf(TakeWord(&op));
    const std::optional<std::uint64_t> number = NumberOf(TakeWord(&op));
    if (!graph_id || !number) continue;
    GraphAudit& one = graphs[{slot.session, slot.rank, *graph_id}];
    if (*number < one.number) continue;
    if (*number > one.number) {
      one = {.session = slot.session,
             .rank = slot.rank,
             .graph_id = *graph_id,
             .graph = std::to_string(*graph_id),
             .slot = i,
             .number = *number};
    }
    Read(op, &one);
  }
  std::vector<std::string> unseen;
  for (const auto& [key, name] : others) {
    const auto known = graphs.find(key);
    if (known == graphs.end()) {
      unseen.push_back(name.empty() ? std::to_string(std::get<2>(key)) : name);
    } else if (!name.empty()) {
      known->second.graph = name;
    }
  }
  for (auto& [key, one] : graphs) {
    for (const std::string& text : one.missing) {
      audit.not_looked.push_back(fmt::format("{}: {}", GraphText(one), text));
    }
    if (!one.is_known && one.missing.empty()) {
      audit.not_looked.push_back(GraphText(one));
    }
    audit.graphs.push_back(std::move(one));
  }
  if (audit.graphs.empty()) {
    audit.not_looked.push_back(
        fmt::format("anything: no graph was captured with an op log. {}", kLook));
  } else if (!unseen.empty()) {
    audit.not_looked.push_back(fmt::format("the memory of {} graph{}, the first: {}. {}",
                                           unseen.size(), unseen.size() == 1 ? "" : "s",
                                           unseen.front(), kLook));
  }
  for (std::string& text : GapsOfAll(source)) audit.not_looked.push_back(std::move(text));
  audit.goes_on = source.Describe().is_growing;
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
  const std::size_t shown = std::min(audit.not_looked.size(), max_rows);
  for (std::size_t i = 0; i < shown; ++i) {
    answer.Add(Severity::kWarning, "not looked at: " + audit.not_looked[i]);
  }
  if (shown < audit.not_looked.size()) {
    answer.Add(Severity::kWarning, fmt::format("not looked at: and {} more like these",
                                               audit.not_looked.size() - shown));
  }
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
  return {{"source", source.Describe().path}, {"verdict", NameOf(audit.outcome())},
          {"found", audit.found()},           {"complete", audit.complete()},
          {"graphs", std::move(graphs)},      {"not_looked_at", audit.not_looked},
          {"goes_on", audit.goes_on}};
}

}  // namespace cgdebug::analysis
