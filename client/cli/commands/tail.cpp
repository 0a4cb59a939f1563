#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "client/cli/command.h"
#include "client/cli/interrupt.h"
#include "client/cli/sources.h"
#include "client/cli/views/event_printer.h"
#include "client/live/messages.h"
#include "client/live/probe.h"
#include "daemon/core/options/whole_number.h"

namespace cgdebug::cli {
namespace {

struct TailOptions {
  std::vector<std::string> probes;
  bool follow = false;
  std::uint32_t lines = 10;
  std::string only;
  bool prefix = false;
  bool timestamps = false;
  WhichOptions which;
};

v1::TailRequest MakeRequest(const Context& context, const TailOptions& options,
                            const WhichSlots& which) {
  v1::TailRequest request;
  request.set_session(context.options.session);
  for (const std::string& probe : options.probes) request.add_probes(probe);
  if (!which.selects_all()) live::FillWhich(which, request.mutable_which());
  request.set_last(options.lines);
  request.set_follow(options.follow);
  // With --session, stop following when that job ends.
  request.set_until_exit(options.follow && !context.options.session.empty());
  request.set_only(ParseOnly(options.only));
  if (context.ranks.Single() >= 0) request.set_rank(context.ranks.Single());
  return request;
}

int RankOf(const v1::TailReply& event) {
  switch (event.event_case()) {
    case v1::TailReply::kSnapshot:
      return event.snapshot().rank();
    case v1::TailReply::kPrint:
      return event.print().rank();
    case v1::TailReply::kLoss:
      return event.loss().rank();
    case v1::TailReply::kCompareFailed:
      return event.compare_failed().rank();
    case v1::TailReply::kSessionChange:
      return event.session_change().session().rank();
    default:
      return -1;
  }
}

std::string WhyNothingCame(const TailOptions& options) {
  if (!options.only.empty()) {
    return fmt::format("nothing with --only {} has happened; all snapshots: cgdebug-cli tail",
                       options.only);
  }
  return "no snapshot has come yet; to wait for one: cgdebug-cli tail -f";
}

// 0 if there is anything to show or --follow waits for it, else what to exit with.
int CheckSomethingMatches(Context& context, const TailOptions& options, EventPrinter* printer) {
  const Result<std::vector<live::Probe>> reply =
      live::ListProbes(context.client(), context.options.session, options.probes);
  const bool nothing =
      !reply.ok() && context.client().last_failure() == client::Failure::kNothingMatched;
  if (options.follow && nothing && context.options.session.empty()) {
    context.Note("-- waiting: " + reply.error().message);
    context.NoteSkipped();
    return kExitOk;
  }
  if (!reply.ok()) return context.Fail(reply.error());
  bool any_rank = reply->empty();
  for (const live::Probe& probe : *reply) {
    any_rank = any_rank || context.ranks.Contains(probe.slot.rank);
    // Ended slots send nothing new, so they need no entry in the legend.
    const bool may_speak =
        context.ranks.Contains(probe.slot.rank) && !(options.follow && probe.retired);
    if (may_speak) printer->See(probe.session, probe.slot.rank, probe.slot.session);
  }
  if (!any_rank && !options.follow) {
    return context.Fail(kExitNoMatch, "no such probe is on these ranks. Type: cgdebug-cli ps -a");
  }
  if (reply->empty() && !options.follow) {
    return context.FailNoJob(
        "no job of this user has a probe. To wait for one, type: cgdebug-cli tail -f");
  }
  return kExitOk;
}

int RunTail(Context& context, const TailOptions& options) {
  const Result<WhichSlots> which = options.which.Parse();
  if (!which.ok()) return context.Fail(kExitTrouble, which.error().message);
  if (const int failed = context.Connect(); failed != kExitOk) return failed;
  EventPrinterOptions printing;
  if (context.options.plain) printing.format = EventFormat::kPlain;
  if (context.options.json) printing.format = EventFormat::kJson;
  printing.style = context.out;
  printing.always_prefix = options.prefix;
  printing.timestamps = options.timestamps;
  EventPrinter printer(printing, stdout);
  if (const int failed = CheckSomethingMatches(context, options, &printer); failed != kExitOk) {
    return failed;
  }
  if (options.follow) std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);

  const InterruptScope interrupt(&context.client());
  bool any = false;
  const Result<client::TailEnd> end =
      context.client().Tail(MakeRequest(context, options, *which), [&](const v1::TailReply& event) {
        if (!event.has_caught_up() && !context.ranks.Contains(RankOf(event))) return true;
        any = any || !event.has_caught_up();
        printer.Print(event);
        return std::ferror(stdout) == 0;
      });
  if (!end.ok()) return context.Fail(end.error());
  const bool asked = options.lines > 0 || options.follow;
  if (!any && asked && !interrupt.interrupted()) context.Note("-- " + WhyNothingCame(options));
  if (options.follow) context.Note("-- " + printer.Summary());
  if (*end == client::TailEnd::kDaemonGone) {
    return context.Fail(
        kExitTrouble,
        "the daemon ended; what happens now is not shown. Type: cgdebug-cli tail -f "
        "  to go on with a new one");
  }
  return interrupt.interrupted() ? InterruptExitCode() : static_cast<int>(kExitOk);
}

}  // namespace

RunFunction AddTail(CLI::App& app) {
  auto options = std::make_shared<TailOptions>();
  app.add_option("PROBE", options->probes, "globs; 're:...' a regular expression, '!...' excludes");
  AddWhichOptions(app, &options->which);
  app.add_flag("-f,--follow", options->follow,
               "follow new events; with --session, until that job ends");
  app.add_option("-n,--lines", options->lines, "how many past events to show first; 10 by default")
      ->check(WholeNumber(0, UINT32_MAX))
      ->type_name("N");
  app.add_option("--only", options->only,
                 "nan: NaN or Inf; changed: other statistics; fail: comparisons")
      ->check(CLI::IsMember({"nan", "changed", "fail"}))
      ->type_name("{nan,changed,fail}");
  app.add_flag("--prefix", options->prefix,
               "name the rank on every line (default if there are several)");
  app.add_flag("-t,--timestamps", options->timestamps, "show the time of each snapshot");
  return [options](Context& context) { return RunTail(context, *options); };
}

}  // namespace cgdebug::cli
