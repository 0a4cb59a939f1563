#include "client/analysis/check/check.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "client/analysis/check/check_report.h"
#include "client/analysis/ops/op_log.h"
#include "client/analysis/why/why.h"
#include "client/analysis/why/why_report.h"
#include "client/cli/command.h"
#include "client/cli/commands/find/causes.h"
#include "client/cli/sources/sources.h"
#include "client/cli/views/answer_text.h"
#include "client/cli/views/source_rows.h"
#include "client/cli/views/tensor/snapshot_text.h"
#include "daemon/core/options/number.h"

namespace cgdebug::cli {
namespace {

struct CheckCommand {
  std::string source = "live";
  ScopeOptions scope;
  std::size_t frames = 21;
  std::optional<std::size_t> max_rows = {};
  bool trusts_hashes = false;
  bool padding = false;
};

int CheckPadding(Context& context, const CheckCommand& command, source::Source& source) {
  const Result<analysis::why::Causes> causes = analysis::why::FindPaddingCauses(source);
  if (!causes.ok()) return context.Fail(kExitTrouble, causes.error().message);
  const analysis::why::CommandOf command_of = CommandsIn(context, source, command.source);
  return ShowFound(
      context, source, causes->outcome(),
      [&] { return analysis::why::CausesJson(source, *causes, command_of); },
      [&] {
        return analysis::why::CausesAnswer(source, *causes, command_of,
                                           command.max_rows.value_or(10));
      });
}

int RunCheckCommand(Context& context, const CheckCommand& command) {
  analysis::CheckOptions options{
      .scope = {}, .frames = command.frames, .trusts_hashes = command.trusts_hashes};
  Result<analysis::Scope> scope = MakeScope(context, command.scope);
  if (!scope.ok()) return context.Fail(kExitTrouble, scope.error().message);
  options.scope = *std::move(scope);
  std::unique_ptr<source::Source> source;
  const int failed = command.padding ? OpenSourceOfRanks(context, command.source, &source)
                                     : OpenSource(context, command.source, &source);
  if (failed != kExitOk) return failed;
  if (command.padding) {
    if (!options.scope.probes.selects_everything() || options.scope.first_replay > 1 ||
        !options.scope.is_open_ended() || !command.scope.which.graph.empty() ||
        !command.scope.which.shape.empty()) {
      return context.Fail(kExitTrouble,
                          "--padding looks at all of a source: leave PROBES, --replays, --graph "
                          "and --shape out");
    }
    return CheckPadding(context, command, *source);
  }
  const Result<analysis::Check> check = analysis::RunCheck(*source, options);
  if (!check.ok()) return context.Fail(kExitTrouble, check.error().message);
  const bool lacks_all = command.scope.probes.empty() && !source->Describe().not_seen.empty();
  if (check->slots == 0 && !lacks_all) {
    return FailNoProbe(context, *source, command.scope,
                       ShellWord(command.source) + context.SameJob());
  }
  if (context.options.json) {
    Json answer = analysis::CheckJson(*source, *check);
    if (const std::string ranks = RanksHere(*source); !ranks.empty()) answer["ranks"] = ranks;
    Context::PrintJson(answer);
  } else {
    const analysis::Answer answer = analysis::CheckAnswer(*source, *check, command.max_rows);
    if (command.frames == 0) {
      Context::Print(PrintableLines(answer.title()) + "\n");
      return ExitCodeOf(check->outcome());
    }
    Context::Print(HeadLine(*source) + AnswerText(context.out, answer) +
                   PrintableLines(RanksHere(*source)));
  }
  if (check->first && command.source != "live") {
    const source::Slot& slot = source->slots()[check->first->slot];
    const source::Snapshot& snapshot = check->first->snapshot;
    // A source of one session alone does not say that its file has several.
    const std::string job = KeyOfJob(*source, source::ProcessOf(slot));
    const bool names_session = HasSeveralJobs(*source) || job != ShellWord(slot.session) ||
                               !context.options.session.empty();
    const std::string among = (slot.rank >= 0 ? fmt::format(" --ranks {}", slot.rank) : "") +
                              (names_session ? " -s " + job : "");
    if (slot.op.row() != nullptr) {
      context.Hint(OpsCommandOf(command.source, slot, snapshot.key.replay) + among);
    } else {
      context.Hint("cgdebug-cli show " +
                   ShellWord(fmt::format("{}:{}{}", command.source, SlotText(slot),
                                         ReplayMark(slot, snapshot.key.replay))) +
                   among + (snapshot.has_values ? " --where nan" : ""));
    }
  }
  return ExitCodeOf(check->outcome());
}

}  // namespace

RunFunction AddCheck(CLI::App& app) {
  auto command = std::make_shared<CheckCommand>();
  app.add_option("SOURCE", command->source, kSourceHelp);
  app.add_option("PROBE", command->scope.probes, "globs; 're:...', '!...' excludes");
  app.add_option("--replays", command->scope.replays, "only these replays")->type_name("100..200");
  AddWhichOptions(app, &command->scope.which);
  app.add_option("--frames", command->frames,
                 "how many probes to show up to the first bad one (21); 0: one line")
      ->check(WholeNumber(0))
      ->type_name("N");
  app.add_flag("--padding", command->padding,
               "whether NaN or Inf of padding reached a real row, in a job that calls "
               "cgdebug.valid_rows()");
  app.add_flag("--trust-hashes", command->trusts_hashes,
               "trust the recorded hashes: do not read the values to verify them");
  app.add_option("--max-rows", command->max_rows,
                 "how many findings of each kind to show (10, of NaN or Inf one line)")
      ->check(WholeNumber(1))
      ->type_name("N");
  return [command](Context& context) { return RunCheckCommand(context, *command); };
}

}  // namespace cgdebug::cli
