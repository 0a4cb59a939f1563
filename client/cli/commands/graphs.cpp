#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/cli/command.h"
#include "client/cli/views/json.h"
#include "client/cli/views/terminal.h"
#include "daemon/core/numerics/format.h"

namespace cgdebug::cli {
namespace {

// If this many captures each replace the graph of the one before, that looks like a mistake.
constexpr std::uint64_t kManyCaptures = 4;

struct GraphsOptions {
  std::string selector;
  std::string only;
  bool all = false;
  bool verbose = false;
};

bool IsThere(const v1::GraphInfo& graph) {
  return graph.state() == v1::GraphInfo::LIVE || graph.state() == v1::GraphInfo::CAPTURING;
}
bool IsUnreplayed(const v1::GraphInfo& graph) {
  return (graph.state() == v1::GraphInfo::LIVE || graph.state() == v1::GraphInfo::GONE) &&
         graph.has_replays() && graph.replays() == 0;
}
bool IsEmpty(const v1::GraphInfo& graph) {
  return graph.state() != v1::GraphInfo::CAPTURING && graph.has_nodes() && graph.nodes() == 0;
}
bool IsAgain(const v1::GraphInfo& graph) { return graph.alike_gone() >= kManyCaptures; }
bool IsFailed(const v1::GraphInfo& graph) { return graph.state() == v1::GraphInfo::FAILED; }

bool IsShown(const v1::GraphInfo& graph, const GraphsOptions& options) {
  if (options.only == "unreplayed") return IsUnreplayed(graph);
  if (options.only == "empty") return IsEmpty(graph);
  if (options.only == "again") return IsAgain(graph);
  if (options.only == "failed") return IsFailed(graph);
  return options.all || IsThere(graph);
}

std::string GraphName(const v1::GraphInfo& graph) {
  return graph.graph().empty() ? fmt::format("capture {}", graph.order())
                               : Printable(graph.graph());
}

std::string StateName(const v1::GraphInfo& graph) {
  switch (graph.state()) {
    case v1::GraphInfo::CAPTURING:
      return "capturing";
    case v1::GraphInfo::LIVE:
      return "live";
    case v1::GraphInfo::GONE:
      return "gone";
    case v1::GraphInfo::FAILED:
      return "failed";
    default:
      return "unknown";
  }
}

// The innermost line alone, or all of them.
std::string StackText(const v1::GraphInfo& graph, bool is_whole) {
  const std::string stack = Printable(graph.stack());
  return stack.empty() ? "-" : is_whole ? stack : stack.substr(0, stack.find(" < "));
}

TextTable MakeTable(const v1::SessionGraphs& session, const GraphsOptions& options, bool is_plain) {
  using Align = TextTable::Align;
  TextTable table({{"#", Align::kRight},
                   {"GRAPH"},
                   {"STATE"},
                   {"NODES", Align::kCount},
                   {"REPLAYS", Align::kCount},
                   {"PROBES", Align::kCount},
                   {"BYTES", Align::kRight},
                   {"POOL", Align::kLeft, /*is_optional=*/true},
                   {"CAPTURED BY"}});
  for (const v1::GraphInfo& graph : session.graphs()) {
    if (!IsShown(graph, options)) continue;
    table.Add({std::to_string(graph.order()), GraphName(graph), StateName(graph),
               graph.has_nodes() ? std::to_string(graph.nodes()) : "unknown",
               graph.has_replays() ? std::to_string(graph.replays()) : "unknown",
               std::to_string(graph.probes()),
               is_plain ? std::to_string(graph.probe_bytes())
                        : numerics::FormatBytes(graph.probe_bytes()),
               graph.pool().empty() ? "-" : fmt::format("{}.{}", graph.pool(0), graph.pool(1)),
               StackText(graph, options.verbose || is_plain)});
  }
  return table;
}

std::string Plural(std::uint64_t count, const char* one, const char* many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

std::string Summary(const v1::SessionGraphs& session) {
  std::uint64_t live = 0;
  for (const v1::GraphInfo& graph : session.graphs()) live += IsThere(graph);
  std::string text =
      fmt::format("{}: {}, {} there now, {} gone", Printable(session.session_label()),
                  Plural(session.captures(), "capture", "captures"), live, session.gone());
  if (session.failed() > 0) text += fmt::format(", {} failed", session.failed());
  return text;
}

// What looks like a mistake, with what to type next.
void SayHints(const Context& context, const v1::SessionGraphs& session) {
  const std::string show = "Type: cgdebug-cli graphs " + Printable(session.session());
  const auto say = [&](auto matches, const std::function<std::string(std::size_t)>& what,
                       const char* only) {
    const v1::GraphInfo* newest = nullptr;
    std::size_t count = 0;
    for (const v1::GraphInfo& graph : session.graphs()) {
      if (!matches(graph)) continue;
      newest = &graph;
      ++count;
    }
    if (count == 0) return;
    context.Note(fmt::format("{}, such as {} by {}. {} --only {} -v", what(count),
                             GraphName(*newest), StackText(*newest, false), show, only));
  };
  say(
      IsUnreplayed,
      [](std::size_t count) {
        return Plural(count, "graph was captured and never replayed",
                      "graphs were captured and never replayed");
      },
      "unreplayed");
  say(
      IsEmpty,
      [](std::size_t count) {
        return Plural(count, "graph is empty: its capture recorded no work",
                      "graphs are empty: their captures recorded no work");
      },
      "empty");
  say(
      IsFailed,
      [](std::size_t count) {
        return Plural(count, "capture ended with an error", "captures ended with an error");
      },
      "failed");
  // One line for each place that captures.
  std::map<std::string, const v1::GraphInfo*> places;
  for (const v1::GraphInfo& graph : session.graphs()) {
    if (IsAgain(graph)) places[graph.stack()] = &graph;
  }
  for (const auto& [stack, graph] : places) {
    context.Note(fmt::format(
        "{} has captured {} times, {} of them to replace a graph that was thrown away: each "
        "capture costs time that replays are to save. {} --only again -v",
        StackText(*graph, false), graph->alike(), graph->alike_gone(), show));
  }
  if (session.unlisted() > 0) {
    context.Note(fmt::format("{} are not listed: too many lived at the same time. {} --json",
                             Plural(session.unlisted(), "more graph", "more graphs"), show));
  }
  if (session.unlisted_replays() > 0) {
    context.Note(fmt::format(
        "{} of graphs that are not listed, such as those captured before the job's first probe "
        "was made. Make a probe first, then type: cgdebug-cli graphs",
        Plural(session.unlisted_replays(), "replay was", "replays were")));
  }
}

Json SessionJson(const v1::SessionGraphs& session, const GraphsOptions& options) {
  Json graphs = Json::array();
  for (const v1::GraphInfo& graph : session.graphs()) {
    if (options.only.empty() || IsShown(graph, options)) graphs.push_back(ToJson(graph));
  }
  return {{"session", session.session()},
          {"session_label", session.session_label()},
          {"rank", session.rank()},
          {"captures", session.captures()},
          {"gone", session.gone()},
          {"failed", session.failed()},
          {"empty", session.empty()},
          {"unlisted", session.unlisted()},
          {"unlisted_replays", session.unlisted_replays()},
          {"graphs", std::move(graphs)}};
}

int RunGraphs(Context& context, const GraphsOptions& options) {
  if (const int failed = context.Connect(); failed != kExitOk) return failed;
  v1::GraphsRequest request;
  request.set_session(options.selector.empty() ? context.options.session : options.selector);
  const Result<v1::GraphsReply> reply = context.client().Graphs(request);
  if (!reply.ok()) return context.Fail(reply.error());
  std::vector<v1::SessionGraphs> sessions;
  for (const v1::SessionGraphs& session : reply->sessions()) {
    const bool is_meant = !request.session().empty() || session.captures() > 0;
    if (is_meant && context.ranks.Contains(session.rank())) sessions.push_back(session);
  }
  if (context.options.json) {
    Json array = Json::array();
    for (const v1::SessionGraphs& session : sessions)
      array.push_back(SessionJson(session, options));
    Context::Print(Dump({{"sessions", std::move(array)}}, /*indented=*/true) + "\n");
  }
  const bool has_graphs = std::ranges::any_of(
      sessions, [](const v1::SessionGraphs& session) { return session.captures() > 0; });
  if (!has_graphs) {
    return context.FailNoJob(
        "no job has captured a CUDA graph since its first probe was made. Type: cgdebug-cli ps");
  }
  if (context.options.json) return kExitOk;
  for (const v1::SessionGraphs& session : sessions) {
    const TextTable table = MakeTable(session, options, context.options.plain);
    if (context.options.plain) {
      Context::Print(table.RenderPlain());
      continue;
    }
    Context::Print(context.out.Bold(Summary(session)) + "\n");
    if (!table.empty()) {
      Context::Print(
          table.Render(context.out, options.verbose ? 0 : TerminalColumns(STDOUT_FILENO)));
    }
    SayHints(context, session);
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
  return [options](Context& context) { return RunGraphs(context, *options); };
}

}  // namespace cgdebug::cli
