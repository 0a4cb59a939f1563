#include "client/analysis/ops/audit.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "client/cli/command.h"
#include "client/cli/sources/sources.h"
#include "daemon/core/options/number.h"

namespace cgdebug::cli {
namespace {

struct AuditCommand {
  std::string source = "live";
  std::size_t max_rows = 10;
};

int RunAudit(Context& context, const AuditCommand& command) {
  std::unique_ptr<source::Source> source;
  if (const int failed = OpenSourceOfRanks(context, command.source, &source)) return failed;
  const analysis::Audit audit = analysis::ReadAudit(*source);
  return ShowFound(
      context, *source, audit.outcome(), [&] { return analysis::AuditJson(*source, audit); },
      [&] { return analysis::AuditAnswer(audit, command.max_rows); });
}

}  // namespace

RunFunction AddAudit(CLI::App& app) {
  auto command = std::make_shared<AuditCommand>();
  app.add_option("SOURCE", command->source, kSourceHelp);
  app.add_option("--max-rows", command->max_rows, "how many findings of a graph to show (10)")
      ->check(WholeNumber(1))
      ->type_name("N");
  return [command](Context& context) { return RunAudit(context, *command); };
}

}  // namespace cgdebug::cli
