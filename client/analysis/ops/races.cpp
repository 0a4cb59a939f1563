#include "client/analysis/ops/races.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "client/analysis/pieces.h"
#include "proto/layout/op_log_layout.h"

namespace cgdebug::analysis {
namespace {

constexpr NotesWords kOrderWords{.nobody = "no graph was looked at while it was captured",
                                 .what = "the order",
                                 .look = "Type: cgdebug-cli run --races -- COMMAND"};

// The rest of one note (layout::IsOpOrder). One of a kind that only later versions know says that
// something is missing.
void ReadOrderNote(std::string_view op, GraphOrder* order) {
  const std::string_view kind = TakeWord(&op);
  if (kind == "race") {
    order->races.emplace_back(op);
  } else if (kind == "possible") {
    order->possible.emplace_back(op);
  } else if (kind == "looked") {
    const auto nodes = TakeNumber(&op);
    const auto unordered = TakeNumber(&op);
    const auto unknown = TakeNumber(&op);
    order->is_known = nodes && unordered && unknown;
    order->nodes = nodes.value_or(0);
    order->unordered = unordered.value_or(0);
    order->unknown = unknown.value_or(0);
  } else {
    order->missing.emplace_back(op);
  }
}

void AddMissingOrder(const GraphOrder& order, std::vector<std::string>* not_looked) {
  const std::string graph = GraphText(order);
  if (!order.is_known) {
    if (order.missing.empty()) not_looked->push_back("the order of " + graph);
    for (const std::string& why : order.missing) {
      not_looked->push_back(fmt::format("the order of {}: {}", graph, why));
    }
    return;
  }
  const std::size_t told = std::min<std::size_t>(order.unknown, order.missing.size());
  // Behind the nodes: notes of kinds that only later versions know.
  for (std::size_t i = told; i < order.missing.size(); ++i) {
    not_looked->push_back(fmt::format("{}: {}", graph, order.missing[i]));
  }
  if (order.unknown > 0) {
    const std::string first = order.missing.empty() ? "" : ", the first: " + order.missing.front();
    not_looked->push_back(fmt::format("{} node{} of {}, which {} not in order with all others{}",
                                      order.unknown, order.unknown == 1 ? "" : "s", graph,
                                      order.unknown == 1 ? "is" : "are", first));
  }
  if (!order.possible.empty()) {
    not_looked->push_back(
        fmt::format("which bytes {} pair{} of ops of {} touch, that no path orders, the first: {}",
                    order.possible.size(), order.possible.size() == 1 ? "" : "s", graph,
                    order.possible.front()));
  }
}

}  // namespace

bool Races::found() const {
  return std::ranges::any_of(graphs, [](const GraphOrder& one) { return !one.races.empty(); });
}

Races FindRaces(const source::Source& source) {
  Races races;
  ReadGraphNotes(
      source, kOrderWords,
      [](const source::Slot& slot) {
        return layout::IsOpOrder(slot.op.text()) && !ReadPieceNote(slot) &&
               !ReadBrokenCapture(slot);
      },
      ReadOrderNote, AddMissingOrder, static_cast<GraphNotes<GraphOrder>*>(&races));
  return races;
}

Answer RacesAnswer(const Races& races, std::size_t max_rows) {
  Answer answer;
  std::uint64_t nodes = 0;
  std::uint64_t unordered = 0;
  std::size_t known = 0;
  for (const GraphOrder& order : races.graphs) {
    nodes += order.nodes;
    unordered += order.unordered;
    known += order.is_known ? 1 : 0;
    if (order.races.empty()) continue;
    answer.Add(Severity::kBad,
               fmt::format("{}: {} race{}: no path of the graph orders these ops", GraphText(order),
                           order.races.size(), order.races.size() == 1 ? "" : "s"));
    const std::size_t shown = std::min(order.races.size(), max_rows);
    for (std::size_t i = 0; i < shown; ++i) {
      answer.Add(Severity::kPlain, "  " + order.races[i]);
    }
    if (shown < order.races.size()) {
      answer.Add(Severity::kPlain,
                 fmt::format("  and {} more (--max-rows)", order.races.size() - shown));
    }
  }
  if (races.found()) {
    answer.Add(Severity::kPlain,
               "next: let the stream of the second op wait for the first: "
               "stream.wait_stream(other), or an event, between them");
  } else if (races.complete()) {
    answer.Add(Severity::kGood, "no race");
  } else {
    answer.Add(Severity::kWarning, "inconclusive: no race found, but not all was looked at");
  }
  if (known > 0) {
    answer.Add(Severity::kPlain,
               fmt::format("looked at {} graph{} with {} nodes, of which {} run beside others",
                           known, known == 1 ? "" : "s", nodes, unordered));
  }
  AddNotLooked(races.not_looked, max_rows, &answer);
  if (races.goes_on) answer.Add(Severity::kPlain, "more may come: the job goes on");
  return answer;
}

Json RacesJson(const source::Source& source, const Races& races) {
  Json graphs = Json::array();
  for (const GraphOrder& order : races.graphs) {
    graphs.push_back({{"graph", order.graph},
                      {"graph_id", order.graph_id},
                      {"rank", order.rank},
                      {"session", order.session},
                      {"known", order.is_known},
                      {"nodes", order.nodes},
                      {"unordered", order.unordered},
                      {"unknown", order.unknown},
                      {"races", order.races},
                      {"possible", order.possible},
                      {"missing", order.missing}});
  }
  return NotesJson(source, races, std::move(graphs));
}

}  // namespace cgdebug::analysis
