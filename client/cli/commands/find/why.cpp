#include "client/analysis/why/why.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "client/analysis/ops/op_log.h"
#include "client/analysis/why/why_report.h"
#include "client/cli/command.h"
#include "client/cli/commands/find/causes.h"
#include "client/cli/commands/find/compare_runs.h"
#include "client/cli/commands/find/verified_causes.h"
#include "client/cli/sources/sources.h"
#include "daemon/core/options/number.h"

namespace cgdebug::cli {
namespace {

struct WhyCommand {
  std::string source = "live";
  std::string other;
  std::size_t max_rows = 10;
  bool verify = false;
};

// Of two runs: where they begin to differ.
int CompareRuns(Context& context, const WhyCommand& command) {
  for (const std::string* name : {&command.source, &command.other}) {
    std::unique_ptr<source::Source> source;
    if (const int failed = OpenSourceOfRanks(context, *name, &source)) return failed;
    if (!analysis::HasOpLog(*source)) return CompareProbes(context, command.source, command.other);
  }
  return CompareOpLogs(context, command.source, command.other);
}

int RunWhy(Context& context, const WhyCommand& command) {
  if (!command.other.empty()) return CompareRuns(context, command);
  std::unique_ptr<source::Source> source;
  if (const int failed = OpenSourceOfRanks(context, command.source, &source)) return failed;
  Result<analysis::why::Causes> causes = analysis::why::FindCauses(*source);
  if (!causes.ok()) return context.Fail(kExitTrouble, causes.error().message);
  VerifyCauses(context, *source, command.verify, &*causes);
  const analysis::why::CommandOf command_of = CommandsIn(context, *source, command.source);
  if (causes->findings.empty() && !source->Recordings().empty() && !source->slots().empty()) {
    context.Note(
        fmt::format("where a run that is right was recorded, too: cgdebug-cli why RIGHT {}",
                    ShellWord(command.source)));
  }
  return ShowFound(
      context, *source, causes->outcome(),
      [&] { return analysis::why::CausesJson(*source, *causes, command_of); },
      [&] { return analysis::why::CausesAnswer(*source, *causes, command_of, command.max_rows); });
}

}  // namespace

analysis::why::CommandOf CommandsIn(const Context& context, const source::Source& source,
                                    const std::string& name) {
  const analysis::why::CommandOf of_source = analysis::why::CommandsOf(name);
  return [&context, &source, &name, of_source](const source::Slot& slot,
                                               const analysis::why::Place& place) {
    const std::string job = slot.session.empty() ? "" : KeyOfJob(source, source::ProcessOf(slot));
    const std::string of_rank = slot.rank >= 0 ? fmt::format(" --ranks {}", slot.rank) : "";
    const bool is_one_of_several = !job.empty() && source.Describe().sessions.size() > 1;
    const std::string among = of_rank + (is_one_of_several ? " -s " + job : "");
    if (!place.command.empty()) {
      const bool takes_job = place.command == "graphs" || place.command == "where";
      if (takes_job && name == "live") {
        return fmt::format("cgdebug-cli {}{}", place.command, context.SameSession());
      }
      if (takes_job && name.starts_with("live:")) {
        return fmt::format("cgdebug-cli {} {}", place.command, ShellWord(name.substr(5)));
      }
      const bool takes_rank = place.command == "races" || place.command == "audit";
      return fmt::format("cgdebug-cli {} {}{}", place.command, ShellWord(name),
                         takes_rank ? among : context.SameJob());
    }
    if (name == "live" && !job.empty() && slot.rank < 0) {
      return analysis::why::CommandsOf(job)(slot, place);
    }
    return of_source(slot, place) + among;
  };
}

RunFunction AddWhy(CLI::App& app) {
  auto command = std::make_shared<WhyCommand>();
  app.add_option("SOURCE", command->source, kSourceHelp);
  app.add_option("OTHER", command->other,
                 "another source: where the two begin to differ, as `ops diff` says it of op logs, "
                 "and `diff --first` of other probes");
  app.add_option("--max-rows", command->max_rows, "how many findings to show (10)")
      ->check(WholeNumber(1))
      ->type_name("N");
  app.add_flag("--verify", command->verify,
               "run the replays of the findings again, where a live job has kept them (run "
               "--rewind); without it, that of the first one");
  return [command](Context& context) { return RunWhy(context, *command); };
}

}  // namespace cgdebug::cli
