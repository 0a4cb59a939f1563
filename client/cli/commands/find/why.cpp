#include "client/analysis/why/why.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "client/analysis/ops/op_log.h"
#include "client/analysis/why/why_report.h"
#include "client/cli/command.h"
#include "client/cli/sources/sources.h"
#include "client/cli/views/source_rows.h"
#include "client/cli/views/tensor/snapshot_text.h"
#include "daemon/core/options/number.h"

namespace cgdebug::cli {
namespace {

struct WhyCommand {
  std::string source = "live";
  std::size_t max_rows = 10;
};

int RunWhy(Context& context, const WhyCommand& command) {
  std::unique_ptr<source::Source> source;
  if (const int failed = OpenSource(context, command.source, &source); failed != kExitOk) {
    return failed;
  }
  const Result<analysis::why::Causes> causes = analysis::why::FindCauses(*source);
  if (!causes.ok()) return context.Fail(kExitTrouble, causes.error().message);
  const auto command_of = [&](const source::Slot& slot, const analysis::why::Place& place) {
    const std::string among = (slot.rank >= 0 ? fmt::format(" --ranks {}", slot.rank) : "") +
                              (slot.session.empty() ? "" : " -s " + KeyOfJob(*source, slot));
    if (!place.command.empty()) {
      const bool takes_job = place.command == "graphs" || place.command == "where";
      if (takes_job && command.source == "live") {
        return fmt::format("cgdebug-cli {}{}", place.command, context.SameSession());
      }
      if (takes_job && command.source.starts_with("live:")) {
        return fmt::format("cgdebug-cli {} {}", place.command, ShellWord(command.source.substr(5)));
      }
      return fmt::format("cgdebug-cli {} {}{}", place.command, ShellWord(command.source),
                         place.command == "races" || place.command == "audit" ? among : "");
    }
    if (analysis::ParseOpText(slot.op)) {
      return OpsCommandOf(command.source, slot, place.replay) + among;
    }
    const std::string at = place.replay == 0 ? "" : ReplayMark(slot, place.replay);
    return "cgdebug-cli show " +
           ShellWord(fmt::format("{}:{}{}", command.source, SlotText(slot), at)) + among;
  };
  return ShowFound(
      context, *source, causes->outcome(),
      [&] { return analysis::why::CausesJson(*source, *causes, command_of); },
      [&] { return analysis::why::CausesAnswer(*source, *causes, command_of, command.max_rows); });
}

}  // namespace

RunFunction AddWhy(CLI::App& app) {
  auto command = std::make_shared<WhyCommand>();
  app.add_option("SOURCE", command->source, kSourceHelp);
  app.add_option("--max-rows", command->max_rows, "how many findings to show (10)")
      ->check(WholeNumber(1))
      ->type_name("N");
  return [command](Context& context) { return RunWhy(context, *command); };
}

}  // namespace cgdebug::cli
