#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "client/cli/command.h"
#include "client/cli/sources.h"
#include "client/cli/views/json.h"
#include "client/cli/views/session_text.h"
#include "client/cli/views/snapshot_text.h"
#include "client/cli/views/source_table.h"
#include "client/live/messages.h"
#include "daemon/core/numerics/format.h"

namespace cgdebug::cli {
namespace {

struct ProbesOptions {
  std::vector<std::string> probes;
  std::string sort = "order";
  WhichOptions which;
  bool each = false;  // graph and shape
  bool all = false;
};

// Of the sessions that are shown where none was named, the oldest first. What the note says is
// about the others.
Result<std::vector<v1::ProbeInfo>> CurrentProbes(Context& context, const ProbesOptions& options,
                                                 const v1::ProbesReply& reply, std::string* note) {
  v1::SessionsRequest request;
  request.set_include_dead(true);
  const Result<v1::SessionsReply> all = context.client().Sessions(request);
  if (!all.ok()) return all.error();
  // Of those that have such a probe: others hide nothing.
  std::set<std::string> with_probes;
  for (const v1::ProbeInfo& probe : reply.probes()) {
    if (context.ranks.Contains(probe.rank())) with_probes.insert(probe.session());
  }
  std::vector<v1::Session> sessions;
  for (const v1::Session& session : all->sessions()) {
    if (with_probes.erase(session.key()) == 1) sessions.push_back(session);
  }
  std::set<std::string> shown;
  for (const v1::Session& session : sessions) shown.insert(session.key());
  if (!options.all && context.options.session.empty()) {
    shown.clear();
    const std::vector<v1::Session> current = Current(sessions);
    for (const v1::Session& session : current) shown.insert(session.key());
    const std::size_t hidden = sessions.size() - current.size();
    if (!current.empty() && current.front().state() != v1::Session::ALIVE) {
      *note = fmt::format("no job is alive; the newest that ended is {}. ",
                          Printable(GroupByJob(current).front().name));
    }
    if (hidden > 0) *note += fmt::format("{} more ended: cgdebug-cli probes -a", hidden);
  }
  std::vector<v1::ProbeInfo> probes;
  for (const v1::Session& session : sessions) {
    if (!shown.contains(session.key())) continue;
    for (const v1::ProbeInfo& probe : reply.probes()) {
      if (probe.session() == session.key()) probes.push_back(probe);
    }
  }
  // Of a session that was forgotten, or found, between the two answers.
  for (const v1::ProbeInfo& probe : reply.probes()) {
    if (with_probes.contains(probe.session())) probes.push_back(probe);
  }
  return probes;
}

// Requires: the probes of a session are together, and sessions in order of their beginning.
void Sort(const std::string& by, std::vector<v1::ProbeInfo>* probes) {
  const auto order = [&](auto key) {
    std::stable_sort(
        probes->begin(), probes->end(),
        [&](const v1::ProbeInfo& a, const v1::ProbeInfo& b) { return key(a) < key(b); });
  };
  using Probe = const v1::ProbeInfo&;
  std::map<std::string, std::size_t> place;
  for (Probe probe : *probes) place.emplace(probe.session(), place.size());
  if (by == "order")
    order([&](Probe probe) { return std::make_pair(place.at(probe.session()), probe.slot()); });
  if (by == "name") order([](Probe probe) { return probe.name(); });
  // Largest first: that is what one looks for.
  if (by == "bytes") order([](Probe probe) { return ~probe.payload_bytes(); });
  if (by == "lost") order([](Probe probe) { return ~Lost(probe.counters()); });
  if (by == "replay") order([](Probe probe) { return ~probe.replay(); });
}

std::string VerdictText(const v1::ProbeInfo& probe, const Style& style) {
  const v1::Verdict& verdict = probe.verdict();
  switch (verdict.state()) {
    case v1::Verdict::PASS:
      if (verdict.lost() > 0) {
        return style.Yellow(
            fmt::format("compared {}, {} lost", verdict.compared(), verdict.lost()));
      }
      return style.Green(fmt::format("pass {}", verdict.compared()));
    case v1::Verdict::FAIL:
      return style.Red(fmt::format("FAIL @{} ({} of {})", verdict.first_failed_replay(),
                                   verdict.mismatched(), verdict.compared()));
    case v1::Verdict::ERROR:
      return style.Red("ERROR: " + Printable(verdict.text()));
    default:
      return "";
  }
}

std::string LastText(const v1::ProbeInfo& probe, const Style& style) {
  std::vector<std::string> parts;
  if (probe.retired()) parts.push_back(style.Dim("retired"));
  if (probe.has_control()) parts.push_back(style.Yellow("[" + ControlText(probe.control()) + "]"));
  if (const std::string verdict = VerdictText(probe, style); !verdict.empty()) {
    parts.push_back(verdict);
  }
  if (probe.has_last_stats()) {
    parts.push_back(numerics::FormatStats(live::DtypeOf(probe.dtype()), ShapeOf(probe.shape()),
                                          live::StatsOf(probe.last_stats()), style.enabled()));
  } else {
    parts.push_back("no snapshot yet");
  }
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : "  ") + part;
  return text;
}

std::string Actions(const v1::ProbeInfo& probe) {
  return probe.actions().empty() ? "-" : fmt::format("{}", fmt::join(ActionsOf(probe), ","));
}

// Calls of one name in several graphs, or with several shapes.
using Group = std::vector<const v1::ProbeInfo*>;
using Groups = std::map<std::tuple<std::string, std::string, std::uint32_t>, Group>;

Groups::key_type GroupKey(const v1::ProbeInfo& probe) {
  return {probe.session(), probe.name(), probe.invocation()};
}

// Those that would take too many lines.
Groups GroupsOf(const std::vector<v1::ProbeInfo>& probes) {
  Groups groups;
  for (const v1::ProbeInfo& probe : probes) groups[GroupKey(probe)].push_back(&probe);
  std::erase_if(groups,
                [](const auto& group) { return group.second.size() <= kMostLinesOfAProbe; });
  return groups;
}

std::string FindingsText(const Group& group, const Style& style) {
  std::uint64_t bad = 0, failed = 0;
  const v1::FirstNonfinite* first = nullptr;
  for (const v1::ProbeInfo* probe : group) {
    bad += probe->has_first_nan() || probe->has_first_inf();
    failed += probe->verdict().state() == v1::Verdict::FAIL;
    for (const v1::FirstNonfinite* one : {&probe->first_nan(), &probe->first_inf()}) {
      if (one->replay() == 0) continue;
      if (first == nullptr || one->serial() < first->serial()) first = one;
    }
  }
  std::string text = first == nullptr
                         ? FoldedFindings(0, "", 0, style)
                         : FoldedFindings(bad, first->qualifier(), first->replay(), style);
  if (failed > 0) text += style.Red(fmt::format("  {} FAIL", failed));
  return text;
}

// One line for all of them.
void AppendGroup(const Group& group, const Style& style, std::vector<std::string>* row) {
  std::set<std::string> types, devices, lanes, policies, actions;
  std::set<std::uint64_t> graphs;
  std::uint64_t replay = 0, lost = 0;
  for (const v1::ProbeInfo* probe : group) {
    types.insert(TypeText(probe->dtype(), probe->shape()));
    devices.insert(Printable(probe->device()));
    lanes.insert(LaneName(probe->lane()));
    policies.insert(PolicyName(probe->policy()));
    actions.insert(Actions(*probe));
    graphs.insert(probe->graph_id());
    replay = std::max(replay, probe->replay());
    lost += Lost(probe->counters());
  }
  const auto one_of = [](const std::set<std::string>& texts, const char* noun) {
    return texts.size() == 1 ? *texts.begin() : fmt::format("{} {}", texts.size(), noun);
  };
  const v1::ProbeInfo& front = *group.front();
  row->insert(row->end(),
              {ProbeText(front.name(), front.invocation()), one_of(types, "shapes"),
               one_of(devices, "devices"), one_of(lanes, "lanes"), one_of(policies, "policies"),
               one_of(actions, "kinds"),
               graphs.size() > 1    ? fmt::format("{} graphs", graphs.size())
               : graphs.contains(0) ? std::string("eager")
                                    : Printable(front.graph()),
               "-", std::to_string(replay), lost == 0 ? "0" : style.Yellow(std::to_string(lost)),
               FindingsText(group, style)});
}

TextTable MakeTable(const std::vector<v1::ProbeInfo>& probes, const Style& style, bool with_session,
                    bool is_whole) {
  using Align = TextTable::Align;
  std::vector<TextTable::Column> columns;
  if (with_session) columns.push_back({"SESSION"});
  for (const char* title : {"PROBE", "TENSOR"}) columns.push_back({title});
  for (const char* title : {"DEVICE", "LANE", "POLICY", "ACTIONS"}) {
    columns.push_back({title, Align::kLeft, /*is_optional=*/true});
  }
  columns.push_back({"GRAPH"});
  columns.push_back({"RING", Align::kRight, /*is_optional=*/true});
  for (const char* title : {"REPLAY", "LOST"}) columns.push_back({title, Align::kCount});
  columns.push_back({"LAST"});
  TextTable table(columns);
  const Groups groups = is_whole ? Groups() : GroupsOf(probes);
  for (const v1::ProbeInfo& probe : probes) {
    const auto group = groups.find(GroupKey(probe));
    if (group != groups.end()) {
      if (group->second.front() != &probe) continue;
      std::vector<std::string> row;
      if (with_session) row.push_back(Printable(probe.session_label()));
      AppendGroup(group->second, style, &row);
      table.Add(std::move(row));
      continue;
    }
    std::vector<std::string> row;
    if (with_session) row.push_back(Printable(probe.session_label()));
    const std::uint64_t lost = Lost(probe.counters());
    row.insert(
        row.end(),
        {ProbeText(probe.name(), probe.invocation()), TypeText(probe.dtype(), probe.shape()),
         Printable(probe.device()), LaneName(probe.lane()), PolicyName(probe.policy()),
         Actions(probe), probe.graph_id() == 0 ? "eager" : Printable(probe.graph()),
         fmt::format("{}x{}", probe.capacity(), numerics::FormatBytes(probe.payload_bytes())),
         std::to_string(probe.replay()), lost == 0 ? "0" : style.Yellow(std::to_string(lost)),
         LastText(probe, style)});
    table.Add(std::move(row));
  }
  return table;
}

// Of a file instead of the daemon: `probes a.cgrec 'blk*'`.
int RunProbesOf(Context& context, const ProbesOptions& options) {
  std::unique_ptr<source::Source> source;
  if (const int failed = OpenSource(context, options.probes.front(), &source); failed != kExitOk) {
    return failed;
  }
  SayUnread(context, *source);
  const ScopeOptions wanted{.probes = {options.probes.begin() + 1, options.probes.end()},
                            .replays = "",
                            .which = options.which};
  const Result<analysis::Scope> scope = MakeScope(context, wanted);
  if (!scope.ok()) return context.Fail(kExitTrouble, scope.error().message);
  if (context.options.json) {
    Result<Json> probes = SlotsJson(*source, *scope);
    if (!probes.ok()) return context.Fail(kExitTrouble, probes.error().message);
    if (probes->empty()) return FailNoProbe(context, *source, wanted);
    Context::Print(Dump({{"probes", *std::move(probes)}}, /*indented=*/true) + "\n");
    return kExitOk;
  }
  const bool is_whole = options.each || context.options.plain || !scope->which.selects_all();
  const Result<TextTable> table = SlotTable(*source, *scope, context.out, is_whole);
  if (!table.ok()) return context.Fail(kExitTrouble, table.error().message);
  if (table->empty()) return FailNoProbe(context, *source, wanted);
  Context::Print(context.options.plain
                     ? table->RenderPlain()
                     : table->Render(context.out, TerminalColumns(STDOUT_FILENO)));
  return kExitOk;
}

int RunProbes(Context& context, const ProbesOptions& options) {
  if (!options.probes.empty() && source::LooksLikeSource(options.probes.front())) {
    const std::string& name = options.probes.front();
    if (!source::IsWrittenAsPath(name)) {
      context.Note(fmt::format(
          "cgdebug: '{0}' is read as the folder of that name. A live probe: 're:{0}'", name));
    }
    return RunProbesOf(context, options);
  }
  const Result<WhichSlots> which = options.which.Parse();
  if (!which.ok()) return context.Fail(kExitTrouble, which.error().message);
  if (const int failed = context.Connect(); failed != kExitOk) return failed;
  v1::ProbesRequest request;
  request.set_session(context.options.session);
  for (const std::string& probe : options.probes) request.add_probes(probe);
  const Result<v1::ProbesReply> reply = context.client().Probes(request);
  if (!reply.ok()) return context.Fail(reply.error());

  std::string note;
  Result<std::vector<v1::ProbeInfo>> current = CurrentProbes(context, options, *reply, &note);
  if (!current.ok()) return context.Fail(current.error());
  std::vector<v1::ProbeInfo>& probes = *current;
  std::erase_if(probes, [&](const v1::ProbeInfo& probe) {
    return !which->Matches(probe.graph_id(), probe.graph(), ShapeOf(probe.shape()));
  });
  std::set<std::string> sessions;
  for (const v1::ProbeInfo& probe : probes) sessions.insert(probe.session());
  Sort(options.sort, &probes);
  if (context.options.json) {
    Json array = Json::array();
    for (const v1::ProbeInfo& probe : probes) array.push_back(ToJson(probe));
    Context::Print(Dump({{"probes", std::move(array)}}, /*indented=*/true) + "\n");
  }
  if (probes.empty()) {
    return context.FailNoJob(
        context.ranks.selects_all()
            ? "no job of this user has a probe. Type: cgdebug-cli run -- python train.py"
            : "no such probe is on ranks " + context.options.ranks + ". Type: cgdebug-cli ps -a");
  }
  if (context.options.json) return kExitOk;
  if (context.options.plain) {
    Context::Print(
        MakeTable(probes, Style(), /*with_session=*/true, /*is_whole=*/true).RenderPlain());
    return kExitOk;
  }
  const bool is_whole = options.each || !which->selects_all();
  Context::Print(MakeTable(probes, context.out, sessions.size() > 1, is_whole)
                     .Render(context.out, TerminalColumns(STDOUT_FILENO)));
  if (!note.empty()) context.Note(note);
  return kExitOk;
}

}  // namespace

RunFunction AddProbes(CLI::App& app) {
  auto options = std::make_shared<ProbesOptions>();
  app.add_option(
      "PROBE", options->probes,
      "globs; 're:...' a regular expression, '!...' excludes; first a recording or .safetensors "
      "file, or a folder that holds some, for its probes");
  app.add_flag("-a,--all", options->all, "of jobs that ended, too");
  AddWhichOptions(app, &options->which);
  app.add_flag("-v,--verbose", options->each, "a line for each graph and shape of a probe");
  app.add_option("--sort", options->sort,
                 "order: as in the graph; bytes, lost, replay: largest first")
      ->check(CLI::IsMember({"order", "name", "bytes", "lost", "replay"}))
      ->type_name("{order,name,bytes,lost,replay}");
  return [options](Context& context) { return RunProbes(context, *options); };
}

}  // namespace cgdebug::cli
