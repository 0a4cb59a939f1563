// ask: what any op of a captured graph made, in a replay that is over or in the next one. The job
// answers by itself (python/cgdebug/_rewind), on a socket beside the daemon's.

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "client/cli/command.h"
#include "client/cli/commands/find/left_rows.h"
#include "client/cli/remote/job_questions.h"
#include "client/cli/sources/log_place.h"
#include "daemon/core/options/number.h"

namespace cgdebug::cli {
namespace {

struct AskCommand {
  std::string place;
  std::vector<std::string> rows;
  std::string values;
  std::string perfetto;
  std::string repro;
  bool is_list = false;
  bool goes_on = false;
  unsigned slowest = 0;
  unsigned timeout_s = 30;
};

int RunAsk(Context& context, const AskCommand& command) {
  const Result<LogPlace> place =
      ParseLogPlace(context, command.place, {.command = "ask", .takes_calls = false});
  if (!place.ok()) return context.Fail(kExitTrouble, place.error().message);
  if (const int failed = context.Connect()) return failed;
  std::int64_t pid = 0;
  const int failed =
      FindJobToAsk(context, context.SessionOr(place->source == "live" ? "" : place->source), &pid);
  if (failed != kExitOk) return failed;
  Json question = {{"graph", place->choice.graph}, {"rows", command.rows}};
  question["timeout_s"] = command.timeout_s;
  if (place->names_replay) question["replay"] = place->choice.replay;
  for (const auto& [name, path] :
       {std::pair("values", command.values), std::pair("perfetto", command.perfetto),
        std::pair("repro", command.repro)}) {
    if (!path.empty()) question[name] = std::filesystem::absolute(path).string();
  }
  if (command.slowest > 0) question["slowest"] = command.slowest;
  if (command.is_list) question["list"] = true;
  if (command.goes_on) question["go_on"] = true;
  if (place->names_replay) question["hashes"] = true;
  Result<JobAnswer> answer = AskJob(context, pid, question);
  if (!answer.ok()) return context.Fail(kExitTrouble, answer.error().message);
  CompareLeftRows(context, pid, &*answer);
  if (context.options.json) {
    Context::PrintJson(answer->json);
  } else if (answer->code == kExitOk || answer->code == kExitFound ||
             answer->json.contains("rows")) {
    Context::Print(answer->text + "\n");
  } else {
    return context.Fail(static_cast<ExitCode>(answer->code), answer->text);
  }
  return answer->code;
}

void AddPlace(CLI::App& app, AskCommand* command) {
  app.add_option("JOB", command->place,
                 "JOB, JOB@g:GRAPH, JOB@REPLAY or JOB@g:GRAPH@REPLAY; -1 is the newest replay. "
                 "Without a replay: the next one");
  app.add_option("--timeout", command->timeout_s,
                 "how many seconds to wait for the graph's next replay (30)")
      ->check(WholeNumber(1, 86'400))
      ->type_name("S");
}

}  // namespace

RunFunction AddAsk(CLI::App& app) {
  auto command = std::make_shared<AskCommand>();
  AddPlace(app, command.get());
  app.add_option("ROW", command->rows, "globs of rows, as 'fwd/layers.3.*'; default: all")
      ->type_name("GLOB");
  app.add_option("--values", command->values, "also write what is in these rows to this file")
      ->type_name("FILE.safetensors");
  app.add_option(
         "--slowest", command->slowest,
         "also list the N ops that the device takes longest for. Each is launched alone, so "
         "their sum is not the time of a replay")
      ->check(WholeNumber(1, 1'000'000))
      ->type_name("N");
  app.add_option("--perfetto", command->perfetto,
                 "also write a trace for Perfetto: a bar for each op, as long as the device ran it "
                 "alone")
      ->type_name("FILE.json");
  auto* const list = app.add_flag("--list", command->is_list,
                                  "which replays of each graph are kept, and in how much");
  app.add_flag("--go-on", command->goes_on,
               "keep replays again where a NaN or a trigger has ended that")
      ->excludes(list);
  return [command](Context& context) { return RunAsk(context, *command); };
}

RunFunction AddRepro(CLI::App& app) {
  auto command = std::make_shared<AskCommand>();
  AddPlace(app, command.get());
  app.add_option("ROW", command->rows, "the row of one op, as 'ask' names it")
      ->required()
      ->expected(1);
  app.add_option("-o,--output", command->repro, "the folder for the script and its tensors")
      ->required()
      ->type_name("DIR");
  return [command](Context& context) { return RunAsk(context, *command); };
}

}  // namespace cgdebug::cli
