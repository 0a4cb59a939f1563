#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/analysis/ops/op_log.h"
#include "client/cli/command.h"
#include "client/cli/commands/files/recordings.h"
#include "client/cli/commands/jobs/disk_options.h"
#include "client/cli/doctor/checks.h"
#include "client/cli/run/excuses.h"
#include "client/cli/run/job.h"
#include "client/cli/run/run_summary.h"
#include "client/cli/run/run_watch.h"
#include "client/cli/run/watch_variables.h"
#include "client/cli/views/live/event_printer.h"
#include "client/cli/views/recording_text.h"
#include "client/live/recordings.h"
#include "client/live/status.h"
#include "daemon/core/base/glob.h"
#include "daemon/core/base/suggest.h"
#include "daemon/core/options/number.h"
#include "daemon/core/words/condition.h"
#include "daemon/core/words/config_file.h"
#include "daemon/core/words/finding_kinds.h"
#include "daemon/core/words/settings.h"
#include "daemon/core/words/watch_level.h"

namespace cgdebug::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kDrainTimeout{5000};
constexpr milliseconds kPoll{20};
constexpr std::size_t kMaxNames = 10;

struct RunOptions {
  bool no_live = false;
  bool tail = false;
  std::string fail_on;
  std::string on;
  std::string only;
  std::string output;
  live::RecordRequest record;
  bool lossy = false;
  bool force = false;
  std::vector<std::string> watch;
  std::vector<std::string> values;  // globs of rows
  bool eager = false;
  bool blocking = false;
  bool races = false;
  bool ask = false;
  unsigned rewind = 0;
  std::string config;
  Variables configured = {};  // what a file of settings says beside these options
  std::vector<std::string> command;
};

