#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <vector>

#include "client/cli/command.h"
#include "client/cli/sources/sources.h"
#include "client/cli/views/json.h"
#include "client/cli/views/tensor/snapshot_text.h"
#include "client/cli/views/terminal.h"
#include "client/live/probe.h"
#include "client/live/sessions.h"
#include "daemon/core/base/duration.h"
#include "daemon/core/options/number.h"
#include "daemon/core/words/condition.h"

namespace cgdebug::cli {
namespace {

struct SetOptions {
  std::vector<std::string> probes;
  std::string mode;
  std::string on;
  std::string ttl = "5m";
  std::uint32_t every = 0;
  std::uint64_t from = 0;
  std::uint64_t count = 0;
  WhichOptions which;
  bool all_jobs = false;
};

Result<live::ControlRequest> MakeRequest(const SetOptions& options) {
  live::ControlRequest request;
  request.probes = options.probes;
  const Result<WhichSlots> which = options.which.Parse();
  if (!which.ok()) return which.error();
  request.which = *which;
  layout::SlotControl* control = &request.control;
  const std::string mode = options.mode.empty() ? "full" : options.mode;
  for (const auto one : {layout::ControlMode::kOff, layout::ControlMode::kStats,
                         layout::ControlMode::kFull, layout::ControlMode::kAsRegistered}) {
    if (NameOf(one) == mode) control->mode = one;
  }
  if (options.mode.empty() && options.on.empty()) {
    return Error{
        "set needs --mode off|stats|full|registered, or --on CONDITION. Type for "
        "example: cgdebug-cli set 'blk3.*' --mode full --every 10"};
  }
  if (!options.on.empty()) {
    const Result<words::Condition> condition = words::ParseCondition(options.on, "--on");
    if (!condition.ok()) return condition.error();
    control->trigger = condition->trigger;
    control->threshold = condition->threshold;
  }
  control->every = options.every;
  control->from = options.from;
  if (options.count > 0) {
    std::uint64_t last = 0;
    const std::uint64_t every = std::max<std::uint64_t>(options.every, 1);
    if (__builtin_mul_overflow(options.count - 1, every, &last) ||
        __builtin_add_overflow(last, std::max<std::uint64_t>(options.from, 1), &last)) {
      return Error{"--count is too large; leave it out for no end"};
    }
    control->until = last;
  }
  const Result<std::chrono::milliseconds> ttl = ParseDuration(options.ttl);
  if (!ttl.ok()) return Error{"--ttl " + ttl.error().message};
  request.ttl_ms = static_cast<std::uint64_t>(ttl->count());
  return request;
}

// Which job's probes are changed; empty: those of all jobs that are alive. Without -s there must be
// one job, because a glob such as '*' would change the others, too.
Result<std::string> ChangedJob(Context& context, bool all_jobs) {
  const Result<std::vector<live::Session>> listed = live::ListSessions(context.client());
  if (!listed.ok()) return listed.error();
  std::vector<live::Session> alive;
  for (const live::Session& session : *listed) {
    if (session.state == live::SessionState::kAlive &&
        live::MatchesSession(session, context.options.session)) {
      alive.push_back(session);
    }
  }
  std::string names;
  const std::vector<live::JobRanks> jobs = live::GroupByJob(alive);
  for (const live::JobRanks& job : jobs) names += (names.empty() ? "" : ", ") + Printable(job.name);
  if (jobs.size() > 1 && context.options.session.empty() && !all_jobs) {
    return Error{fmt::format("{} jobs are alive: {}. Type the command with -s JOB, or --all-jobs",
                             jobs.size(), names)};
  }
  return names;
}

int RunSet(Context& context, const SetOptions& options) {
  Result<live::ControlRequest> request = MakeRequest(options);
  if (!request.ok()) return context.Fail(kExitTrouble, request.error().message);
  if (const int failed = context.Connect()) return failed;
  const Result<std::string> job = ChangedJob(context, options.all_jobs);
  if (!job.ok()) return context.Fail(kExitTrouble, job.error().message);
  request->session = context.options.session;
  const Result<live::Controlled> reply = live::SetControl(context.client(), *request);
  if (!reply.ok()) return context.Fail(reply.error());
  if (context.options.json) {
    Context::PrintJson(FieldsJson(*reply));
    return kExitOk;
  }
  const bool forever = reply->expires_ns == 0;
  context.Say(fmt::format(
      "{}{}{} probe{}, {} call{}: {}{}", *job, job->empty() ? "" : ": ", reply->probes,
      reply->probes == 1 ? "" : "s", reply->slots, reply->slots == 1 ? "" : "s",
      ControlText(request->control),
      request->control.mode == layout::ControlMode::kAsRegistered ? ""
      : forever                                                   ? ", until the job ends"
                : ", for " + FormatDuration(static_cast<double>(request->ttl_ms) / 1e3)));
  context.Hint("cgdebug-cli probes" + context.SameJob());
  return kExitOk;
}

}  // namespace

RunFunction AddSet(CLI::App& app) {
  auto options = std::make_shared<SetOptions>();
  app.add_option("PROBE", options->probes, "globs, \"!\" excludes; '*' for all")->required();
  AddWhichOptions(app, &options->which);
  app.add_flag("--all-jobs", options->all_jobs, "change every job that is alive");
  app.add_option("--mode", options->mode,
                 "off, stats (no values), full, or registered: as the job registered it")
      ->check(CLI::IsMember({"off", "stats", "full", "registered"}))
      ->type_name("{off,stats,full,registered}");
  app.add_option("--every", options->every, "one replay in N; default: as registered")
      ->check(WholeNumber(1, UINT32_MAX))
      ->type_name("N");
  app.add_option("--from", options->from, "first replay, or call of what runs eagerly")
      ->check(WholeNumber(1))
      ->type_name("N");
  app.add_option("--count", options->count, "as registered again after N snapshots")
      ->check(WholeNumber(1))
      ->type_name("N");
  app.add_option(
         "--on", options->on,
         "send values only in replays where this holds, else statistics: nan (NaN or Inf), inf, "
         "absmax>X, changed. Rings in device memory stop instead, once, are recorded with all "
         "that they have, and go on; those also stop on mismatch: a comparison of the job failed")
      ->type_name("CONDITION");
  app.add_option(
         "--ttl", options->ttl,
         "as registered again after this time, even without a daemon; 0 = when the job ends (5m)")
      ->type_name("DURATION");
  return [options](Context& context) { return RunSet(context, *options); };
}

}  // namespace cgdebug::cli
