#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "client/cli/command.h"
#include "client/cli/run/disk_options.h"
#include "client/cli/run/excuses.h"
#include "client/cli/run/job.h"
#include "client/cli/run/run_again.h"
#include "client/cli/run/run_options.h"
#include "client/cli/run/run_recording.h"
#include "client/cli/run/run_summary.h"
#include "client/cli/run/run_watch.h"
#include "client/cli/views/live/event_printer.h"
#include "client/cli/views/recording_text.h"
#include "client/live/sessions.h"
#include "client/live/status.h"
#include "daemon/core/options/number.h"

namespace cgdebug::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kDrainTimeout{5000};
constexpr milliseconds kPoll{20};

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

// Whether both are the same program with other arguments: "python serve.py a", "python serve.py b".
bool AreVariants(const std::string& a, const std::string& b) {
  const auto words_of = [](const std::string& command) {
    std::istringstream text(command);
    return std::vector<std::string>(std::istream_iterator<std::string>(text), {});
  };
  const std::vector<std::string> in_a = words_of(a), in_b = words_of(b);
  const auto differ = std::mismatch(in_a.begin(), in_a.end(), in_b.begin(), in_b.end());
  const auto alike = differ.first - in_a.begin();
  const bool is_module = in_a.size() > 1 && in_a[1].starts_with("-");
  return in_a != in_b && alike >= (is_module ? 3 : 2);
}

void FindEarlier(client::Client* client, RunSummary* summary) {
  if (summary->sessions.size() != 1) return;
  const live::Session& own = summary->sessions.front();
  const Result<std::vector<live::Session>> listed = live::ListSessions(*client);
  const live::Session* earlier = nullptr;
  for (const live::Session& one : listed.ok() ? *listed : std::vector<live::Session>()) {
    const bool is_meant = one.run_id != own.run_id && one.rank == own.rank && one.probes > 0 &&
                          one.created_ns < own.created_ns && AreVariants(one.command, own.command);
    if (is_meant && (earlier == nullptr || earlier->created_ns < one.created_ns)) earlier = &one;
  }
  if (earlier != nullptr) summary->earlier = earlier->key;
}

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
  const RunAgain again(context.words, options);
  const std::string no_graph = again.NoGraphText();
  if (summary.complete && summary.Snapshots() == 0 && !no_graph.empty()) {
    context.Say(no_graph);
    return context.Hint(again.LogEagerCommand());
  }
  for (const std::string& command :
       NextCommands(summary, again.LogOpsCommands(summary.has_compiled_code),
                    again.WatchAllCommand(), RecordedBy(options))) {
    context.Hint(command);
  }
}

// One job, from its start to the report of what was seen of it.
class JobRun {
 public:
  JobRun(Context& context, const RunOptions& options)
      : context_(context),
        options_(options),
        connect_(context.MakeConnectOptions()),
        printer_(PrintingOf(context), stderr),
        recording_(context, options) {
    connect_.socket = context.client().socket();
    connect_.start_daemon = false;
  }

  // `variables`: what the options tell the job. Returns what to exit with.
  int Run(Variables variables) {
    ::signal(SIGPIPE, SIG_IGN);  // a closed stderr ends the view, not the job
    if (!recording_.Start(run_id_)) return kExitTrouble;
    if (!options_.no_live) {
      watch_.emplace(connect_, WatchingOf(context_, options_, run_id_, since_ns_), &printer_);
    }
    variables.emplace_back("CGDEBUG_RUN_ID", run_id_);
    variables.emplace_back("CGDEBUG_SOCKET", std::filesystem::absolute(context_.client().socket()));
    Job job;
    const Result<void> started = job.Start(options_.command, variables, *signals_);
    if (!started.ok()) {
      context_.Say(started.error().message + RunAgain(context_.words, options_).InsteadText());
      // Without this it would wait for a job that never comes, and keep the daemon running.
      recording_.End({}, RunSummary());
      return job.exit_code();
    }
    context_.Note(fmt::format("cgdebug: run {} (pid {})", run_id_, job.pid()));
    job.Wait(*signals_);
    signals_.reset();  // from here on Ctrl-C means us
    return End(job);
  }