// "train-3f2a91": the script's name is what one looks for in a list, the rest makes it unique.
std::string MakeRunId(const std::vector<std::string>& command) {
  std::string name = std::filesystem::path(command[0]).filename();
  for (const std::string& argument : command) {
    if (argument.ends_with(".py")) {
      name = std::filesystem::path(argument).stem();
      break;
    }
  }
  std::random_device random;
  return fmt::format("{}-{:06x}", name.substr(0, 60), random() & 0xffffff);
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

// What TensorPrint wrote is on our stderr already, unless that is a file, because the daemon never
// writes into files.
bool PrintsReachStderr() {
  struct stat info {};
  return ::fstat(STDERR_FILENO, &info) == 0 && !S_ISREG(info.st_mode);
}

EventPrinterOptions PrintingOf(const Context& context) {
  EventPrinterOptions printing;
  printing.is_json = context.options.json;
  printing.style = context.err;
  return printing;
}

RunWatchOptions WatchingOf(const Context& context, const RunOptions& options,
                           const std::string& run_id, std::int64_t since_ns) {
  RunWatchOptions watching;
  watching.run_id = run_id;
  watching.since_ns = since_ns;
  watching.stream = options.tail || !options.only.empty();
  watching.only = ParseOnly(options.only);
  watching.prints_reach_terminal = PrintsReachStderr();
  const bool for_people = !context.options.json;
  watching.pages = for_people && options.only != "changed";  // that asks which rows changed
  watching.status_line = for_people && !context.options.quiet && !watching.stream;
  return watching;
}

std::vector<live::Session> SessionsOf(client::Client* client, const std::string& run_id,
                                      std::int64_t since_ns) {
  auto sessions = live::ListSessions(*client).value_or(std::vector<live::Session>());
  std::erase_if(sessions, [&](const live::Session& session) {
    return session.run_id != run_id || session.created_ns < since_ns;
  });
  return sessions;
}

// Waits until the daemon has found every session of the run, read all of it and seen its end. Gives
// up when the daemon makes no progress, and on the end of a process that outlives the command.
void Drain(client::Client* client, const std::string& run_id, std::int64_t since_ns,
           RunSummary* summary) {
  auto start = steady_clock::now();
  std::uint64_t seen = 0;
  while (true) {
    // A short job may have ended before the daemon found its segment.
    const Result<bool> synced = live::Sync(*client);
    if (synced.ok()) summary->sessions = SessionsOf(client, run_id, since_ns);
    summary->complete = synced.ok() && *synced;
    summary->is_unreachable = !synced.ok();
    if (!synced.ok()) return;
    const bool is_read = *synced;  // all that there was a moment ago
    summary->outliving.clear();
    for (const live::Session& session : summary->sessions) {
      if (session.state != live::SessionState::kAlive) continue;
      summary->complete = false;
      if (is_read) summary->outliving.push_back(session.pid);
    }
    const bool moved = summary->Snapshots() != seen;
    seen = summary->Snapshots();
    if (moved && !is_read) start = steady_clock::now();
    if (summary->complete || steady_clock::now() - start > kDrainTimeout) return;
    std::this_thread::sleep_for(kPoll);
  }
}

// If the daemon is gone, the next one reads what the job left. Starts none.
bool FindNextDaemon(client::Client* client, const client::ConnectOptions& connect) {
  if (client->last_failure() == client::Failure::kTimeout) return false;  // it hangs
  const auto deadline = steady_clock::now() + kDrainTimeout;
  while (!client->Connect(connect).ok()) {
    if (steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(kPoll);
  }
  return true;
}

std::set<std::string> KeysOf(const RunSummary& summary) {
  std::set<std::string> keys;
  for (const live::Session& session : summary.sessions) keys.insert(session.key);
  return keys;
}

// Counts the probes of the run whose comparison says less than "every snapshot matched, or one did
// not", and notes which of the first NaN and Inf are in rows of op logs, and whether a probe is in
// compiled code.
void LookAtProbes(client::Client* client, const std::set<std::string>& sessions,
                  RunSummary* summary) {
  const Result<std::vector<live::Probe>> listed =
      live::ListProbes(*client, "", {}, live::LastStats::kNone);
  if (!listed.ok()) {
    summary->complete = false;
    return;
  }
  std::set<std::pair<std::string, std::uint64_t>> first;
  for (const live::Session& session : summary->sessions) {
    if (session.first_nan) first.emplace(session.key, session.first_nan->slot.order);
    if (session.first_inf) first.emplace(session.key, session.first_inf->slot.order);
  }
  std::set<std::pair<std::string, std::string>> probes;
  for (const live::Probe& probe : *listed) {
    const std::pair place(probe.session, probe.slot.order);
    if (!probe.slot.op.empty() && first.contains(place)) {
      summary->rows[place] = source::PlaceInCall(probe.slot);
    }
    if (!sessions.contains(probe.session)) continue;
    summary->has_compiled_code = summary->has_compiled_code || probe.is_compiled;
    if (!probe.verdict) continue;
    const layout::Verdict& verdict = *probe.verdict;
    const bool is_whole = verdict.state == layout::VerdictState::kFail ||
                          (verdict.state == layout::VerdictState::kPass && verdict.lost == 0);
    if (!is_whole && probe.replay > 0) probes.emplace(probe.session, probe.slot.probe);
  }
  summary->not_compared_probes = probes.size();
}

// Whether "--" stands before the job, and is not what --watch or --record says.
bool HasEnd(const Context& context) {
  const std::vector<std::string>& words = context.words;
  for (std::size_t i = 1; i < words.size(); ++i) {
    if (words[i] == "--") return words[i - 1] != "--watch" && words[i - 1] != "--record";
  }
  return false;
}

// The level that --watch names: "op"; "module" if it names none.
std::string_view LevelOf(const RunOptions& options) {
  const std::string globs = options.watch.empty() ? "" : options.watch.front();
  return words::ParseWatched(globs, "--watch").value_or(words::Watched()).level;
}

// The level of an op log that the job was told to make of what it captures: "op"; empty otherwise.
std::string_view LevelOfCaptures(const RunOptions& options) {
  const std::string_view level = LevelOf(options);
  return options.eager || level == "module" || level == "fx" ? std::string_view() : level;
}

// What runs the job again and watches `what`.
std::string WatchCommand(const RunOptions& options, std::string_view what) {
  std::string command = fmt::format("cgdebug-cli run --watch {} --", what);
  for (const std::string& word : options.command) command += " " + ShellWord(word);
  return command;
}

std::string LogEagerCommand(const RunOptions& options, std::string_view level) {
  return WatchCommand(options, fmt::format("'{}:*' --eager", level));
}

// Why the op log of a job without a replay is empty; empty if it logged what runs eagerly, too.
std::string NoGraphText(const RunOptions& options) {
  const std::string_view level = LevelOfCaptures(options);
  if (level.empty()) return {};
  return fmt::format("level {} logs what CUDA graphs capture, and no such graph was replayed",
                     level);
}

// What runs the job again and looks at its ops; empty if it was not told to watch modules. An eager
// log lets nothing be compiled, so what is wrong in compiled code may not show there.
std::vector<std::string> LogOpsCommands(const RunOptions& options, bool has_compiled_code) {
  if (options.watch.empty() || LevelOf(options) != "module") return {};
  const std::string eagerly = LogEagerCommand(options, "op");
  if (!has_compiled_code) return {eagerly};
  return {WatchCommand(options, "'fx:*'"), eagerly + "  # not compiled"};
}

// What runs the job again and watches all of its modules; empty if this run did. Whoever watches
// something else than modules still does.
std::string WatchAllCommand(const Context& context, const RunOptions& options) {
  const std::string_view level = LevelOf(options);
  const std::string all = level == "module" ? "*" : fmt::format("{}:*", level);
  const std::string watched = fmt::format("{}", fmt::join(options.watch, ","));
  if (watched == all || watched == "module:*") return {};
  std::string command = "cgdebug-cli";
  bool is_of_job = false, has_watch = false;
  for (std::size_t i = 0; i < context.words.size(); ++i) {
    const std::string& word = context.words[i];
    is_of_job = is_of_job || word == "--";
    if (!is_of_job && word == "--watch") ++i;  // and what it says
    if (!is_of_job && word.starts_with("--watch")) continue;
    command += " " + ShellWord(word);
    if (word != "run" || has_watch) continue;
    command += " --watch " + ShellWord(all);
    has_watch = true;
  }
  return command;
}

Recorded RecordedBy(const RunOptions& options) {
  if (!options.record.probes.empty()) return Recorded::kSome;
  return options.output.empty() ? Recorded::kNothing : Recorded::kAll;
}

bool Records(const RunOptions& options) { return RecordedBy(options) != Recorded::kNothing; }

void Report(const Context& context, const RunSummary& summary, const RunOptions& options,
            const FailOn& fail_on) {
  if (context.options.json) {
    const std::string line = Dump(SummaryJson(summary), /*indented=*/false) + "\n";
    std::fwrite(line.data(), 1, line.size(), stderr);
    return;
  }
  if (context.options.quiet) return;
  if (options.races) context.Hint("cgdebug-cli races");
  const bool has_probes = std::ranges::any_of(
      summary.sessions, [](const live::Session& session) { return session.probes > 0; });
  const bool is_of_graphs = options.blocking || options.races || options.ask || options.rewind > 0;
  if (is_of_graphs && options.watch.empty() && !has_probes && summary.NotSeen().empty()) return;
  context.Say(SummaryText(summary, fail_on, context.err));
  const std::string no_graph = NoGraphText(options);
  if (summary.complete && summary.Snapshots() == 0 && !no_graph.empty()) {
    context.Say(no_graph);
    return context.Hint(LogEagerCommand(options, LevelOfCaptures(options)));
  }
  for (const std::string& command :
       NextCommands(summary, LogOpsCommands(options, summary.has_compiled_code),
                    WatchAllCommand(context, options), RecordedBy(options))) {
    context.Hint(command);
  }
}

// Why the recording lacks snapshots, and what to do.
std::string WhyMissing(const RunOptions& options) {
  return fmt::format(
      "the job was faster than this machine writes. Record fewer probes (--record), "
      "or {}",
      options.lossy ? "let the job wait: leave --lossy out"
                    : "let the job wait longer: CGDEBUG_WAIT_MS=60000");
}

// The recording has no probe: says what there was to record.
int FailNothingRecorded(Context& context, const RunOptions& options,
                        const std::set<std::string>& sessions) {
  std::set<std::string> distinct;
  const Result<std::vector<live::Probe>> probes =
      live::ListProbes(context.client(), "", {}, live::LastStats::kNone);
  if (probes.ok()) {
    for (const live::Probe& probe : *probes) {
      if (sessions.contains(probe.session)) distinct.insert(Printable(probe.slot.probe));
    }
  }
  if (distinct.empty()) {
    if (const std::string no_graph = NoGraphText(options); !no_graph.empty()) {
      return context.Fail(kExitNoMatch,
                          fmt::format("nothing was recorded: {}. Type: {}", no_graph,
                                      LogEagerCommand(options, LevelOfCaptures(options))));
    }
    const std::string watch_all = WatchAllCommand(context, options);
    return context.Fail(kExitNoMatch,
                        fmt::format("nothing was recorded: no probe of the job saw a tensor. Type: "
                                    "{}",
                                    watch_all.empty() ? "cgdebug-cli doctor" : watch_all));
  }
  std::vector<std::string> names(distinct.begin(), distinct.end());
  const std::string wanted = fmt::format("{}", fmt::join(options.record.probes, " "));
  const std::string close = DidYouMean(wanted, names);
  const std::size_t more = names.size() - std::min(names.size(), kMaxNames);
  names.resize(names.size() - more);
  return context.Fail(
      kExitNoMatch,
      fmt::format("nothing was recorded: no probe matches --record '{}'. The job has: {}{}.{}",
                  wanted, fmt::join(names, ", "),
                  more == 0 ? "" : fmt::format(" and {} more", more), close));
}

// Starts the recording before the job, so that nothing of the job is missing. Returns its number,
// or 0 if it could not begin, after the reason has been printed.
std::uint64_t StartRecording(Context& context, const RunOptions& options,
                             const std::string& run_id) {
  live::RecordRequest request = options.record;
  request.directory = RecordingPath(options.output);
  if (const Result<void> room = MakeRoom(request.directory, options.force); !room.ok()) {
    context.Fail(kExitTrouble, room.error().message);
    return 0;
  }
  request.run_id = run_id;
  request.owner_pid = ::getpid();
  if (options.lossy) request.lossless = live::Lossless::kNever;
  NoteMarks(context);
  const Result<live::Recording> recording = live::StartRecording(context.client(), request);
  if (!recording.ok()) {
    context.Fail(recording.error());
    return 0;
  }
  return recording->id;
}

// A recording that has ended already, with its last job, is reported as well.
int StopRecording(Context& context, const RunOptions& options, std::uint64_t id,
                  const std::set<std::string>& sessions, const RunSummary& summary) {
  const bool is_all_unseen = !summary.NotSeen().empty();
  const auto stopped = live::StopRecording(context.client(), std::to_string(id),
                                           /*job_ended=*/summary.outliving.empty());
  if (!stopped.ok()) return context.Fail(stopped.error());
  const live::Recording& recording = stopped->front();
  if (recording.slot_count == 0 && is_all_unseen) return kExitInconclusive;  // as was said
  if (recording.slot_count == 0 && recording.error.empty() && recording.lost == 0) {
    return FailNothingRecorded(context, options, sessions);
  }
  // Globs of --record may have left rows of the log out.
  const std::string log = options.record.probes.empty()
                              ? LogCommand(summary, NearPath(recording.directory))
                              : std::string();
  return ReportRecording(context, recording, WhyMissing(options), log);
}

// The recording is the daemon's: what it had written is there, and nobody writes the rest.
int FailDaemonGone(const Context& context, const RunOptions& options) {
  return context.Fail(
      kExitInconclusive,
      fmt::format(
          "the daemon that recorded the job has ended or hangs, so the end of the recording "
          "is missing. Type: cgdebug-cli info {}",
          options.output.empty() ? "runs" : ShellWord(options.output)));
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
  if (Records(options)) variables->emplace_back("CGDEBUG_LOSSLESS", options.lossy ? "0" : "1");
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
  if (HasDiskOptions(options.record) && !Records(options)) {
    return Error{
        "--max-size, --min-free-disk, --roll-size and --durability apply to a "
        "recording, and none was asked for. Add: -o DIR.cgrec"};
  }
  return VariablesOf(options);
}

int RunJob(Context& context, RunOptions& options) {
  AddEnvironment(&options);
  const Result<void> config = AddConfig(context, &options);
  if (!config.ok()) return context.Fail(kExitTrouble, config.error().message);
  Result<Variables> variables = CheckOptions(context, options);
  if (!variables.ok()) return context.Fail(kExitTrouble, variables.error().message);
  const std::vector<std::string>& command = options.command;
  const FailOn fail_on = *ParseFailOn(options.fail_on);
  if (const int failed = context.Connect(); failed != kExitOk) return failed;
  const char* inherited = std::getenv("CGDEBUG_RUN_ID");
  const bool has_inherited = inherited != nullptr && *inherited != '\0';
  const std::string run_id = has_inherited ? inherited : MakeRunId(command);
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  const std::int64_t since_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();

  auto signals = std::make_unique<JobSignals>();
  ::signal(SIGPIPE, SIG_IGN);  // a closed stderr ends the view, not the job
  client::ConnectOptions connect = context.MakeConnectOptions();
  connect.socket = context.client().socket();
  connect.start_daemon = false;
  EventPrinter printer(PrintingOf(context), stderr);
  const std::uint64_t recording = Records(options) ? StartRecording(context, options, run_id) : 0;
  if (Records(options) && recording == 0) return kExitTrouble;
  std::optional<RunWatch> watch;
  if (!options.no_live) {
    watch.emplace(connect, WatchingOf(context, options, run_id, since_ns), &printer);
  }
  Job job;
  const std::string socket = std::filesystem::absolute(context.client().socket());
  variables->emplace_back("CGDEBUG_RUN_ID", run_id);
  variables->emplace_back("CGDEBUG_SOCKET", socket);
  const Result<void> started = job.Start(command, *variables, *signals);
  if (!started.ok()) {
    context.Say(started.error().message);
    // Without this it would wait for a job that never comes, and keep the daemon running.
    if (recording != 0) StopRecording(context, options, recording, {}, RunSummary());
    return job.exit_code();
  }
  context.Note(fmt::format("cgdebug: run {} (pid {})", run_id, job.pid()));
  job.Wait(*signals);
  signals.reset();  // from here on Ctrl-C means us

  RunSummary summary;
  summary.job_exit_code = job.exit_code();
  summary.job_signal = job.signal();
  Drain(&context.client(), run_id, since_ns, &summary);
  const bool is_first_daemon = !summary.is_unreachable;
  if (!is_first_daemon && FindNextDaemon(&context.client(), connect)) {
    Drain(&context.client(), run_id, since_ns, &summary);
  }
  const std::set<std::string> keys = KeysOf(summary);
  if (!summary.is_unreachable) {
    LookAtProbes(&context.client(), keys, &summary);
    SortOutExcuses(&context.client(), &summary);
  }
  if (watch) {
    watch->WaitUntilSeen(keys, summary.complete ? kDrainTimeout : milliseconds(0));
    watch->Stop();
    if (watch->left_out() > 0) {
      context.Note(fmt::format("-- and {} more findings: cgdebug-cli tail -n 1000 --only nan -s {}",
                               watch->left_out(), ShellWord(run_id)));
    }
  }
  std::optional<int> recorded;
  if (summary.open > 0 && recording != 0 && is_first_daemon) {  // the recording has all rows
    recorded = StopRecording(context, options, recording, keys, summary);
    if (RecordedBy(options) == Recorded::kAll) {
      SortOutExcusesIn(RecordingPath(options.output), &summary);
    }
  }
  Report(context, summary, options, fail_on);
  const int code = ExitCodeOf(summary, fail_on);
  if (recording == 0) return code;
  if (!recorded) {
    recorded = is_first_daemon ? StopRecording(context, options, recording, keys, summary)
                               : FailDaemonGone(context, options);
  }
  return code != kExitOk ? code : *recorded;
}

}  // namespace

RunFunction AddRun(CLI::App& app) {
  auto options = std::make_shared<RunOptions>();
  app.add_option("COMMAND", options->command, "the job and its arguments, after --");
  app.add_option(
         "--fail-on", options->fail_on,
         "exit 1 if one of these happened; commas separate several. inf is -Inf too. In rows of "
         "op logs what check excuses does not count, as masks or a step that the GradScaler "
         "skips. The next cgdebug.step() or check() of the job raises")
      ->type_name("{nan,inf,mismatch,replica}");
  app.add_option(
         "--watch", options->watch,
         "put a probe on the output of every torch module whose name matches: globs; '*': "
         "all of them. 'op:GLOB' logs what every op of a captured graph writes instead; so do "
         "'graph:', 'kernel:' and 'fx:'. The job need not import cgdebug")
      ->type_name("GLOB")
      ->expected(1)
      ->allow_extra_args(false)  // else it takes the "--" behind it
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_flag(
      "--eager", options->eager,
      "with --watch: torch.compile compiles nothing, and 'op:', 'kernel:' and 'graph:' log "
      "what runs eagerly, each call of the model as a replay: the reference for ops diff");
  app.add_option("--values", options->values,
                 "keep the values of these rows of the op log, which are called ROW.value: globs, "
                 "as in 'fwd/layers.3.*'")
      ->type_name("GLOB")
      ->expected(1)
      ->allow_extra_args(false)  // else it takes the "--" behind it
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_flag("--blocking", options->blocking,
               "launch captured graphs kernel by kernel, and wait behind each: one that fails or "
               "hangs is named, with its op, module, line and tensors");
  app.add_flag("--races", options->races,
               "look at each captured graph for ops that touch the same bytes with no path between "
               "them; 'cgdebug-cli races' names them");
  app.add_flag(
      "--ask", options->ask,
      "let 'cgdebug-cli ask' say what any op of a captured graph makes in its next replay");
  app.add_option("--rewind", options->rewind,
                 "keep what the last N replays of each captured graph were given, so that "
                 "'cgdebug-cli ask' can run one again and say what any op of it made")
      ->check(WholeNumber(1, 1 << 20))
      ->type_name("N");
  app.add_option("--config", options->config,
                 "a file of settings for the job, as in `watch = [\"blk*\"]`; default: "
                 "$CGDEBUG_CONFIG or ./cgdebug.toml. Options and variables come before it")
      ->type_name("FILE");
  app.add_option("--on", options->on,
                 "when this holds for a ring in device memory, record what all of the job's have: "
                 "nan (NaN or Inf), inf, absmax>X, changed, mismatch. With --watch, values are "
                 "kept there")
      ->type_name("CONDITION");
  app.add_flag(
      "--tail", options->tail,
      "show each snapshot while the job runs, not only findings and a status line; rows of "
      "an op log share one line");
  app.add_option("--only", options->only, "like --tail, but only these snapshots")
      ->check(CLI::IsMember({"nan", "changed", "mismatch"}))
      ->type_name("{nan,changed,mismatch}");
  app.add_option("-o,--output", options->output,
                 "record into this directory; default with --record: $CGDEBUG_DIR or runs")
      ->type_name("DIR");
  AddForceOption(app, &options->force);
  app.add_option("--record", options->record.probes, "which probes to record: globs; default: all")
      ->type_name("GLOB")
      ->expected(1)
      ->allow_extra_args(false)  // else it takes the "--" behind it
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  AddDiskOptions(app, &options->record);
  app.add_flag("--lossy", options->lossy,
               "the job never waits for the recording; snapshots that come too fast are lost");
  app.add_flag("--no-live", options->no_live, "show nothing while it runs, only the summary");
  return [options](Context& context) { return RunJob(context, *options); };
}

}  // namespace cgdebug::cli
