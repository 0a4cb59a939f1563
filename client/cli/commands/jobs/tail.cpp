#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <vector>

#include "client/cli/command.h"
#include "client/cli/interrupt.h"
#include "client/cli/sources/sources.h"
#include "client/cli/views/live/event_printer.h"
#include "client/live/events.h"
#include "client/live/probe.h"
#include "client/live/status.h"
#include "daemon/core/base/duration.h"
#include "daemon/core/base/realtime.h"
#include "daemon/core/options/number.h"
#include "daemon/core/options/parsed_option.h"

namespace cgdebug::cli {
namespace {

constexpr std::uint32_t kLastByDefault = 10;

struct TailOptions {
  live::TailRequest request = {};
  std::optional<std::uint32_t> last;
  std::chrono::milliseconds since{0};  // 0: no limit
  std::string only;
  bool prefix = false;
  bool timestamps = false;
  bool rows = false;
  WhichOptions which;
};

live::TailRequest MakeRequest(const Context& context, const TailOptions& options,
                              const WhichSlots& which) {
  live::TailRequest request = options.request;
  request.last = options.last.value_or(options.since.count() > 0 ? UINT32_MAX : kLastByDefault);
  request.session = context.options.session;
  request.which = which;
  // With --session, stop following when that job ends.
  request.until_exit = request.follow && !request.session.empty();
  request.only = ParseOnly(options.only);
  // Who names probes wants to see them.
  request.pages = !options.rows && !context.options.json && request.probes.empty() && !which.shape;
  for (const RankSet::Range& one : context.ranks.ranges()) {
    request.ranks.emplace_back(one.first, one.last);
  }
  return request;
}

std::string WhyNothingCame(const Context& context, const TailOptions& options) {
  if (!options.only.empty()) {
    return fmt::format(
        "nothing with --only {} has happened; all snapshots: the same command without --only",
        options.only);
  }
  if (options.since.count() > 0) {
    return "nothing has come in that time; what came before: the same command without --since";
  }
  return "no snapshot has come yet; to wait for one: " + context.Again("-f");
}

// Where events may come from.
struct Origin {
  std::string session;
  int rank = -1;
  std::string label;
  bool is_over = false;  // it sends nothing new
};

// Asks for the probes only if some are named: a job may have tens of thousands.
Result<std::vector<Origin>> OriginsOf(Context& context, const TailOptions& options) {
  std::vector<Origin> origins;
  if (options.request.probes.empty()) {
    const Result<live::Status> status = live::GetStatus(context.client(), context.options.session);
    if (!status.ok()) return status.error();
    for (const live::Session& session : status->sessions) {
      origins.push_back(
          {session.key, session.rank, session.label, session.state != live::SessionState::kAlive});
    }
    return origins;
  }
  const Result<std::vector<live::Probe>> probes = live::ListProbes(
      context.client(), context.options.session, options.request.probes, live::LastStats::kNone);
  if (!probes.ok()) return probes.error();
  for (const live::Probe& probe : *probes) {
    origins.push_back({probe.session, probe.slot.rank, probe.slot.session, probe.retired});
  }
  return origins;
}

// 0 if there is anything to show or --follow waits for it, else what to exit with.
int CheckSomethingMatches(Context& context, const TailOptions& options, EventPrinter* printer) {
  const Result<std::vector<Origin>> origins = OriginsOf(context, options);
  const bool nothing =
      !origins.ok() && context.client().last_failure() == client::Failure::kNothingMatched;
  if (options.request.follow && nothing && context.options.session.empty()) {
    context.Note("-- waiting: " + origins.error().message);
    context.NoteSkipped();
    return kExitOk;
  }
  if (!origins.ok()) return context.Fail(origins.error());
  bool any_rank = origins->empty();
  for (const Origin& origin : *origins) {
    any_rank = any_rank || context.ranks.Contains(origin.rank);
    // What is over needs no entry in the legend.
    const bool may_speak =
        context.ranks.Contains(origin.rank) && !(options.request.follow && origin.is_over);
    if (may_speak) printer->See(origin.session, origin.rank, origin.label);
  }
  if (!any_rank && !options.request.follow) {
    return context.Fail(kExitNoMatch, "no such probe is on these ranks. Type: cgdebug-cli ps -a");
  }
  if (origins->empty() && !options.request.follow) {
    return context.FailNoJob("no job of this user has a probe. To wait for one, type: " +
                             context.Again("-f"));
  }
  return kExitOk;
}

int RunTail(Context& context, const TailOptions& options) {
  const Result<WhichSlots> which = options.which.Parse();
  if (!which.ok()) return context.Fail(kExitTrouble, which.error().message);
  if (const int failed = context.Connect()) return failed;
  EventPrinterOptions printing;
  printing.is_json = context.options.json;
  printing.style = context.out;
  printing.always_prefix = options.prefix;
  printing.timestamps = options.timestamps;
  EventPrinter printer(printing, stdout);
  if (const int failed = CheckSomethingMatches(context, options, &printer)) return failed;
  if (options.request.follow) std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);

