#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "client/cli/command.h"
#include "client/cli/sources/sources.h"
#include "client/cli/views/json.h"
#include "client/cli/views/live/live_table.h"
#include "client/cli/views/source_table.h"
#include "client/live/probe.h"
#include "client/live/sessions.h"

namespace cgdebug::cli {
namespace {

struct ProbesOptions {
  std::vector<std::string> probes;
  std::string sort = "order";
  WhichOptions which;
  bool each = false;  // a line for each graph and shape
  bool all = false;
};

// The probes of the sessions that are shown if none was named, the oldest first. The note says what
// is hidden.
Result<std::vector<live::Probe>> CurrentProbes(Context& context, const ProbesOptions& options,
                                               const std::vector<live::Probe>& listed,
                                               std::string* note) {
  const Result<std::vector<live::Session>> all = live::ListSessions(context.client());
  if (!all.ok()) return all.error();
  // Only sessions with such a probe: hiding the others hides nothing.
  std::set<std::string> with_probes;
  for (const live::Probe& probe : listed) {
    if (context.ranks.Contains(probe.slot.rank)) with_probes.insert(probe.session);
  }
  std::vector<live::Session> sessions;
  for (const live::Session& session : *all) {
    if (with_probes.erase(session.key) == 1) sessions.push_back(session);
  }
  std::set<std::string> shown;
  for (const live::Session& session : sessions) shown.insert(session.key);
  if (!options.all && context.options.session.empty()) {
    shown.clear();
    const std::vector<live::Session> current = live::Current(sessions);
    for (const live::Session& session : current) shown.insert(session.key);
    const std::size_t hidden = sessions.size() - current.size();
    const auto is_alive = [](const live::Session& session) {
      return session.state == live::SessionState::kAlive;
    };
    if (!current.empty() && !is_alive(current.front())) {
      *note =
          fmt::format("{}; the newest that ended is {}. ",
                      std::ranges::any_of(*all, is_alive) ? "no job that is alive has such a probe"
                                                          : "no job is alive",
                      Printable(live::GroupByJob(current).front().name));
      if (hidden == 0) *note += "All jobs: cgdebug-cli ps -a";
    }
    if (hidden > 0) *note += fmt::format("{} more ended: {}", hidden, context.Again("-a"));
  }
  std::vector<live::Probe> probes;
  for (const live::Session& session : sessions) {
    if (!shown.contains(session.key)) continue;
    for (const live::Probe& probe : listed) {
      if (probe.session == session.key) probes.push_back(probe);
    }
  }
  // Probes of a session that was forgotten, or found, between the two answers.
  for (const live::Probe& probe : listed) {
    if (with_probes.contains(probe.session)) probes.push_back(probe);
  }
  return probes;
}

// Requires: the probes of a session are together, and sessions in order of their beginning.
void Sort(const std::string& by, std::vector<live::Probe>* probes) {
  using Probe = const live::Probe&;
  const auto order = [&](auto key) {
    std::stable_sort(probes->begin(), probes->end(),
                     [&](Probe a, Probe b) { return key(a) < key(b); });
  };
  std::map<std::string, std::size_t> place;
  for (Probe probe : *probes) place.emplace(probe.session, place.size());
  if (by == "order")
    order([&](Probe probe) { return std::make_pair(place.at(probe.session), probe.slot.order); });
  if (by == "name") order([](Probe probe) { return probe.slot.probe; });
  // Largest first: that is what one looks for.
  if (by == "bytes") order([](Probe probe) { return ~probe.slot.payload_bytes; });
  if (by == "lost") order([](Probe probe) { return ~probe.counters.lost(); });
  if (by == "replay") order([](Probe probe) { return ~probe.replay; });
}

// The probes of a file instead of the daemon's: `probes a.cgrec 'blk*'`.
int RunProbesOf(Context& context, const ProbesOptions& options) {
  std::unique_ptr<source::Source> source;
  if (const int failed = OpenSource(context, options.probes.front(), &source)) return failed;
  SayUnread(context, *source);
  const ScopeOptions wanted{.probes = {options.probes.begin() + 1, options.probes.end()},
                            .replays = "",
                            .which = options.which};
  const std::string typed = ShellWord(options.probes.front()) + context.SameJob();
  const Result<analysis::Scope> scope = MakeScope(context, wanted);
  if (!scope.ok()) return context.Fail(kExitTrouble, scope.error().message);
  if (context.options.json) {
    Result<Json> probes = SlotsJson(*source, *scope);
    if (!probes.ok()) return context.Fail(kExitTrouble, probes.error().message);
    if (probes->empty()) return FailNoProbe(context, *source, wanted, typed);
    Context::PrintJson({{"probes", *std::move(probes)}});
    return kExitOk;
  }
  const bool is_whole = options.each || !scope->which.selects_all();
  const Result<TextTable> table = SlotTable(*source, *scope, context.out, is_whole);
  if (!table.ok()) return context.Fail(kExitTrouble, table.error().message);
  if (table->empty()) return FailNoProbe(context, *source, wanted, typed);
  context.PrintTable(*table);
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
  if (const int failed = context.Connect()) return failed;
  const Result<std::vector<live::Probe>> listed =
      live::ListProbes(context.client(), context.options.session, options.probes);
  if (!listed.ok()) return context.Fail(listed.error());

  std::string note;
  Result<std::vector<live::Probe>> current = CurrentProbes(context, options, *listed, &note);
  if (!current.ok()) return context.Fail(current.error());
  std::vector<live::Probe>& probes = *current;
  std::erase_if(probes, [&](const live::Probe& probe) {
    return !which->Matches(probe.slot.graph_id, probe.slot.graph, probe.slot.shape);
  });
  std::set<std::string> sessions;
  for (const live::Probe& probe : probes) sessions.insert(probe.session);
  Sort(options.sort, &probes);
  if (context.options.json) {
    Context::PrintJson({{"probes", FieldJson(probes)}});
  }
  if (probes.empty()) {
    return context.FailNoJob(context.ranks.selects_all()
                                 ? "no job of this user has a probe. Type: cgdebug-cli run --watch "
                                   "'*' -- python train.py"
                                 : "no such probe is on ranks " + context.options.ranks +
                                       ". Type: cgdebug-cli ps -a");
  }
  if (context.options.json) return kExitOk;
  const bool is_whole = options.each || !which->selects_all();
  const bool with_session = sessions.size() > 1;
  context.PrintTable(LiveTable(probes, context.out, with_session, is_whole));
  if (!note.empty()) context.Note(note);
  return kExitOk;
}

}  // namespace

RunFunction AddProbes(CLI::App& app) {
  auto options = std::make_shared<ProbesOptions>();
  app.add_option(
      "PROBE", options->probes,
      "globs; 're:...' a regular expression, '!...' excludes. A recording, a .safetensors file or "
      "a folder of them in front lists the probes in it");
  app.add_flag("-a,--all", options->all, "also probes of jobs that ended");
  AddWhichOptions(app, &options->which);
  app.add_flag("-v,--verbose", options->each, "a line for each graph and shape of a probe");
  app.add_option("--sort", options->sort,
                 "order: as in the graph; bytes, lost, replay: largest first")
      ->check(CLI::IsMember({"order", "name", "bytes", "lost", "replay"}))
      ->type_name("{order,name,bytes,lost,replay}");
  return [options](Context& context) { return RunProbes(context, *options); };
}

}  // namespace cgdebug::cli
