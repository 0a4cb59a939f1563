#include "client/cli/sources/overview.h"

#include <CLI/CLI.hpp>

#include "client/cli/exit_codes.h"

namespace cgdebug::cli {

std::shared_ptr<OverviewOptions> AddOverviewOptions(CLI::App& app) {
  auto options = std::make_shared<OverviewOptions>();
  app.add_option("SOURCE", options->source, kSourceHelp);
  app.add_option("PROBE", options->scope.probes, "globs; 're:...', '!...' excludes");
  app.add_option("--replays", options->scope.replays, "only these replays")->type_name("100..200");
  AddWhichOptions(app, &options->scope.which);
  app.add_flag("-v,--verbose", options->each, "a line for each graph and shape of a probe");
  return options;
}

bool IsWhole(const OverviewOptions& options, const analysis::Scope& scope) {
  return options.each || !scope.which.selects_all();
}

int OpenOverview(Context& context, const OverviewOptions& options,
                 std::unique_ptr<source::Source>* source, analysis::Scope* scope) {
  Result<analysis::Scope> made = MakeScope(context, options.scope);
  if (!made.ok()) return context.Fail(kExitTrouble, made.error().message);
  *scope = *std::move(made);
  if (const int failed = OpenSource(context, options.source, source)) return failed;
  for (const source::Slot& slot : (*source)->slots()) {
    if (scope->Wants(slot)) return kExitOk;
  }
  return FailNoProbe(context, **source, options.scope,
                     ShellWord(options.source) + context.SameJob());
}

analysis::GapSummary GapsIn(source::Source& source, const analysis::Scope& scope) {
  analysis::GapSummary gaps = analysis::SummarizeGaps(source, scope);
  analysis::AddUnreadable(source, scope, &gaps);
  return gaps;
}

int ExitCodeOf(const analysis::GapSummary& gaps) {
  return ExitCodeOf(analysis::OutcomeOf(/*found=*/false, /*complete=*/gaps.count == 0));
}

int PrintTable(Context& context, const Result<TextTable>& table) {
  if (!table.ok()) return context.Fail(kExitTrouble, table.error().message);
  context.PrintTable(*table);
  return kExitOk;
}

}  // namespace cgdebug::cli
