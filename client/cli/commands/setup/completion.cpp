#include "client/cli/completion.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <set>

#include "client/cli/command.h"
#include "client/live/sessions.h"
#include "client/source/source.h"

namespace cgdebug::cli {
namespace {

// Completion may never print an error, wait, or start anything.
client::ConnectOptions QuietConnect(const Context& context) {
  client::ConnectOptions connect = context.MakeConnectOptions();
  connect.start_daemon = false;
  connect.timeout = std::chrono::milliseconds(500);
  return connect;
}

int PrintProbes(Context& context) {
  const Result<std::vector<live::Probe>> probes =
      live::ListProbes(context.client(), context.options.session, {}, live::LastStats::kNone);
  if (!probes.ok()) return kExitOk;
  std::set<std::string> names;
  for (const live::Probe& probe : *probes) names.insert(Printable(probe.slot.probe));
  for (const std::string& name : names) Context::Print(name + "\n");
  return kExitOk;
}

int PrintProbesOf(const std::string& recording) {
  const Result<std::unique_ptr<source::Source>> opened = source::Open(recording);
  if (!opened.ok()) return kExitOk;
  std::set<std::string> names;
  for (const source::Slot& slot : (*opened)->slots()) names.insert(Printable(slot.probe));
  for (const std::string& name : names) Context::Print(name + "\n");
  return kExitOk;
}

int PrintSessions(Context& context) {
  const Result<std::vector<live::Session>> sessions = live::ListSessions(context.client());
  if (!sessions.ok()) return kExitOk;
  for (const live::Session& session : *sessions) Context::Print(Printable(session.label) + "\n");
  return kExitOk;
}

}  // namespace

RunFunction AddCompletion(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  app.add_option("SHELL", *shell, "bash")
      ->required()
      ->check(CLI::IsMember({"bash"}))
      ->type_name("{bash}");
  return [shell](Context& context) {
    Context::Print(BashCompletion(*context.app));
    return static_cast<int>(kExitOk);
  };
}

RunFunction AddComplete(CLI::App& app) {
  auto kind = std::make_shared<std::string>();
  auto recording = std::make_shared<std::string>();
  app.add_option("KIND", *kind, "probes or sessions")->required();
  app.add_option("RECORDING", *recording, "whose probes; of the daemon without it");
  return [kind, recording](Context& context) {
    if (!recording->empty()) return PrintProbesOf(*recording);
    if (!context.client().Connect(QuietConnect(context)).ok()) return static_cast<int>(kExitOk);
    return *kind == "sessions" ? PrintSessions(context) : PrintProbes(context);
  };
}

}  // namespace cgdebug::cli