  const InterruptScope interrupt(&context.client());
  const std::int64_t since_ns =
      options.since.count() == 0 ? 0
                                 : RealtimeNs() - std::chrono::nanoseconds(options.since).count();
  bool any = false;
  bool is_recent = since_ns == 0;  // not every event has a time, but they come in order
  const live::TailRequest request = MakeRequest(context, options, *which);
  const Result<client::TailEnd> end =
      live::Tail(context.client(), request, [&](const live::Event& event) {
        is_recent |= event.tensor.snapshot.timestamp_ns >= since_ns ||
                     event.kind == live::EventKind::kCaughtUp;
        if (event.kind == live::EventKind::kCaughtUp || !is_recent) return true;
        if (!context.ranks.Contains(event.tensor.slot.rank)) return true;
        any = true;
        printer.Print(event);
        return std::ferror(stdout) == 0;
      });
  if (!end.ok()) return context.Fail(end.error());
  const bool asked = request.last > 0 || request.follow;
  if (!any && asked && !interrupt.interrupted()) {
    context.Note("-- " + WhyNothingCame(context, options));
  }
  if (options.request.follow) context.Note("-- " + printer.Summary());
  if (*end == client::TailEnd::kDaemonGone) {
    return context.Fail(
        kExitTrouble,
        fmt::format(
            "the daemon ended; what happens now is not shown. To go on with a new one, type: {}",
            context.Again(options.request.follow ? "" : "-f")));
  }
  return interrupt.interrupted() ? InterruptExitCode() : static_cast<int>(kExitOk);
}

}  // namespace

RunFunction AddTail(CLI::App& app) {
  auto options = std::make_shared<TailOptions>();
  app.add_option("PROBE", options->request.probes,
                 "globs; 're:...' a regular expression, '!...' excludes");
  AddWhichOptions(app, &options->which);
  app.add_flag("-f,--follow", options->request.follow,
               "follow new events; with --session, until that job ends");
  app.add_option("-n,--last", options->last, "how many past events to show first; 10 by default")
      ->check(WholeNumber(0, UINT32_MAX))
      ->type_name("N");
  AddParsed(
      app, "--since",
      [](const std::string& text) { return ParseDuration(text, std::chrono::milliseconds(1)); },
      &options->since, "DURATION", "past events of this time only, all that are kept: 30s, 5m");
  app.add_option("--only", options->only,
                 "nan: NaN or Inf; changed: other statistics; mismatch: failed comparisons")
      ->check(CLI::IsMember({"nan", "changed", "mismatch"}))
      ->type_name("{nan,changed,mismatch}");
  app.add_flag("--prefix", options->prefix,
               "name the rank on every line (default if there are several)");
  app.add_flag(
      "--rows", options->rows,
      "a line for each row of an op log; without it, one for each page of rows and replay, "
      "unless PROBE, --shape or --json is given");
  app.add_flag("-t,--timestamps", options->timestamps, "show the time of each snapshot");
  return [options](Context& context) { return RunTail(context, *options); };
}

}  // namespace cgdebug::cli
