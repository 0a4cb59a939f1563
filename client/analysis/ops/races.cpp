#include "client/analysis/ops/races.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>

#include "client/analysis/ops/op_log.h"
#include "client/analysis/pieces.h"
#include "proto/layout/op_log_layout.h"

namespace cgdebug::analysis {
namespace {

constexpr const char* kLook = "Type: cgdebug-cli run --races -- COMMAND";

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

using GraphKey = std::tuple<std::string, int, std::uint64_t>;  // session, rank, graph_id

// Reads one note (layout::IsOpOrder); a kind that a later version knows is something missing.
void Read(std::string_view op, GraphOrder* order) {
  (void)TakeWord(&op);
  (void)TakeWord(&op);
  const std::string_view kind = TakeWord(&op);
  if (kind == "race") {
    order->races.emplace_back(op);
  } else if (kind == "possible") {
    order->possible.emplace_back(op);
  } else if (kind == "looked") {
    const auto nodes = NumberOf(TakeWord(&op));
    const auto unordered = NumberOf(TakeWord(&op));
    const auto unknown = NumberOf(TakeWord(&op));
    order->is_known = nodes && unordered && unknown;
    order->nodes = nodes.value_or(0);
    order->unordered = unordered.value_or(0);
    order->unknown = unknown.value_or(0);
  } else {
    order->missing.emplace_back(op);
  }
}

std::string GraphText(const GraphOrder& order) {
  return (order.rank >= 0 ? fmt::format("rank {}, ", order.rank) : "") + "graph " + order.graph;
}

void AddNotLooked(const GraphOrder& order, std::vector<std::string>* not_looked) {
  const std::string graph = GraphText(order);
  if (!order.is_known) {
    const std::string why = order.missing.empty() ? "" : ": " + order.missing.front();
    not_looked->push_back(fmt::format("the order of {}{}", graph, why));
    return;
  }
  const std::size_t told = std::min<std::size_t>(order.unknown, order.missing.size());
  for (std::size_t i = told; i < order.missing.size(); ++i) {  // a later version knows what
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
  std::map<GraphKey, GraphOrder> graphs;
  std::map<GraphKey, std::string> others;  // that rows or probes are of: their names
  for (std::size_t i = 0; i < source.slots().size(); ++i) {
    const source::Slot& slot = source.slots()[i];
    if (slot.graph_id != 0) others[{slot.session, slot.rank, slot.graph_id}] = slot.graph;
    if (!layout::IsOpOrder(slot.op) || ReadPieceNote(slot)) continue;
    std::string_view op = slot.op;
    (void)TakeWord(&op);
    const std::optional<std::uint64_t> graph_id = NumberOf(TakeWord(&op));
    if (!graph_id) continue;
    GraphOrder& order = graphs[{slot.session, slot.rank, *graph_id}];
    if (order.graph_id == 0) {
      order.session = slot.session;
      order.rank = slot.rank;
      order.graph_id = *graph_id;
      order.graph = std::to_string(*graph_id);
      order.slot = i;
    }
    Read(slot.op, &order);
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
  for (auto& [key, order] : graphs) {
    AddNotLooked(order, &races.not_looked);
    races.graphs.push_back(std::move(order));
  }
  if (races.graphs.empty()) {
    races.not_looked.push_back(
        fmt::format("anything: no graph was looked at while it was captured. {}", kLook));
  } else if (!unseen.empty()) {
    races.not_looked.push_back(fmt::format("the order of {} graph{}, the first: {}. {}",
                                           unseen.size(), unseen.size() == 1 ? "" : "s",
                                           unseen.front(), kLook));
  }
  for (std::string& text : GapsOfAll(source)) races.not_looked.push_back(std::move(text));
  races.goes_on = source.Describe().is_growing;
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
  const std::size_t shown = std::min(races.not_looked.size(), max_rows);
  for (std::size_t i = 0; i < shown; ++i) {
    answer.Add(Severity::kWarning, "not looked at: " + races.not_looked[i]);
  }
  if (shown < races.not_looked.size()) {
    answer.Add(Severity::kWarning, fmt::format("not looked at: and {} more like these",
                                               races.not_looked.size() - shown));
  }
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
  return {{"source", source.Describe().path}, {"verdict", NameOf(races.outcome())},
          {"found", races.found()},           {"complete", races.complete()},
          {"graphs", std::move(graphs)},      {"not_looked_at", races.not_looked},
          {"goes_on", races.goes_on}};
}

}  // namespace cgdebug::analysis
