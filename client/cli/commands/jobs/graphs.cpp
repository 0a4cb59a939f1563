#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "client/analysis/ops/audit.h"
#include "client/analysis/wording.h"
#include "client/cli/command.h"
#include "client/cli/remote/job_questions.h"
#include "client/cli/views/json.h"
#include "client/cli/views/terminal.h"
#include "client/live/live_source.h"
#include "client/live/sessions.h"
#include "client/source/source.h"
#include "daemon/core/numerics/format.h"

namespace cgdebug::cli {
namespace {

using layout::GraphFacts;
using layout::GraphState;

struct GraphsOptions {
  std::string selector;
  std::string only;
  bool all = false;
  bool verbose = false;
  bool memory = false;
};

bool IsThere(const GraphFacts& graph) {
  return graph.state == GraphState::kLive || graph.state == GraphState::kCapturing;
}
bool IsUnreplayed(const GraphFacts& graph) {
  return (graph.state == GraphState::kLive || graph.state == GraphState::kGone) &&
         graph.replays == 0u;
}
bool IsEmpty(const GraphFacts& graph) {
  return graph.state != GraphState::kCapturing && graph.nodes == 0u;
}
bool IsAgain(const GraphFacts& graph) { return graph.alike_gone >= layout::kManyCaptures; }
bool IsFailed(const GraphFacts& graph) { return graph.state == GraphState::kFailed; }

bool IsShown(const GraphFacts& graph, const GraphsOptions& options) {
  if (options.only == "unreplayed") return IsUnreplayed(graph);
  if (options.only == "empty") return IsEmpty(graph);
  if (options.only == "again") return IsAgain(graph);
  if (options.only == "failed") return IsFailed(graph);
  return options.all || IsThere(graph);
}

std::string GraphName(const GraphFacts& graph) {
  return graph.label.empty() ? fmt::format("capture {}", graph.order) : Printable(graph.label);
}

// The innermost line alone, or all of them.
std::string StackText(const GraphFacts& graph, bool is_whole) {
  const std::string stack = Printable(graph.stack);
  return stack.empty() ? "-" : is_whole ? stack : stack.substr(0, stack.find(" < "));
}

// By capture: why it cannot be taken apart; empty: it can be. Nothing: nobody keeps graphs there.
using Apart = std::optional<std::map<std::uint64_t, std::string>>;

std::string ApartText(const GraphFacts& graph, const Apart& apart) {
  if (!apart || !IsThere(graph)) return "-";
  const auto found = apart->find(graph.graph_id);
  return found == apart->end() ? "-" : found->second.empty() ? "yes" : "no";
}

TextTable MakeTable(const live::SessionGraphs& session, const Apart& apart,
                    const GraphsOptions& options) {
  using Align = TextTable::Align;
  TextTable table({{"#", Align::kRight},
                   {"GRAPH"},
                   {"STATE"},
                   {"NODES", Align::kCount},
                   {"REPLAYS", Align::kCount},
                   {"PROBES", Align::kCount},
                   {"BYTES", Align::kRight},
                   {"APART", Align::kLeft, /*is_optional=*/true},
                   {"POOL", Align::kLeft, /*is_optional=*/true},
                   {"CAPTURED BY"}});
  for (const GraphFacts& graph : session.graphs) {
    if (!IsShown(graph, options)) continue;
    table.Add({std::to_string(graph.order), GraphName(graph), std::string(NameOf(graph.state)),
               graph.nodes ? std::to_string(*graph.nodes) : "unknown",
               graph.replays ? std::to_string(*graph.replays) : "unknown",
               std::to_string(graph.probes), numerics::FormatBytes(graph.probe_bytes),
               ApartText(graph, apart),
               graph.pool.empty() ? "-" : fmt::format("{}", fmt::join(graph.pool, ".")),
               StackText(graph, options.verbose)});
  }
  return table;
}

std::string Summary(const live::SessionGraphs& session) {
  std::uint64_t live = 0;
  for (const GraphFacts& graph : session.graphs) live += IsThere(graph);
  std::string text =
      fmt::format("{}: {}, {} there now, {} gone", Printable(session.session_label),
                  analysis::Count(session.captures, "capture", "captures"), live, session.gone);
  if (session.failed > 0) text += fmt::format(", {} failed", session.failed);
  return text;
}

// What looks like a mistake, with what to type next.
void SayHints(const Context& context, const live::SessionGraphs& session) {
  const std::string show = "Type: cgdebug-cli graphs " + Printable(session.session);
  const auto say = [&](auto matches, const char* one, const char* many, const char* only) {
    const GraphFacts* newest = nullptr;
    std::size_t count = 0;
    for (const GraphFacts& graph : session.graphs) {
      if (!matches(graph)) continue;
      newest = &graph;
      ++count;
    }
    if (count == 0) return;
    context.Note(fmt::format("{}, such as {} by {}. {} --only {} -v",
                             analysis::Count(count, one, many), GraphName(*newest),
                             StackText(*newest, false), show, only));
  };
  say(IsUnreplayed, "graph was captured and never replayed",
      "graphs were captured and never replayed", "unreplayed");
  say(IsEmpty, "graph is empty: its capture recorded no work",
      "graphs are empty: their captures recorded no work", "empty");
  say(IsFailed, "capture ended with an error", "captures ended with an error", "failed");
  // One line for each place that captures.
  std::map<std::string, const GraphFacts*> places;
  for (const GraphFacts& graph : session.graphs) {
    if (IsAgain(graph)) places[graph.stack] = &graph;
  }
  for (const auto& [stack, graph] : places) {
    context.Note(fmt::format(
        "{} has captured {} times, {} of them to replace a graph that was thrown away: each "
        "capture costs time that replays are to save. {} --only again -v",
        StackText(*graph, false), graph->alike, graph->alike_gone, show));
  }
  if (session.unlisted > 0) {
    context.Note(fmt::format("{} are not listed: too many lived at the same time. {} --json",
                             analysis::Count(session.unlisted, "more graph", "more graphs"), show));
  }
  if (session.unlisted_replays > 0) {
    context.Note(fmt::format(
        "{} of graphs that are not listed, such as those captured before the job's first probe "
        "was made. Make a probe first, then type: cgdebug-cli graphs",
        analysis::Count(session.unlisted_replays, "replay was", "replays were")));
  }
}

// Which graphs cannot be run op by op, and why.
void SayNotApart(const Context& context, const live::SessionGraphs& session, const Apart& apart) {
  if (std::ranges::none_of(session.graphs, IsThere)) return;
  if (!apart) {
    context.Note(
        "no graph of it is kept, so none can be taken apart and asked about. Type: cgdebug-cli run "
        "--ask -- COMMAND, then: cgdebug-cli ask");
    return;
  }
  std::map<std::string, std::vector<const GraphFacts*>> reasons;
  for (const GraphFacts& graph : session.graphs) {
    const auto found = apart->find(graph.graph_id);
    if (!IsThere(graph) || (found != apart->end() && found->second.empty())) continue;
    reasons
        [found != apart->end()
             ? found->second
             : "it has not ended, or its program keeps it (keep_graph=True) and may launch it in "
               "another way"]
            .push_back(&graph);
  }
  for (const auto& [reason, graphs] : reasons) {
    const std::string more =
        graphs.size() > 1 ? fmt::format(" and {} more", graphs.size() - 1) : "";
    context.Note(fmt::format("graph {}{} cannot be taken apart: {}", GraphName(*graphs.front()),
                             more, Printable(reason)));
  }
}

// By key of the session. Of those that live, on this machine.
std::map<std::string, Apart> AskForApart(Context& context,
                                         const std::vector<live::SessionGraphs>& sessions) {
  std::map<std::string, Apart> all;
  const Result<std::vector<live::Session>> known = live::ListSessions(context.client());
  if (!known.ok()) return all;
  for (const live::Session& one : *known) {
    const bool is_meant = std::ranges::any_of(
        sessions, [&](const live::SessionGraphs& graphs) { return graphs.session == one.key; });
    if (is_meant && one.state == live::SessionState::kAlive) {
      all[one.key] = GraphsApartOf(context, one.pid);
    }
  }
  return all;
}

// What the session told of the memory of its graphs, of those that are there; nothing: it has no
// probe.
std::optional<analysis::Audit> MemoryOf(Context& context, const live::SessionGraphs& session) {
  const Result<std::unique_ptr<source::Source>> source =
      live::OpenLive(context.client(), session.session);
  if (!source.ok()) return std::nullopt;
  analysis::Audit audit = analysis::ReadAudit(**source);
  std::erase_if(audit.graphs, [&](const analysis::GraphAudit& one) {
    const auto is_it = [&](const GraphFacts& graph) {
      return graph.graph_id == one.graph_id && IsThere(graph);
    };
    return one.session != session.session_label || one.rank != session.rank ||
           std::ranges::none_of(session.graphs, is_it);
  });
  return audit;
}

void SayMemory(Context& context, const live::SessionGraphs& session) {
  const std::optional<analysis::Audit> audit = MemoryOf(context, session);
  std::size_t known = 0;
  if (audit) {
    for (const analysis::GraphAudit& one : audit->graphs) known += one.memory.empty() ? 0 : 1;
    for (const analysis::GraphAudit* graph : analysis::GraphsOfPools(*audit)) {
      for (const analysis::PoolMemory& pool : graph->memory) {
        for (const std::string& line : analysis::PoolLines(pool)) {
          Context::Print(Printable(line) + "\n");
        }
      }
    }
  }
  const auto there = static_cast<std::size_t>(std::ranges::count_if(session.graphs, IsThere));
  if (known < there) {
    context.Note(fmt::format(
        "of {} of {} the memory is not known: a job tells it of graphs that were captured with an "
        "op log. Type: cgdebug-cli run --watch 'op:*' -- COMMAND, or call cgdebug.graph_memory()",
        there - known, analysis::Count(there, "graph", "graphs")));
  }
}

Json JsonOf(const std::vector<live::SessionGraphs>& sessions,
            const std::map<std::string, Apart>& apart) {
  Json json = FieldJson(sessions);
  for (std::size_t i = 0; i < sessions.size(); ++i) {
    const auto of_session = apart.find(sessions[i].session);
    for (std::size_t j = 0; j < sessions[i].graphs.size(); ++j) {
      Json& graph = json[i]["graphs"][j];
      graph["apart"] = graph["why_not_apart"] = nullptr;
      if (of_session == apart.end() || !of_session->second) continue;
      const auto found = of_session->second->find(sessions[i].graphs[j].graph_id);
      if (found == of_session->second->end()) continue;
      graph["apart"] = found->second.empty();
      if (!found->second.empty()) graph["why_not_apart"] = found->second;
    }
  }
  return json;
}

void AddMemory(Context& context, const live::SessionGraphs& session, Json* json) {
  for (Json& graph : (*json)["graphs"]) graph["memory"] = nullptr;
  const std::optional<analysis::Audit> audit = MemoryOf(context, session);
  if (!audit) return;
  for (const analysis::GraphAudit& one : audit->graphs) {
    for (std::size_t i = 0; i < session.graphs.size() && !one.memory.empty(); ++i) {
      if (session.graphs[i].graph_id == one.graph_id) {
        (*json)["graphs"][i]["memory"] = analysis::PoolsJson(one.memory);
      }
    }
  }
}

int RunGraphs(Context& context, const GraphsOptions& options) {
  if (const int failed = context.Connect()) return failed;
  const std::string& wanted = context.SessionOr(options.selector);
  Result<std::vector<live::SessionGraphs>> listed = live::ListGraphs(context.client(), wanted);
  if (!listed.ok()) return context.Fail(listed.error());
  std::vector<live::SessionGraphs>& sessions = *listed;
  std::erase_if(sessions, [&](const live::SessionGraphs& session) {
    const bool is_meant = !wanted.empty() || session.captures > 0;
    return !is_meant || !context.ranks.Contains(session.rank);
  });
  const std::map<std::string, Apart> apart = AskForApart(context, sessions);
  if (context.options.json) {
    if (!options.only.empty()) {
      for (live::SessionGraphs& session : sessions) {
        std::erase_if(session.graphs, [&](const auto& graph) { return !IsShown(graph, options); });
      }
    }
    Json json = JsonOf(sessions, apart);
    for (std::size_t i = 0; options.memory && i < sessions.size(); ++i) {
      AddMemory(context, sessions[i], &json[i]);
    }
    Context::PrintJson({{"sessions", std::move(json)}});
  }
  const bool has_graphs = std::ranges::any_of(
      sessions, [](const live::SessionGraphs& session) { return session.captures > 0; });
  if (!has_graphs) {
    return context.FailNoJob(
        "no job has captured a CUDA graph since its first probe was made. Type: cgdebug-cli ps");
  }
  if (context.options.json) return kExitOk;
  for (const live::SessionGraphs& session : sessions) {
    const auto found = apart.find(session.session);
    const TextTable table =
        MakeTable(session, found == apart.end() ? Apart() : found->second, options);
    Context::Print(context.out.Bold(Summary(session)) + "\n");
    if (!table.empty()) {
      context.PrintTable(table, options.verbose ? 0 : TerminalColumns(STDOUT_FILENO));
    }
    if (options.memory) SayMemory(context, session);
    SayHints(context, session);
    if (found != apart.end()) SayNotApart(context, session, found->second);
  }
  return kExitOk;
}

}  // namespace

RunFunction AddGraphs(CLI::App& app) {
  auto options = std::make_shared<GraphsOptions>();
  app.add_option("SESSION", options->selector,
                 "key, label, run id or pid; default: every job that has captured");
  app.add_flag("-a,--all", options->all, "also graphs that are gone and captures that failed");
  app.add_option("--only", options->only,
                 "unreplayed: captured and never replayed; empty: without a node; again: captured "
                 "over and over; failed")
      ->check(CLI::IsMember({"unreplayed", "empty", "again", "failed"}))
      ->type_name("{unreplayed,empty,again,failed}");
  app.add_flag("-v,--verbose", options->verbose, "all lines of each capture's stack");
  app.add_flag("--memory", options->memory,
               "what the memory pools of graphs with an op log hold, and who keeps it");
  return [options](Context& context) { return RunGraphs(context, *options); };
}

}  // namespace cgdebug::cli
