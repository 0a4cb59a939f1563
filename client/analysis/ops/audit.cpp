#include "client/analysis/ops/audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "daemon/core/numerics/format.h"
#include "proto/layout/op_log_layout.h"

namespace cgdebug::analysis {
namespace {

constexpr NotesWords kAuditWords{.nobody = "no graph was captured with an op log",
                                 .what = "the memory",
                                 .look = "Type: cgdebug-cli run --watch 'op:*' -- COMMAND"};

// "0 7 0 4194304 2 3145728 0".
PoolMemory PoolOf(std::string_view op) {
  const auto number = [&op] { return TakeNumber(&op).value_or(0); };
  PoolMemory memory;
  const std::uint64_t first = number();
  memory.pool = fmt::format("{}.{}", first, number());
  memory.device = number();
  memory.bytes = number();
  memory.segments = number();
  memory.held = number();
  memory.waiting = number();
  return memory;
}

// A note about memory of the pool before it. Whether it was one.
bool ReadMemoryNote(std::string_view kind, std::string_view op, std::vector<PoolMemory>* memory) {
  if (kind == "pool") {
    memory->push_back(PoolOf(op));
    return true;
  }
  if (memory->empty() || (kind != "stream" && kind != "keeps" && kind != "more")) return false;
  PoolMemory::Part part = {.bytes = TakeNumber(&op).value_or(0)};
  if (kind != "stream") part.blocks = TakeNumber(&op).value_or(0);
  part.text = op;
  if (kind == "more") {
    memory->back().more = std::move(part);
  } else {
    (kind == "keeps" ? memory->back().keepers : memory->back().streams).push_back(std::move(part));
  }
  return true;
}

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
  if (ReadMemoryNote(kind, op, &audit->memory)) return;
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
      source, kAuditWords,
      [](const source::Slot& slot) { return layout::IsOpAudit(slot.op.text()); }, ReadAuditNote,
      AddMissingMemory, static_cast<GraphNotes<GraphAudit>*>(&audit));
  return audit;
}

std::vector<const GraphAudit*> GraphsOfPools(const Audit& audit) {
  std::map<std::tuple<std::string, int, std::string>, const GraphAudit*> newest;
  for (const GraphAudit& one : audit.graphs) {
    if (one.memory.empty()) continue;
    const GraphAudit*& known = newest[{one.session, one.rank, one.memory.front().pool}];
    if (known == nullptr || known->number < one.number) known = &one;
  }
  std::vector<const GraphAudit*> graphs;
  for (const auto& [pool, graph] : newest) graphs.push_back(graph);
  std::ranges::stable_sort(graphs, std::greater(),
                           [](const GraphAudit* one) { return one->memory.front().bytes; });
  return graphs;
}

std::vector<std::string> PoolLines(const PoolMemory& memory) {
  const auto amount = [](std::uint64_t bytes) { return numerics::FormatBytes(bytes); };
  const auto blocks = [&](const PoolMemory::Part& part) {
    return fmt::format("  {} in {} block{}", amount(part.bytes), part.blocks,
                       part.blocks == 1 ? "" : "s");
  };
  const std::uint64_t used = memory.held + memory.waiting;
  std::string head = fmt::format("pool {} on cuda:{}: {} in {} segment{}, {} held, {} free",
                                 memory.pool, memory.device, amount(memory.bytes), memory.segments,
                                 memory.segments == 1 ? "" : "s", amount(memory.held),
                                 amount(memory.bytes > used ? memory.bytes - used : 0));
  if (memory.waiting > 0) head += fmt::format(", {} wait for a stream", amount(memory.waiting));
  std::vector<std::string> lines = {std::move(head)};
  for (const PoolMemory::Part& one : memory.streams) {
    lines.push_back(fmt::format("  {} of stream {}", amount(one.bytes), one.text));
  }
  for (const PoolMemory::Part& one : memory.keepers) {
    lines.push_back(blocks(one) + ": " + (one.text.empty() ? "nobody knows whose" : one.text));
  }
  if (memory.more.bytes > 0) lines.push_back(blocks(memory.more) + " of others");
  return lines;
}

Json PoolsJson(const std::vector<PoolMemory>& memory) {
  Json pools = Json::array();
  for (const PoolMemory& one : memory) {
    Json streams = Json::array();
    for (const PoolMemory::Part& part : one.streams) {
      streams.push_back({{"stream", part.text}, {"bytes", part.bytes}});
    }
    Json keepers = Json::array();
    for (const PoolMemory::Part& part : one.keepers) {
      keepers.push_back({{"by", part.text}, {"bytes", part.bytes}, {"blocks", part.blocks}});
    }
    pools.push_back({{"device", one.device},
                     {"bytes", one.bytes},
                     {"segments", one.segments},
                     {"held", one.held},
                     {"waiting", one.waiting},
                     {"streams", std::move(streams)},
                     {"keepers", std::move(keepers)},
                     {"more", {{"bytes", one.more.bytes}, {"blocks", one.more.blocks}}}});
  }
  return pools;
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
                      {"memory", PoolsJson(one.memory)},
                      {"missing", one.missing}});
  }
  return NotesJson(source, audit, std::move(graphs));
}

}  // namespace cgdebug::analysis
