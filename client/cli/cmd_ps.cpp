#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>

#include "client/cli/command.h"
#include "client/cli/json.h"
#include "client/cli/session_text.h"
#include "client/cli/snapshot_text.h"

namespace cgdebug::cli {
namespace {

struct PsOptions {
  bool all = false;
  bool no_trunc = false;
};

TextTable MakeTable(const std::vector<v1::Session>& sessions, bool plain) {
  using Align = TextTable::Align;
  TextTable table({{"KEY"},
                   {"SESSION"},
                   {"PID", Align::kRight},
                   {"RANK", Align::kRight},
                   {"STATE"},
                   {"AGE", Align::kRight},
                   {"PROBES", Align::kRight},
                   {"REPLAY", Align::kRight},
                   {"LOST", Align::kRight},
                   {"COMMAND"}});
  for (const v1::Session& session : sessions) {
    const double age_s = AgeSeconds(session);
    table.Add({Printable(session.key()), Printable(session.label()), std::to_string(session.pid()),
               session.rank() < 0 ? "-" : std::to_string(session.rank()),
               std::string(StateText(session.state())),
               plain ? fmt::format("{:.0f}", age_s) : FormatDuration(age_s),
               std::to_string(session.probe_count()), std::to_string(session.replay()),
               std::to_string(Lost(session.counters())), Printable(session.command())});
  }
  return table;
}

int NothingToList(Context& context, std::size_t dead_count) {
  if (dead_count > 0) {
    return context.Fail(kExitNoMatch,
                        fmt::format("no job with probes is alive; {} dead but readable. Type: "
                                    "cgdebug-cli ps -a",
                                    dead_count));
  }
  if (!context.options.session.empty() || !context.ranks.selects_all()) {
    return context.FailNoJob("no session matches. Type: cgdebug-cli ps -a");
  }
  return context.FailNoJob(
      "no job of this user on this machine has probes. Type: cgdebug-cli run -- "
      "python train.py   (what may be wrong: cgdebug-cli doctor)");
}

int RunPs(Context& context, const PsOptions& options) {
  if (const int failed = context.Connect(); failed != kExitOk) return failed;
  v1::SessionsRequest request;
  request.set_include_dead(true);
  const Result<v1::SessionsReply> reply = context.client().Sessions(request);
  if (!reply.ok()) return context.Fail(reply.error());

  std::vector<v1::Session> sessions;
  std::size_t dead_count = 0;
  for (const v1::Session& session : reply->sessions()) {
    if (!MatchesSession(session, context.options.session)) continue;
    if (!context.ranks.Contains(session.rank())) continue;
    const bool is_dead = session.state() != v1::Session::ALIVE;
    if (is_dead) ++dead_count;
    if (!is_dead || options.all) sessions.push_back(session);
  }
  if (context.options.json) {
    Json array = Json::array();
    for (const v1::Session& session : sessions) array.push_back(ToJson(session));
    Context::Print(Dump({{"sessions", std::move(array)}}, /*indented=*/true) + "\n");
  }
  if (sessions.empty()) return NothingToList(context, dead_count);
  if (context.options.json) return kExitOk;
  const TextTable table = MakeTable(sessions, context.options.plain);
  if (context.options.plain) {
    Context::Print(table.RenderPlain());
    return kExitOk;
  }
  Context::Print(table.Render(context.out, options.no_trunc ? 0 : TerminalColumns(STDOUT_FILENO)));
  if (dead_count > 0 && !options.all) {
    context.Note(fmt::format("{} more dead but readable: cgdebug-cli ps -a", dead_count));
  }
  return kExitOk;
}

}  // namespace

RunFunction AddPs(CLI::App& app) {
  auto options = std::make_shared<PsOptions>();
  app.add_flag("-a,--all", options->all, "dead ones too, as long as their rings can be read");
  app.add_flag("--no-trunc", options->no_trunc, "do not cut the command to the terminal");
  return [options](Context& context) { return RunPs(context, *options); };
}

}  // namespace cgdebug::cli
