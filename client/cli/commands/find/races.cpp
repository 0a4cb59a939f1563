#include "client/analysis/ops/races.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "client/cli/command.h"
#include "client/cli/sources/sources.h"
#include "daemon/core/options/number.h"

namespace cgdebug::cli {
namespace {

struct RacesCommand {
  std::string source = "live";
  std::size_t max_rows = 10;
};

int RunRaces(Context& context, const RacesCommand& command) {
  std::unique_ptr<source::Source> source;
  if (const int failed = OpenSourceOfRanks(context, command.source, &source)) return failed;
  const analysis::Races races = analysis::FindRaces(*source);
  return ShowFound(
      context, *source, races.outcome(), [&] { return analysis::RacesJson(*source, races); },
      [&] { return analysis::RacesAnswer(races, command.max_rows); });
}

}  // namespace

RunFunction AddRaces(CLI::App& app) {
  auto command = std::make_shared<RacesCommand>();
  app.add_option("SOURCE", command->source, kSourceHelp);
  app.add_option("--max-rows", command->max_rows, "how many races of a graph to show (10)")
      ->check(WholeNumber(1))
      ->type_name("N");
  return [command](Context& context) { return RunRaces(context, *command); };
}

}  // namespace cgdebug::cli
