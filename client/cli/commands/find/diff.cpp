#include "client/analysis/diff/diff.h"

#include <fmt/format.h>
#include <poll.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <tuple>
#include <utility>

#include "client/analysis/diff/diff_report.h"
#include "client/analysis/ops/op_log.h"
#include "client/analysis/requests/request_diff.h"
#include "client/analysis/requests/request_report.h"
#include "client/analysis/wording.h"
#include "client/cli/command.h"
#include "client/cli/commands/find/compare_runs.h"
#include "client/cli/interrupt.h"
#include "client/cli/sources/sources.h"
#include "client/cli/views/answer_text.h"
#include "daemon/core/numerics/stats_difference.h"
#include "daemon/core/options/number.h"

namespace cgdebug::cli {
namespace {

struct DiffCommand {
  std::string a;
  std::string b;
  ScopeOptions scope;
  analysis::DiffOptions diff;
  std::string by = "name";
  std::string align = "replay";
  std::string map;
  bool stat = false;
  bool name_only = false;
  bool exit_zero = false;
  bool follow = false;
};

constexpr int kLeastWaitMs = 50, kMostWaitMs = 1000;  // between two looks

Result<void> ReadMap(const std::string& path, analysis::AlignOptions* align) {
  std::ifstream file(path);
  std::stringstream text;
  if (!file || !(text << file.rdbuf())) return ErrnoError("cannot read " + path);
  Result<std::map<std::string, std::string>> names = analysis::ParseNameMap(text.str());
  if (!names.ok()) return Error{path + ": " + names.error().message};
  align->names = *std::move(names);
  return {};
}

// "ranks 0..1".
std::string RanksText(const std::set<int>& ranks) {
  if (*ranks.begin() < 0) return "no ranks";
  return (ranks.size() == 1 ? "rank " : "ranks ") +
         analysis::RangesText({ranks.begin(), ranks.end()});
}

// That no probe of one is in the other, and what to type.
std::string NothingInCommon(const source::Source& a, const source::Source& b,
                            const DiffCommand& command) {
  const auto ranks_of = [&](const source::Source& source) {
    std::set<int> ranks;
    for (const source::Slot& slot : source.slots()) {
      if (command.diff.align.scope.Wants(slot)) ranks.insert(slot.rank);
    }
    return ranks;
  };
  const std::set<int> in_a = ranks_of(a), in_b = ranks_of(b);
  std::string text = "the two have no probe in common";
  const bool shares_rank = std::ranges::any_of(in_b, [&](int rank) { return in_a.contains(rank); });
  // If both have one rank, which one does not matter.
  if (!in_b.empty() && !shares_rank && in_a.size() + in_b.size() > 2) {
    text += fmt::format(": A has {}, B has {}. ", RanksText(in_a), RanksText(in_b));
    const auto& [many, path] =
        in_a.size() > 1 ? std::tie(in_a, command.a) : std::tie(in_b, command.b);
    if (*in_a.begin() < 0 || *in_b.begin() < 0) {
      return text + fmt::format("Compare one rank with: --ranks {}", *many.begin());
    }
    return text + fmt::format(
                      "For a recording of one rank, type: cgdebug-cli extract {0} --ranks {1} -o "
                      "rank{1}.cgrec",
                      ShellWord(path), *many.begin());
  }
  if (command.by != "order") return text + ". Align by place in the graph with: --by order";
  return text + ". To see what B has, type: cgdebug-cli info " + ShellWord(command.b);
}

// Where no values were recorded every difference counts, also one of rounding, as compiled code
// makes it. If that may be all: how to see the first one that is larger.
void HintAtTolerance(const Context& context, const DiffCommand& command,
                     const analysis::Diff& diff) {
  constexpr double kRtol = 1e-3, kAtol = 1e-6;
  const bool chose = command.diff.bitwise || command.diff.rtol || command.diff.atol;
  if (chose || !diff.first || diff.first->values || diff.first->statistics.empty()) return;
  const analysis::Difference& first = *diff.first;
  if (!first.a.stats || !first.b.stats || first.tolerance.rtol == 0 ||
      !numerics::MayBeClose(*first.a.stats, *first.b.stats, kRtol, kAtol)) {
    return;
  }
  std::string typed = "cgdebug-cli";
  for (const std::string& word : context.words) typed += " " + ShellWord(word);
  context.Say("this may be rounding. The first that is not:");
  context.Hint(typed + " --rtol 1e-3");
}

// Rows of op logs are compared by their names here, which ops of other lines may share. What a
// module of a watched model gave differs: an op log has the op in it.
void HintAtOps(const Context& context, const source::Source& a, const source::Source& b,
               const DiffCommand& command, const analysis::Diff& diff) {
  if (!diff.first) return;
  if (analysis::HasOpLog(a) && analysis::HasOpLog(b)) {
    context.Note("rows of op logs were compared by name. In the order of their ops, type:");
    return context.Hint(
        fmt::format("cgdebug-cli ops diff {} {}", ShellWord(command.a), ShellWord(command.b)));
  }
  const source::Slot& slot = a.slots()[diff.first->a.slot];
  if (!slot.op.empty() || !slot.probe.starts_with("fwd/")) return;
  context.Note(
      "which op in it: record both with cgdebug-cli run --watch 'op:*' --eager -o A.cgrec -- "
      "COMMAND (the other: B.cgrec), and type: cgdebug-cli ops diff A.cgrec B.cgrec");
}

// The tensor in which the error grew.
void HintAtRow(const Context& context, const DiffCommand& command,
               const analysis::requests::RequestDiff& diff) {
  if (!diff.first) return;
  const auto& [slot, key] = diff.first->a;
  context.Hint(
      fmt::format("cgdebug-cli show {}", ShellWord(command.a + ":" + source::SlotText(*slot) +
                                                   source::ReplayMark(*slot, key.replay))));
}

// Returns 0, or what to exit with after the reason has been printed.
int OpenBoth(Context& context, const DiffCommand& command, std::unique_ptr<source::Source>* a,
             std::unique_ptr<source::Source>* b) {
  // If one source is a live job, --session says which.
  const bool has_live = command.a == "live" || command.b == "live";
  const auto takes_session = [&](const std::string& name) { return name == "live" || !has_live; };
  for (auto [name, source] : {std::pair(&command.a, a), std::pair(&command.b, b)}) {
    const std::string session = takes_session(*name) ? context.options.session : "";
    if (const int failed = OpenSource(context, *name, session, source)) return failed;
  }
  const auto is_wanted = [&](const auto& slot) { return command.diff.align.scope.Wants(slot); };
  if (std::none_of((*a)->slots().begin(), (*a)->slots().end(), is_wanted)) {
    return FailNoProbe(context, **a, command.scope,
                       ShellWord(command.a) +
                           (takes_session(command.a) ? context.SameJob() : context.SameRanks()));
  }
  return kExitOk;
}

int ShowRequests(Context& context, const DiffCommand& command,
                 const Result<analysis::requests::RequestDiff>& diff) {
  if (!diff.ok()) return context.Fail(kExitTrouble, diff.error().message);
  if (context.options.json) {
    Context::PrintJson(analysis::requests::RequestJson(*diff));
  } else {
    Context::Print(AnswerText(context.out, analysis::requests::RequestAnswer(*diff)));
    HintAtRow(context, command, *diff);
  }
  const int code = ExitCodeOf(diff->outcome());
  return code == kExitFound && command.exit_zero ? static_cast<int>(kExitOk) : code;
}

int CompareByRequest(Context& context, const DiffCommand& command) {
  std::unique_ptr<source::Source> a, b;
  if (const int failed = OpenBoth(context, command, &a, &b)) return failed;
  return ShowRequests(context, command,
                      analysis::requests::CompareRequests(*a, *b, command.diff.align.scope));
}

// Looks again in a quarter of the time in which what came new may be gone. If nothing came, in
// twice the last time.
int NextWaitMs(std::optional<std::int64_t> kept_ns, int last_ms) {
  constexpr std::int64_t kNsPerMs = 1000000;
  if (!kept_ns) return std::min(2 * last_ms, kMostWaitMs);
  return static_cast<int>(
      std::clamp<std::int64_t>(*kept_ns / kNsPerMs / 4, kLeastWaitMs, kMostWaitMs));
}

// Each look compares what both have then, and the answer is that of all looks.
int FollowRequests(Context& context, const DiffCommand& command) {
  const InterruptScope interrupt(&context.client());
  const std::unique_ptr<analysis::requests::RequestComparison> comparison =
      analysis::requests::MakeRequestComparison(command.diff.align.scope);
  std::optional<Result<analysis::requests::RequestDiff>> answer;
  std::uint64_t tokens = 0;
  bool was_found = false;
  int wait_ms = kLeastWaitMs;
  while (!interrupt.interrupted()) {
    std::unique_ptr<source::Source> a, b;
    const int failed = OpenBoth(context, command, &a, &b);
    if (interrupt.interrupted()) break;  // it may have stopped in the middle
    if (failed != kExitOk) return failed;
    const bool goes_on = a->Describe().is_growing || b->Describe().is_growing;
    const Result<void> looked = comparison->Look(*a, *b, /*is_last=*/!goes_on);
    if (interrupt.interrupted()) break;
    bool is_found = false;
    if (looked.ok()) {
      const analysis::requests::RequestDiff diff = comparison->Answer();
      is_found = diff.first.has_value();
      if (std::exchange(tokens, diff.tokens) != tokens && !is_found) {
        context.Note(fmt::format("no growth so far: {} of {}",
                                 analysis::Count(tokens, "token", "tokens"),
                                 analysis::Count(diff.requests, "request", "requests")));
      }
      answer = diff;
    } else {
      answer = looked.error();
    }
    // Of a call that was under way a later probe may have come before an earlier one, whose error
    // is as large: it is looked at twice.
    if ((is_found && was_found) || !goes_on) break;
    wait_ms = NextWaitMs(comparison->kept_ns(), wait_ms);
    if (!is_found) ::poll(nullptr, 0, wait_ms);
    was_found = is_found;
  }
  return answer ? ShowRequests(context, command, *answer) : InterruptExitCode();
}

// Whether an option was given that chooses how probes are compared.
bool ComparesProbes(const DiffCommand& command) {
  const analysis::DiffOptions& diff = command.diff;
  return diff.rtol || diff.atol || diff.equal_nan || diff.bitwise || diff.trusts_hashes ||
         diff.stops_after_first || diff.topk > 0 || !command.map.empty() ||
         command.align == "step" || command.stat || command.name_only;
}

// Turns what was typed into what is compared.
// Fails: a bad glob, number or map, or options that do not go together.
Result<void> SettleDiff(const Context& context, DiffCommand* command) {
  if (command->follow && command->by != "request") {
    return Error{"-f, --follow compares rows. Type: cgdebug-cli diff " + ShellWord(command->a) +
                 " " + ShellWord(command->b) + " --by request --follow"};
  }
  if (command->by == "request" && ComparesProbes(*command)) {
    return Error{
        "--by request compares rows; of the options it takes PROBE, --replays, --graph, --shape "
        "and --exit-zero. Type: cgdebug-cli diff " +
        ShellWord(command->a) + " " + ShellWord(command->b) + " --by request"};
  }
  Result<analysis::Scope> scope = MakeScope(context, command->scope);
  if (!scope.ok()) return scope.error();
  analysis::AlignOptions& align = command->diff.align;
  align.scope = *std::move(scope);
  if (!context.ranks.selects_all()) {
    // A process without a rank may be compared with one of several.
    align.scope.wants_rank = [ranks = context.ranks](int rank) {
      return rank < 0 || ranks.Contains(rank);
    };
  }
  align.by_order = command->by == "order";
  align.by_step = command->align == "step";
  return command->map.empty() ? Result<void>() : ReadMap(command->map, &align);
}

void ShowDiff(Context& context, const DiffCommand& command, source::Source& a, source::Source& b,
              const analysis::Diff& diff) {
  if (context.options.json) return Context::PrintJson(analysis::DiffJson(a, b, diff));
  if (command.name_only) {
    Context::Print(PrintableLines(analysis::DiffNamesText(a, diff)));
    if (diff.missing_count > 0) {
      context.Say(
          "not everything was compared. Why: the same command with --stat, without --name-only");
    }
  } else if (command.stat) {
    Context::Print(PrintableLines(analysis::DiffStatText(a, diff, /*all=*/false)) + "\n");
  } else {
    Context::Print(AnswerText(context.out, analysis::DiffAnswer(a, b, diff)));
    HintAtTolerance(context, command, diff);
    HintAtOps(context, a, b, command, diff);
    for (source::Source* source : {&a, &b}) {
      const source::Description about = source->Describe();
      if (about.kind != "recordings" || !context.ranks.selects_all()) continue;
      if (const std::string ranks = RanksHere(*source); !ranks.empty()) {
        context.Note(PrintableLines(about.path + ": " + ranks.substr(0, ranks.size() - 1)));
      }
    }
  }
  if (diff.probes.empty()) context.Say(NothingInCommon(a, b, command));
}

int RunDiff(Context& context, DiffCommand& command) {
  const Result<void> settled = SettleDiff(context, &command);
  if (!settled.ok()) return context.Fail(kExitTrouble, settled.error().message);
  if (command.follow) return FollowRequests(context, command);
  if (command.by == "request") return CompareByRequest(context, command);
  std::unique_ptr<source::Source> a, b;
  if (const int failed = OpenBoth(context, command, &a, &b)) return failed;
  const Result<analysis::Diff> diff = analysis::Compare(*a, *b, command.diff);
  if (!diff.ok()) return context.Fail(kExitTrouble, diff.error().message);
  ShowDiff(context, command, *a, *b, *diff);
  const int code = ExitCodeOf(diff->outcome());
  return code == kExitFound && command.exit_zero ? static_cast<int>(kExitOk) : code;
}

}  // namespace

int CompareProbes(Context& context, const std::string& a, const std::string& b) {
  context.words = {"diff", "--first", a, b};  // what hints go on from
  DiffCommand command;
  command.a = a;
  command.b = b;
  command.diff.stops_after_first = true;
  return RunDiff(context, command);
}

RunFunction AddDiff(CLI::App& app) {
  auto command = std::make_shared<DiffCommand>();
  app.add_option("A", command->a, kSourceHelp)->required();
  app.add_option("B", command->b, "the same; what A is compared with")->required();
  app.add_option("PROBE", command->scope.probes, "globs; 're:...', '!...' excludes");
  app.add_option("--replays", command->scope.replays, "only these replays")->type_name("100..200");
  AddWhichOptions(app, &command->scope.which);
  app.add_flag("--first", command->diff.stops_after_first,
               "stop after the replay of the first difference");
  CLI::Option* rtol =
      app.add_option("--rtol", command->diff.rtol,
                     "relative tolerance; default: that of assert_close for the dtype");
  CLI::Option* atol = app.add_option("--atol", command->diff.atol, "absolute tolerance; likewise");
  rtol->type_name("R");
  atol->type_name("A");
  app.add_flag("--equal-nan", command->diff.equal_nan, "NaN equals NaN");
  app.add_flag("--bitwise", command->diff.bitwise, "every bit counts, no tolerance")
      ->excludes(rtol)
      ->excludes(atol);
  app.add_flag("--trust-hashes", command->diff.trusts_hashes,
               "equal recorded hashes are enough: the values are not read");
  app.add_option(
         "--by", command->by,
         "what is compared: probes of one name, or of one place in the graph; or the rows of "
         "one token of one request, as cgdebug.rows() told")
      ->check(CLI::IsMember({"name", "order", "request"}))
      ->type_name("{name,order,request}");
  app.add_option("--map", command->map, "a file of lines NAME_IN_A NAME_IN_B")->type_name("FILE");
  app.add_option("--align", command->align,
                 "pair snapshots by replay, or by the step that cgdebug.step(n) set")
      ->check(CLI::IsMember({"replay", "step"}))
      ->type_name("{replay,step}");
  app.add_option("--topk", command->diff.topk, "list the K elements that differ most")
      ->check(WholeNumber(0))
      ->type_name("K");
  app.add_flag("--stat", command->stat, "print one line per probe");
  app.add_flag("--name-only", command->name_only, "print only the names of the probes that differ");
  app.add_flag(
      "-f,--follow", command->follow,
      "with --by request: look again, at least each second, until the error of a row grows, both "
      "jobs have ended, or Ctrl-C");
  app.add_flag("--exit-zero", command->exit_zero, "exit 0, not 1, if they differ");
  return [command](Context& context) { return RunDiff(context, *command); };
}

}  // namespace cgdebug::cli
