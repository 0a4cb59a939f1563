// overview.h: the probes of a source in one table: what info and stats share.
#pragma once

#include <memory>
#include <string>

#include "client/analysis/gaps.h"
#include "client/cli/command.h"
#include "client/cli/sources/sources.h"

namespace cgdebug::cli {

struct OverviewOptions {
  std::string source = "live";
  ScopeOptions scope;
  bool each = false;  // a line for each graph and shape
};

std::shared_ptr<OverviewOptions> AddOverviewOptions(CLI::App& app);

// Whether each graph and shape of a probe has a line of its own.
bool IsWhole(const OverviewOptions& options, const analysis::Scope& scope);

// Opens what the options name; 0, or what to exit with.
int OpenOverview(Context& context, const OverviewOptions& options,
                 std::unique_ptr<source::Source>* source, analysis::Scope* scope);

// What is missing of what they show.
analysis::GapSummary GapsIn(source::Source& source, const analysis::Scope& scope);
// What they exit with, whatever they show: they look for nothing.
int ExitCodeOf(const analysis::GapSummary& gaps);

// 0, or what to exit with.
int PrintTable(Context& context, const Result<TextTable>& table);

}  // namespace cgdebug::cli