 private:
  static std::string RunIdFor(const RunOptions& options) {
    const char* inherited = std::getenv("CGDEBUG_RUN_ID");
    const bool has_inherited = inherited != nullptr && *inherited != '\0';
    return has_inherited ? inherited : MakeRunId(options.command);
  }
  static std::int64_t Now() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  }

  int End(const Job& job) {
    RunSummary summary = SummaryOf(job);
    const std::set<std::string> keys = KeysOf(summary);
    if (!summary.is_unreachable) {
      LookAtProbes(&context_.client(), keys, &summary);
      FindEarlier(&context_.client(), &summary);
      SortOutExcuses(&context_.client(), &summary);
    }
    if (watch_) EndWatch(keys, summary.complete ? kDrainTimeout : milliseconds(0));
    if (summary.open > 0 && recording_.goes_on()) {  // it has all rows
      recording_.End(keys, summary);
      if (RecordedBy(options_) == Recorded::kAll) {
        SortOutExcusesIn(RecordingPath(options_.output), &summary);
      }
    }
    if (summary.sessions.empty()) summary.recorded = recording_.LeftByDaemon();
    const FailOn fail_on = *ParseFailOn(options_.fail_on);
    Report(context_, summary, options_, fail_on);
    const int code = ExitCodeOf(summary, fail_on);
    const int recorded = recording_.End(keys, summary);
    return code != kExitOk ? code : recorded;
  }

  // What the daemon has read of the job, or the next daemon if the first one is gone.
  RunSummary SummaryOf(const Job& job) {
    RunSummary summary;
    summary.job_exit_code = job.exit_code();
    summary.job_signal = job.signal();
    summary.is_watched = !options_.watch.empty();
    Drain(&context_.client(), run_id_, since_ns_, &summary);
    if (!summary.is_unreachable) return summary;
    recording_.SetDaemonGone();
    if (FindNextDaemon(&context_.client(), connect_)) {
      Drain(&context_.client(), run_id_, since_ns_, &summary);
    }
    return summary;
  }

  void EndWatch(const std::set<std::string>& keys, milliseconds patience) {
    watch_->WaitUntilSeen(keys, patience);
    watch_->Stop();
    if (watch_->left_out() == 0) return;
    context_.Note(fmt::format("-- and {} more findings: cgdebug-cli tail -n 1000 --only nan -s {}",
                              watch_->left_out(), ShellWord(run_id_)));
  }

  Context& context_;
  const RunOptions& options_;
  const std::string run_id_ = RunIdFor(options_);
  const std::int64_t since_ns_ = Now();
  std::unique_ptr<JobSignals> signals_ = std::make_unique<JobSignals>();  // until the job has ended
  client::ConnectOptions connect_;
  EventPrinter printer_;
  RunRecording recording_;
  std::optional<RunWatch> watch_;
};

int RunJob(Context& context, RunOptions& options) {
  Result<Variables> variables = SettleOptions(context, &options);
  if (!variables.ok()) return context.Fail(kExitTrouble, variables.error().message);
  client::ConnectOptions connect = context.MakeConnectOptions();
  connect.is_for_job = true;
  if (const int failed = context.ConnectWith(connect)) return failed;
  return JobRun(context, options).Run(*std::move(variables));
}

// What gets probes, or rows of an op log.
void AddWatching(CLI::App& app, RunOptions* options) {
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
  app.add_option("--sketches", options->sketches,
                 "with --watch: the outputs of modules keep 32 bytes of each row in their last N "
                 "calls, and in a recording of all, by which diff --by request compares rows")
      ->check(WholeNumber(1, 1024))
      ->type_name("N");
}

// What may be asked of captured graphs.
void AddGraphQuestions(CLI::App& app, RunOptions* options) {
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
}

void AddRecordingOfRun(CLI::App& app, RunOptions* options) {
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
  AddWatching(app, options.get());
  AddGraphQuestions(app, options.get());
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
  AddRecordingOfRun(app, options.get());
  app.add_flag("--no-live", options->no_live, "show nothing while it runs, only the summary");
  return [options](Context& context) { return RunJob(context, *options); };
}

}  // namespace cgdebug::cli
