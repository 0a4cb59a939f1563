#include "client/cli/run/run_options.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "client/cli/run/disk_options.h"
#include "daemon/core/base/glob.h"
#include "daemon/core/words/condition.h"
#include "daemon/core/words/config_file.h"
#include "daemon/core/words/finding_kinds.h"
#include "daemon/core/words/settings.h"
#include "daemon/core/words/watch_level.h"

namespace cgdebug::cli {
namespace {

// Whether "--" stands before the job, and is not what --watch or --record says.
bool HasEnd(const Context& context) {
  const std::vector<std::string>& words = context.words;
  for (std::size_t i = 1; i < words.size(); ++i) {
    if (words[i] == "--") return words[i - 1] != "--watch" && words[i - 1] != "--record";
  }
  return false;
}

// Refuses what the job would refuse, also in variables that it inherits, but not in `overridden`.
Result<void> CheckInherited(const Variables& overridden) {
  for (const words::MalformedSetting& setting : words::MalformedSettings()) {
    const bool is_inherited =
        std::none_of(overridden.begin(), overridden.end(),
                     [&](const auto& variable) { return variable.first == setting.name; });
    if (is_inherited) return Error{setting.problem};
  }
  return {};
}

bool IsSet(const std::string& variable) {
  const char* text = std::getenv(variable.c_str());
  return text != nullptr && *text != '\0';
}

// What the environment asks for, as if it was typed: a job that does not import cgdebug reads it
// only where the package is started in it. What is malformed stays for CheckInherited().
void AddEnvironment(RunOptions* options) {
  const auto is_on = [](const char* name) { return words::ReadSetting(name) == "1"; };
  const std::string watch = words::ReadSetting("CGDEBUG_WATCH");
  if (options->watch.empty() && !watch.empty()) {
    options->watch = {watch};
    options->eager |= is_on("CGDEBUG_WATCH_EAGER");
  }
  options->blocking |= is_on("CGDEBUG_LAUNCH_BLOCKING");
  options->races |= is_on("CGDEBUG_RACES");
  options->ask |= is_on("CGDEBUG_ASK");
  if (options->rewind == 0) {
    options->rewind = static_cast<unsigned>(words::ReadNumber("CGDEBUG_REWIND").value_or(0));
  }
}

// The file that --config or CGDEBUG_CONFIG names, else the one in this directory; empty: none.
std::string ConfigOf(const RunOptions& options) {
  if (!options.config.empty()) return options.config;
  if (IsSet("CGDEBUG_CONFIG")) return std::getenv("CGDEBUG_CONFIG");
  std::error_code ignored;
  return std::filesystem::exists(words::kConfigFile, ignored) ? words::kConfigFile : "";
}

// Fills in what was neither typed nor set as a variable from a file of settings.
Result<void> AddConfig(const Context& context, RunOptions* options) {
  const std::string path = ConfigOf(*options);
  if (path.empty()) return {};
  const Result<words::ConfigSettings> read = words::ReadConfig(path);
  if (!read.ok()) return read.error();
  std::set<std::string> typed;
  if (!options->watch.empty()) typed = {"CGDEBUG_WATCH", "CGDEBUG_WATCH_EAGER"};
  if (!options->fail_on.empty()) typed.insert("CGDEBUG_FAIL_ON");
  if (!options->on.empty()) typed.insert("CGDEBUG_ON");
  if (options->sketches > 0) typed.insert("CGDEBUG_WATCH_SKETCHES");
  std::string used;
  for (const auto& [name, text] : *read) {
    if (typed.contains(name) || IsSet(name)) continue;
    used += (used.empty() ? "" : " ") + name + "=" + ShellWord(text);
    if (name == "CGDEBUG_WATCH") {
      options->watch = {text};
    } else if (name == "CGDEBUG_WATCH_EAGER") {
      options->eager = text == "1";
    } else if (name == "CGDEBUG_LAUNCH_BLOCKING") {
      options->blocking = options->blocking || text == "1";
    } else if (name == "CGDEBUG_RACES") {
      options->races = options->races || text == "1";
    } else if (name == "CGDEBUG_ASK") {
      options->ask = options->ask || text == "1";
    } else if (name == "CGDEBUG_FAIL_ON") {
      options->fail_on = text;
    } else if (name == "CGDEBUG_ON") {
      options->on = text;
    } else {
      options->configured.emplace_back(name, text);
    }
  }
  if (!used.empty()) context.Note(fmt::format("cgdebug: {}: {}", Printable(path), used));
  return {};
}

// Fails: a bad glob, or there is no op log whose rows they could be.
Result<void> AddValues(const RunOptions& options, Variables* variables) {
  if (options.values.empty()) return {};
  const std::string globs = fmt::format("{}", fmt::join(options.values, ","));
  const std::string_view level = LevelOf(options);
  if (level == "module" || level == "fx") {
    return Error{fmt::format(
        "--values names rows of an op log, and none is made. Type: --watch 'op:*' --values {}",
        ShellWord(globs))};
  }
  const Result<Selector> selector = Selector::ParseList(globs);
  if (!selector.ok()) return Error{"--values: " + selector.error().message};
  variables->emplace_back("CGDEBUG_WATCH_VALUES", globs);
  return {};
}

// Fails: there are no modules whose outputs they could be of.
Result<void> AddSketches(const RunOptions& options, Variables* variables) {
  if (options.sketches == 0) return {};
  if (options.watch.empty() || LevelOf(options) != "module") {
    return Error{
        "--sketches keeps sketches of the outputs of modules, and none is watched. Type: --watch "
        "'*' --sketches 64"};
  }
  variables->emplace_back("CGDEBUG_WATCH_SKETCHES", std::to_string(options.sketches));
  return {};
}

// What the options tell the job.
// Fails: what the job would refuse.
Result<Variables> VariablesOf(const RunOptions& options) {
  Variables of_graphs;
  if (options.blocking) of_graphs.emplace_back("CGDEBUG_LAUNCH_BLOCKING", "1");
  if (options.races) of_graphs.emplace_back("CGDEBUG_RACES", "1");
  if (options.ask) of_graphs.emplace_back("CGDEBUG_ASK", "1");
  if (options.rewind > 0) of_graphs.emplace_back("CGDEBUG_REWIND", std::to_string(options.rewind));
  Result<Variables> variables = WatchVariables(options.watch, options.eager, of_graphs);
  if (!variables.ok()) return variables;
  const Result<void> values = AddValues(options, &*variables);
  if (!values.ok()) return values.error();
  const Result<void> sketches = AddSketches(options, &*variables);
  if (!sketches.ok()) return sketches.error();
  variables->insert(variables->end(), options.configured.begin(), options.configured.end());
  variables->emplace_back("CGDEBUG_CONFIG", "");  // the job gets what it says
  variables->emplace_back("CGDEBUG", "1");
  if (!options.on.empty()) {
    const Result<words::Condition> condition = words::ParseCondition(options.on, "--on");
    if (!condition.ok()) return condition.error();
    variables->emplace_back("CGDEBUG_ON", options.on);
  }
  const Result<FailOn> fail_on = ParseFailOn(options.fail_on);
  if (!fail_on.ok()) return fail_on.error();
  if (fail_on->any()) variables->emplace_back("CGDEBUG_FAIL_ON", options.fail_on);
  const bool records = RecordedBy(options) != Recorded::kNothing;
  if (records) variables->emplace_back("CGDEBUG_LOSSLESS", options.lossy ? "0" : "1");
  if (const Result<void> settings = CheckInherited(*variables); !settings.ok()) {
    return settings.error();
  }
  return variables;
}

// Fails: what was typed tells no job to run, or one that nobody could see.
Result<Variables> CheckOptions(const Context& context, const RunOptions& options) {
  const Result<void> has_globs =
      CheckWatchHasGlobs(options.watch, options.command, HasEnd(context));
  if (!has_globs.ok()) return has_globs.error();
  if (options.command.empty()) {
    return Error{"run needs a command. Type for example: cgdebug-cli run -- python train.py"};
  }
  if (HasDiskOptions(options.record) && RecordedBy(options) == Recorded::kNothing) {
    return Error{
        "--max-size, --min-free-disk, --roll-size and --durability apply to a "
        "recording, and none was asked for. Add: -o DIR.cgrec"};
  }
  return VariablesOf(options);
}

}  // namespace

std::string_view LevelOf(const RunOptions& options) {
  const std::string globs = options.watch.empty() ? "" : options.watch.front();
  return words::ParseWatched(globs, "--watch").value_or(words::Watched()).level;
}

Recorded RecordedBy(const RunOptions& options) {
  if (!options.record.probes.empty()) return Recorded::kSome;
  return options.output.empty() ? Recorded::kNothing : Recorded::kAll;
}

Result<FailOn> ParseFailOn(std::string_view list) {
  const Result<std::vector<layout::FindingKind>> kinds =
      words::ParseFindingKinds(list, "--fail-on");
  if (!kinds.ok()) return kinds.error();
  FailOn fail_on;
  for (const layout::FindingKind kind : *kinds) {
    fail_on.nan |= kind == layout::FindingKind::kNan;
    fail_on.inf |= kind == layout::FindingKind::kInf;
    fail_on.mismatch |= kind == layout::FindingKind::kMismatch;
    fail_on.replica |= kind == layout::FindingKind::kReplica;
  }
  return fail_on;
}

Result<Variables> SettleOptions(const Context& context, RunOptions* options) {
  AddEnvironment(options);
  if (const Result<void> config = AddConfig(context, options); !config.ok()) return config.error();
  return CheckOptions(context, *options);
}

}  // namespace cgdebug::cli
