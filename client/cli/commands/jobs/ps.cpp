#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "client/cli/command.h"
#include "client/cli/views/json.h"
#include "client/cli/views/live/session_text.h"
#include "client/live/sessions.h"
#include "client/live/status.h"
#include "daemon/core/base/duration.h"
#include "daemon/core/base/suggest.h"
#include "daemon/core/numerics/format.h"

namespace cgdebug::cli {
namespace {

struct PsOptions {
  bool all = false;
  bool no_trunc = false;
  bool prune = false;
};

TextTable TableOf(TextTable::Column ranks, bool probes_are_optional) {
  using Align = TextTable::Align;
  return TextTable({{"KEY"},
                    {"SESSION"},
                    {"PID", Align::kRight},
                    std::move(ranks),
                    {"STATE"},
                    {"AGE", Align::kRight},
                    {"PROBES", Align::kCount, probes_are_optional},
                    {"REPLAY", Align::kCount},
                    {"LOST", Align::kCount},
                    {"COMMAND", Align::kLeft, true}});
}

TextTable MakeTable(const std::vector<live::Session>& sessions) {
  TextTable table = TableOf({"RANK", TextTable::Align::kRight, true}, true);
  for (const live::Session& session : sessions) {
    const double age_s = live::SecondsSince(session.created_ns);
    table.Add({Printable(session.key), Printable(session.label), std::to_string(session.pid),
               session.rank < 0 ? "-" : std::to_string(session.rank),
               live::StalledSeconds(session) > 0 ? StateText(session)
                                                 : std::string(NameOf(session.state)),
               FormatDuration(age_s), std::to_string(session.probes),
               std::to_string(session.replay), std::to_string(session.counters.lost()),
               Printable(session.command)});
  }
  return table;
}

// One row per run. With --ranks or -s, one per rank.
TextTable MakeRunTable(const std::vector<live::JobRanks>& jobs) {
  TextTable table = TableOf({"RANKS", TextTable::Align::kRight}, false);
  for (const live::JobRanks& job : jobs) {
    const live::Session& first = *job.sessions.front();
    double age_s = 0;
    std::uint64_t probes = 0, replay = 0;
    std::map<std::string_view, std::size_t> states;
    for (const live::Session* session : job.sessions) {
      age_s = std::max(age_s, live::SecondsSince(session->created_ns));
      probes += session->probes;
      replay = std::max(replay, session->replay);
      ++states[StateName(*session)];
    }
    std::string state;
    for (const auto& [name, count] : states) {
      if (!state.empty()) state += ", ";
      if (states.size() > 1) state += fmt::format("{} ", count);
      state += name;
    }
    if (job.sessions.size() == 1) state = StateText(first);
    const bool is_one = job.sessions.size() == 1;
    table.Add({is_one ? Printable(first.key) : "-", Printable(is_one ? first.label : job.name),
               is_one ? std::to_string(first.pid) : "-",
               job.has_ranks() ? live::RanksText(job) : "-", state, FormatDuration(age_s),
               std::to_string(probes), std::to_string(replay), std::to_string(job.Counted().lost()),
               Printable(first.command)});
  }
  return table;
}

int NothingToList(Context& context, std::size_t dead_count, const std::vector<std::string>& names) {
  if (dead_count > 0) {
    return context.Fail(kExitNoMatch,
                        fmt::format("no job with probes is alive; {} dead but readable. Type: {}",
                                    dead_count, context.Again("-a")));
  }
  if (!context.options.session.empty() || !context.ranks.selects_all()) {
    return context.FailNoJob("no session matches." + DidYouMean(context.options.session, names) +
                             " Type: cgdebug-cli ps -a");
  }
  return context.FailNoJob(
      "no job of this user on this machine has probes. Type: cgdebug-cli run --watch '*' -- "
      "python train.py   (what may be wrong: cgdebug-cli doctor)");
}

int RunPrune(Context& context) {
  const Result<live::Pruned> pruned = live::Prune(context.client());
  if (!pruned.ok()) return context.Fail(pruned.error());
  if (context.options.json) {
    Context::PrintJson(FieldsJson(*pruned));
    return kExitOk;
  }
  context.Say(fmt::format("{} dead job{} forgotten, {} of shared memory given back",
                          pruned->sessions, pruned->sessions == 1 ? "" : "s",
                          numerics::FormatBytes(pruned->bytes)));
  return kExitOk;
}

int RunPs(Context& context, const PsOptions& options) {
  if (const int failed = context.Connect()) return failed;
  if (options.prune) return RunPrune(context);
  const Result<std::vector<live::Session>> listed = live::ListSessions(context.client());
  if (!listed.ok()) return context.Fail(listed.error());

  std::vector<live::Session> sessions;
  std::size_t dead_count = 0;
  std::vector<std::string> names;
  for (const live::Session& session : *listed) {
    names.push_back(session.label);
    if (!live::MatchesSession(session, context.options.session)) continue;
    if (!context.ranks.Contains(session.rank)) continue;
    const bool is_dead = session.state != live::SessionState::kAlive;
    if (is_dead) ++dead_count;
    if (!is_dead || options.all) sessions.push_back(session);
  }
  if (context.options.json) {
    Context::PrintJson({{"sessions", FieldJson(sessions)}});
  }
  if (sessions.empty()) return NothingToList(context, dead_count, names);
  if (context.options.json) return kExitOk;
  const std::vector<live::JobRanks> jobs = live::GroupByJob(sessions);
  const bool has_runs = jobs.size() < sessions.size() && context.options.session.empty() &&
                        context.ranks.selects_all();
  const TextTable table = has_runs ? MakeRunTable(jobs) : MakeTable(sessions);
  context.PrintTable(table, options.no_trunc ? 0 : TerminalColumns(STDOUT_FILENO));
  if (dead_count > 0 && !options.all) {
    context.Note(fmt::format("{} more dead but readable: {}", dead_count, context.Again("-a")));
  }
  return kExitOk;
}

}  // namespace

RunFunction AddPs(CLI::App& app) {
  auto options = std::make_shared<PsOptions>();
  app.add_flag("-a,--all", options->all, "also dead jobs, as long as their rings can be read");
  app.add_flag("--no-trunc", options->no_trunc, "do not cut the command to the terminal");
  app.add_flag("--prune", options->prune,
               "forget every dead job, and give its shared memory back; recordings stay");
  return [options](Context& context) { return RunPs(context, *options); };
}

}  // namespace cgdebug::cli
