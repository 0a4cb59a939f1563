#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <memory>
#include <vector>

#include "client/analysis/check/nonfinite.h"
#include "client/analysis/diff/statistics_verdict.h"
#include "client/analysis/ops/masks.h"
#include "client/analysis/ops/op_details.h"
#include "client/analysis/ops/op_diff.h"
#include "client/analysis/ops/op_log.h"
#include "client/analysis/ops/op_runs.h"
#include "client/analysis/wording.h"
#include "client/cli/command.h"
#include "client/cli/commands/find/compare_runs.h"
#include "client/cli/sources/log_place.h"
#include "client/cli/sources/sources.h"
#include "client/cli/views/answer_text.h"
#include "client/cli/views/op_listing.h"
#include "client/cli/views/tensor/tensor_json.h"
#include "client/source/merged_source.h"
#include "daemon/core/numerics/format.h"
#include "daemon/core/numerics/stats_difference.h"

namespace cgdebug::cli {
namespace {

using analysis::OpLog;
using analysis::OpRow;

struct OpsCommand {
  std::string source = "live";
  std::string graph;
  std::string only;
  std::string a;
  std::string b;
  bool exit_zero = false;
  bool is_coverage = false;
  bool all = false;
  OpListing listing;
};

constexpr std::size_t kMostOnTerminal = 40;
constexpr std::size_t kBeforeFirst = 20;

Result<LogPlace> ParseWhere(const Context& context, const std::string& text,
                            const std::string& graph) {
  return ParseLogPlace(context, text, {.command = "ops", .graph = graph});
}

// Asks `check` which NaN and Inf are excused, if there are any. 0; otherwise the exit status, and
// the reason has been printed.
int AskForExcuses(Context& context, const std::string& path, const OpLog& log,
                  analysis::LogExcuses* excuses) {
  const bool is_finite = std::ranges::none_of(
      log.rows, [](const OpRow& row) { return row.stats && row.stats->nonfinite() > 0; });
  if (is_finite && log.nan_since == 0) return kExitOk;
  std::unique_ptr<source::Source> source;
  const int failed = OpenSourceOfRanks(context, path, &source);
  if (failed != kExitOk) return failed;
  Result<analysis::LogExcuses> found = analysis::ExcusesOfLog(*source, log);
  if (!found.ok()) return context.Fail(kExitNoMatch, found.error().message);
  *excuses = *std::move(found);
  return kExitOk;
}

// 0; otherwise the exit status, and the reason has been printed.
int OpenLog(Context& context, const LogPlace& where, OpLog* log, analysis::LogExcuses* excuses,
            std::vector<std::string>* others) {
  const int failed = OpenOpLog(context, where.source, where.choice, log, others);
  return failed != kExitOk ? failed : AskForExcuses(context, where.source, *log, excuses);
}

// The first row with a NaN or an Inf that counts; nullptr without one. `wants_nan`: no Inf.
const OpRow* FirstBad(const OpLog& log, const analysis::LogExcuses& excuses,
                      bool wants_nan = false) {
  for (const OpRow& row : log.rows) {
    const bool is_bad = row.stats && (wants_nan ? row.stats->nan : row.stats->nonfinite()) > 0;
    if (is_bad && !excuses.excused.contains(row.number) && !excuses.open.contains(row.number)) {
      return &row;
    }
  }
  return nullptr;
}

// The one that is shown: FirstBad() or, without one, the first that may still get an excuse.
const OpRow* FirstShown(const OpLog& log, const analysis::LogExcuses& excuses,
                        bool wants_nan = false) {
  if (FirstBad(log, excuses) != nullptr) return FirstBad(log, excuses, wants_nan);
  analysis::LogExcuses known = excuses;
  for (const std::uint32_t row : excuses.awaiting) known.open.erase(row);
  return FirstBad(log, known, wants_nan);
}

// Whether a statistic differs from that of the replay before.
bool HasChanged(const OpRow& row) {
  return row.stats && row.stats_before &&
         !numerics::DifferencesOf(*row.stats, *row.stats_before).empty();
}

// Of how many rows nobody knows whether they changed.
std::string UnknownChangeText(const OpLog& log, const OpsCommand& command) {
  const auto unknown = std::ranges::count_if(
      log.rows, [](const OpRow& row) { return !row.stats || !row.stats_before; });
  if (command.only != "changed" || unknown == 0) return {};
  return fmt::format(
      "of {} of {} rows nobody knows whether they changed: none of their shape came before",
      unknown, log.rows.size());
}

bool IsShown(const OpRow& row, const std::string& only) {
  if (only == "nan") return row.stats && row.stats->nonfinite() > 0;
  return only != "changed" || HasChanged(row);
}

bool IsOnTerminal() { return TerminalColumns(STDOUT_FILENO) > 0; }

// The rows that are printed, by number. On a terminal those around the first NaN or Inf, if there
// are many and nobody wants all; `left_out` says which.
std::vector<const OpRow*> ShownRows(const OpLog& log, const OpRow* first, const OpsCommand& command,
                                    std::string* left_out) {
  std::vector<const OpRow*> rows;
  for (const OpRow& row : log.rows) {
    if (IsShown(row, command.only)) rows.push_back(&row);
  }
  if (command.all || !IsOnTerminal() || rows.size() <= kMostOnTerminal) return rows;
  const std::size_t all = rows.size();
  const auto place = static_cast<std::size_t>(std::ranges::find(rows, first) - rows.begin());
  const std::size_t wanted = place == all ? 0 : place - std::min(place, kBeforeFirst);
  const std::size_t begin = std::min(wanted, all - kMostOnTerminal);
  rows.erase(rows.begin() + static_cast<std::ptrdiff_t>(begin + kMostOnTerminal), rows.end());
  rows.erase(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(begin));
  *left_out = fmt::format("{} of {} rows, #{} to #{}{}. All of them: --all", rows.size(), all,
                          rows.front()->number, rows.back()->number,
                          place == all ? "" : ", around the first NaN or Inf");
  return rows;
}

std::string InputsText(const OpRow& row) {
  std::string text;
  for (const std::uint32_t number : row.inputs) {
    text += fmt::format("{}#{}", text.empty() ? "" : " ", number);
  }
  if (!row.is_covered) text += text.empty() ? "?" : " ?";
  return text.empty() ? "-" : text;
}

// The columns of hooks, in the order in which rows have them.
std::vector<std::string> ColumnsOf(const OpLog& log) {
  std::vector<std::string> names;
  for (const OpRow& row : log.rows) {
    for (const auto& [name, value] : analysis::ParseOpDetails(row.details).columns) {
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

// Whether a row has that part of its details: a column that is empty everywhere is left out.
bool HasAny(const std::vector<const OpRow*>& rows, std::string analysis::OpDetails::*part) {
  return std::ranges::any_of(rows, [&](const OpRow* row) {
    return !(analysis::ParseOpDetails(row->details).*part).empty();
  });
}

// Of "train.py:21", without the function: cut shorter it would say nothing.
std::size_t WidthOfLines(const std::vector<const OpRow*>& rows) {
  constexpr std::size_t kMost = 30;
  std::size_t width = 0;
  for (const OpRow* row : rows) {
    width = std::max(width, DisplayWidth(row->site.substr(0, row->site.find(' '))));
  }
  return std::min(width + 1, kMost);  // and the ellipsis
}

TextTable MakeTable(const OpLog& log, const std::vector<const OpRow*>& rows) {
  using Align = TextTable::Align;
  using Part = std::pair<const char*, std::string analysis::OpDetails::*>;
  std::vector<Part> parts = {{"REGION", &analysis::OpDetails::region},
                             {"PLACEMENTS", &analysis::OpDetails::placements}};
  std::erase_if(parts, [&](const Part& part) { return !HasAny(rows, part.second); });
  std::vector<TextTable::Column> columns = {{"#", Align::kRight},
                                            TextTable::Name("NAME"),
                                            {"TENSOR"},
                                            {"L1", Align::kRight, /*is_optional=*/true},
                                            {"HASH", Align::kLeft, /*is_optional=*/true},
                                            {"NAN/INF"},
                                            {"ABS MAX", Align::kRight},
                                            {"READS"},
                                            {"LINE", Align::kLeft, /*is_optional=*/true,
                                             /*least=*/WidthOfLines(rows)},
                                            {"ARGUMENTS", Align::kLeft, /*is_optional=*/true,
                                             /*least=*/40}};
  for (const auto& [title, part] : parts)
    columns.push_back({title, Align::kLeft, /*is_optional=*/true});
  const std::vector<std::string> own = ColumnsOf(log);
  for (const std::string& name : own) columns.push_back({Printable(name)});
  TextTable table(columns);
  for (const OpRow* shown : rows) {
    const OpRow& row = *shown;
    const analysis::OpDetails details = analysis::ParseOpDetails(row.details);
    std::vector<std::string> cells = {std::to_string(row.number), Printable(row.name), row.type};
    if (row.stats) {
      const numerics::Stats& stats = *row.stats;
      cells.push_back(numerics::FormatNumber(stats.l1, 4));
      cells.push_back(stats.has_ordered_hash ? fmt::format("{:08x}", stats.ordered_hash)
                      : stats.has_hash       ? fmt::format("{:016x} (any order)", stats.hash)
                                             : "-");
      cells.push_back(NonfiniteText(stats));
      cells.push_back(numerics::FormatNumber(stats.abs_max, 4));
    } else {
      cells.insert(cells.end(), {"-", "-", "lost", "-"});
    }
    cells.push_back(InputsText(row));
    cells.push_back(row.site.empty() ? "-" : Printable(row.site));
    cells.push_back(details.arguments.empty() ? "-" : Printable(details.arguments));
    for (const auto& [title, part] : parts) {
      cells.push_back((details.*part).empty() ? "-" : Printable(details.*part));
    }
    for (const std::string& name : own) {
      const auto found =
          std::ranges::find(details.columns, name, &std::pair<std::string, std::string>::first);
      cells.push_back(found == details.columns.end() ? "-" : Printable(found->second));
    }
    table.Add(std::move(cells));
  }
  return table;
}

std::string Heading(const OpLog& log) {
  std::string text = log.has_calls       ? fmt::format("call {}", log.replay)
                     : log.graph_id == 0 ? "eager run"
                                         : fmt::format("graph {}", log.graph);
  if (!log.session.empty()) text = fmt::format("{}: {}", log.session, text);
  if (log.rank >= 0) text += fmt::format(", rank {}", log.rank);
  if (!log.has_calls) text += fmt::format(", replay {}", log.replay);
  if (log.step >= 0) text += fmt::format(", step {}", log.step);
  if (log.thread > 1) text += fmt::format(", thread {}", log.thread);
  text += fmt::format(": {} row{}", log.rows.size(), log.rows.size() == 1 ? "" : "s");
  if (log.lost() > 0) text += fmt::format(", {} lost", log.lost());
  const analysis::Coverage& coverage = log.coverage;
  if (coverage.is_known) {
    text += fmt::format(", {} kernel nodes: {} explained", coverage.nodes(), coverage.explained);
    if (coverage.left_out > 0) text += fmt::format(", {} left out", coverage.left_out);
  }
  return Printable(text);
}

bool IsBetween(const OpLog& log, const OpRow& row) {
  return log.between.first_row != 0 && row.number >= log.between.first_row;
}

// Which rows are behind the call; empty without any.
std::string BetweenText(const OpLog& log) {
  const std::uint32_t first = log.between.first_row, last = log.rows.back().number;
  if (first == 0) return {};
  const std::string rows = first == last ? fmt::format("row #{} was", first)
                                         : fmt::format("rows #{} to #{} were", first, last);
  return fmt::format("{} made between call {} and {}: of no module, and of nothing of call {}",
                     rows, log.replay, log.between.next_call, log.replay);
}

// Names a row with a NaN or an Inf, and says whether its op made it.
std::string BadRowText(const OpLog& log, const OpRow& row, const char* what) {
  std::string text =
      fmt::format("{}: #{} {}, {}", what, row.number, row.name, NonfiniteText(*row.stats));
  if (IsBetween(log, row)) {
    text += fmt::format(", between call {} and {}", log.replay, log.between.next_call);
  }
  if (!row.site.empty()) text += fmt::format(", {}", row.site);
  if (row.op == "input") {
    text += "\n  nothing in the log has written it before";
  } else if (HasFiniteInputs(log, row)) {
    text += fmt::format("\n  what {} read is finite: {}", row.op, InputsText(row));
  } else if (row.stats->nan > 0 && HasInputsWithoutNan(log, row)) {
    text += fmt::format("\n  what {} read has Inf, and no NaN: {}", row.op, InputsText(row));
  } else {
    text += "\n  not all that it read is shown and finite: " + InputsText(row);
  }
  return PrintableLines(text);
}

// Names the first row with a NaN or an Inf; and the first NaN, because masks are made of -Inf.
std::string FirstText(const OpLog& log, const analysis::LogExcuses& excuses) {
  const OpRow* first = FirstShown(log, excuses);
  if (first == nullptr) return {};
  std::string text = BadRowText(log, *first, "first non-finite");
  const OpRow* nan = FirstShown(log, excuses, /*wants_nan=*/true);
  if (nan != nullptr && nan != first) text += "\n" + BadRowText(log, *nan, "first NaN");
  return text;
}

// "TITLE: #3 NAME, #4 NAME"; empty without any.
template <typename Numbers>
std::string NamesText(const OpLog& log, const char* title, const Numbers& numbers) {
  constexpr std::size_t kNamed = 5;
  std::string text;
  std::size_t count = 0;
  for (const std::uint32_t number : numbers) {
    if (++count > kNamed) continue;
    text += fmt::format("{}#{} {}", count == 1 ? "" : ", ", number, log.Find(number)->name);
  }
  if (count == 0) return {};
  return Printable(fmt::format("{}: {}{}", title, text, analysis::AndMore(count, kNamed))) + "\n";
}

std::vector<std::uint32_t> ExcusedMasks(const OpLog& log, const analysis::LogExcuses& excuses) {
  std::vector<std::uint32_t> masks = analysis::MasksOf(log);
  std::erase_if(masks, [&](std::uint32_t row) { return !excuses.excused.contains(row); });
  return masks;
}

// Lists the rows that the verdict leaves out, and those of which nobody knows.
std::string ExcusedText(const OpLog& log, const analysis::LogExcuses& excuses) {
  const std::vector<std::uint32_t> masks = ExcusedMasks(log, excuses);
  std::vector<std::uint32_t> others;
  std::ranges::set_difference(excuses.excused, masks, std::back_inserter(others));
  return NamesText(log, "constant -Inf, and nothing else that is not finite (a mask?)", masks) +
         NamesText(log, "not finite, and excused (see check)", others) +
         NamesText(log, "not finite, and what would tell whether that is meant is not here",
                   excuses.open);
}

// Says where a NaN began that is older than the replay shown.
// `next_call`: if it was made between two calls.
std::string EarlierText(const Context& context, const OpLog& log, std::uint64_t next_call,
                        const OpsCommand& command) {
  if (log.nan_since == 0 || log.nan_since >= log.replay) return {};
  const Result<LogPlace> where = ParseWhere(context, command.source, command.graph);
  const std::string typed = analysis::TypedOf(where->choice.typed, log);
  const std::string began =
      fmt::format("{}@{}{}", typed, log.has_calls ? "call:" : "", log.nan_kept);
  const std::string type =
      ". Type: cgdebug-cli ops " + ShellWord(began) + where->choice.typed.options;
  const std::string first = fmt::format(
      "the first NaN of this log is {}",
      next_call != 0 ? fmt::format("between call {} and {}", log.nan_since, next_call)
                     : fmt::format("in {} {}", log.has_calls ? "call" : "replay", log.nan_since));
  if (log.nan_kept == log.nan_since) return first + type;
  const std::string gone = first + ", which is not kept";
  if (log.nan_kept == 0 || log.nan_kept >= log.replay) return gone;
  return fmt::format("{}; the next that is kept is {}{}", gone, log.nan_kept, type);
}

Json RowJson(const OpRow& row) {
  return {{"number", row.number},
          {"name", row.name},
          {"op", row.op},
          {"inputs", row.inputs},
          {"is_covered", row.is_covered},
          {"dtype", layout::DtypeName(row.dtype)},
          {"shape", row.shape},
          {"site", row.site},
          {"details", analysis::OpDetailsJson(row.details)},
          {"changed", row.stats && row.stats_before ? Json(HasChanged(row)) : Json(nullptr)},
          {"stats", row.stats ? ToJson(*row.stats) : Json(nullptr)}};
}

Json CoverageJson(const analysis::Coverage& coverage) {
  if (!coverage.is_known) return nullptr;
  Json unseen = Json::array();
  for (const analysis::UnseenNodes& one : coverage.unseen) {
    unseen.push_back(
        {{"after", one.after}, {"before", one.before}, {"count", one.count}, {"names", one.names}});
  }
  return {{"nodes", coverage.nodes()},
          {"explained", coverage.explained},
          {"left_out", coverage.left_out},
          {"unseen", std::move(unseen)}};
}

int RunCoverage(Context& context, const OpLog& log) {
  const analysis::Coverage& coverage = log.coverage;
  if (context.options.json) {
    Json json = {{"graph", log.graph},
                 {"graph_id", log.graph_id},
                 {"session", log.session},
                 {"rank", log.rank},
                 {"coverage", CoverageJson(coverage)}};
    Context::PrintJson(json);
    return kExitOk;
  }
  Context::Print(context.out.Bold(Heading(log)) + "\n");
  for (const analysis::UnseenNodes& one : coverage.unseen) {
    Context::Print(Printable("?? " + one.Text()) + "\n");
  }
  if (!coverage.is_known) {
    context.Note("not known: only the log of a captured graph has kernel nodes");
  } else if (coverage.unseen.empty()) {
    Context::Print("no kernel ran that the log does not know\n");
  }
  if (coverage.left_out > 0) {
    context.Note(
        "left out: kernels of ops that select= or level= excludes. level=\"kernel\" has "
        "those of Triton, too");
  }
  return kExitOk;
}

// `of_all`: of no replay in particular, so that a NaN of an earlier one counts.
analysis::Outcome OutcomeOf(const OpLog& log, const analysis::LogExcuses& excuses, bool of_all) {
  const bool found = FirstBad(log, excuses) != nullptr || (of_all && log.nan_since != 0);
  return analysis::OutcomeOf(found, log.lost() == 0 && log.gaps.empty() && excuses.open.empty());
}

Json LogJson(const OpLog& log, const analysis::LogExcuses& excuses, analysis::Outcome outcome,
             const std::string& only, const std::vector<std::string>& others) {
  const OpRow* first = FirstShown(log, excuses);
  Json rows = Json::array();
  for (const OpRow& row : log.rows) {
    if (IsShown(row, only)) rows.push_back(RowJson(row));
  }
  Json json = {{"verdict", NameOf(outcome)},
               {"graph", log.graph},
               {"graph_id", log.graph_id},
               {"session", log.session},
               {"rank", log.rank},
               {"replay", log.replay},
               {"rows", std::move(rows)},
               {"call", log.has_calls ? Json(log.replay) : Json(nullptr)},
               {"step", log.step < 0 ? Json(nullptr) : Json(log.step)},
               {"thread", log.thread},
               {"lost", log.lost()},
               {"missing", log.gaps},
               {"other_logs", others},
               {"other_ranks", log.other_ranks}};
  json["masks"] = ExcusedMasks(log, excuses);
  json["excused"] = excuses.excused;
  json["coverage"] = CoverageJson(log.coverage);
  json["between"] = nullptr;
  if (log.between.first_row != 0) {
    json["between"] = {{"first_row", log.between.first_row}, {"next_call", log.between.next_call}};
  }
  json["nan_since"] = log.nan_since == 0 ? Json(nullptr) : Json(log.nan_since);
  json["first_nonfinite"] = nullptr;
  if (first != nullptr) {
    json["first_nonfinite"] = {{"number", first->number},
                               {"name", first->name},
                               {"inputs_are_finite", HasFiniteInputs(log, *first)}};
  }
  json["first_nan"] = nullptr;
  if (const OpRow* nan = FirstShown(log, excuses, /*wants_nan=*/true); nan != nullptr) {
    json["first_nan"] = {{"number", nan->number}, {"name", nan->name}};
  }
  return json;
}

// "this is rank 1; ranks 0, 2..3 have op logs, too. Choose with: --ranks 0"; empty without any.
std::string OtherRanksText(const OpLog& log) {
  if (log.other_ranks.empty()) return {};
  return fmt::format("this is rank {}; {} {} op logs, too. Choose with: --ranks {}", log.rank,
                     fmt::format("rank{} {}", log.other_ranks.size() == 1 ? "" : "s",
                                 analysis::RangesText(log.other_ranks)),
                     log.other_ranks.size() == 1 ? "has" : "have", log.other_ranks.front());
}

void PrintRows(Context& context, const OpLog& log, const OpsCommand& command,
               const std::vector<const OpRow*>& rows) {
  if (command.listing.views || command.listing.stack || command.listing.tree) {
    const std::string text = OpListingText(log, command.listing, [&](const OpRow& row) {
      return std::ranges::binary_search(rows, row.number, {}, &OpRow::number);
    });
    if (!text.empty()) Context::Print(text + "\n");
  } else if (const TextTable table = MakeTable(log, rows); !table.empty()) {
    context.PrintTable(table);
  }
}

int RunOps(Context& context, const OpsCommand& command) {
  const Result<LogPlace> where = ParseWhere(context, command.source, command.graph);
  if (!where.ok()) return context.Fail(kExitTrouble, where.error().message);
  OpLog log;
  analysis::LogExcuses excuses;
  std::vector<std::string> others;
  const int failed = OpenLog(context, *where, &log, &excuses, &others);
  if (failed != kExitOk) return failed;
  if (command.is_coverage) return RunCoverage(context, log);
  log.nan_since = excuses.nan_since;
  if (excuses.is_nan_kept) log.nan_kept = log.nan_since;
  const analysis::Outcome outcome = OutcomeOf(log, excuses, !where->names_replay);
  const int found = ExitCodeOf(outcome);
  const int code = found == kExitFound && command.exit_zero ? static_cast<int>(kExitOk) : found;
  if (context.options.json) {
    Context::PrintJson(LogJson(log, excuses, outcome, command.only, others));
    return code;
  }
  Context::Print(context.out.Bold(Heading(log)) + "\n");
  std::string left_out;
  const std::vector<const OpRow*> rows =
      ShownRows(log, FirstShown(log, excuses), command, &left_out);
  const auto print_answer = [&] {
    const std::string bad = FirstText(log, excuses);
    if (!bad.empty()) Context::Print(context.out.Red(bad) + "\n");
    Context::Print(ExcusedText(log, excuses));
  };
  // Whoever looks at a screen sees its first lines; a pipe has the answer at its end.
  if (IsOnTerminal()) print_answer();
  PrintRows(context, log, command, rows);
  if (!left_out.empty()) Context::Print(context.out.Dim(left_out) + "\n");
  if (const std::string unknown = UnknownChangeText(log, command); !unknown.empty()) {
    context.Note(unknown);
  }
  if (!IsOnTerminal()) print_answer();
  if (const std::string between = BetweenText(log); !between.empty()) context.Note(between);
  for (const std::string& gap : log.gaps) context.Note(Printable("not shown: " + gap));
  if (found == kExitInconclusive) {
    Context::Print(
        excuses.open.empty()
            ? "inconclusive: no NaN or Inf in what is shown, but not all is shown\n"
            : "inconclusive: nobody knows whether a NaN or Inf that is shown is meant\n");
  }
  if (const std::string began = EarlierText(context, log, excuses.nan_next_call, command);
      !began.empty()) {
    context.Note(Printable(began));
  }
  if (!others.empty()) {
    context.Note(Printable(fmt::format(
        "the one of {} op logs that was replayed last; others: {}. Choose with: --graph",
        others.size() + 1, fmt::join(others, ", "))));
  }
  if (const std::string ranks = OtherRanksText(log); !ranks.empty()) context.Note(ranks);
  return code;
}

int PrintDiff(Context& context, const OpsCommand& command, analysis::OpDiff::Verdict verdict,
              const Json& json, const analysis::Answer& answer) {
  if (context.options.json) {
    Context::PrintJson(json);
  } else {
    Context::Print(AnswerText(context.out, answer));
  }
  const int code = ExitCodeOf(OutcomeOf(verdict));
  return code == kExitFound && command.exit_zero ? static_cast<int>(kExitOk) : code;
}

// All replays that two sources have in common.
int RunOpsDiffOfRuns(Context& context, const OpsCommand& command, const LogPlace& a,
                     const LogPlace& b) {
  std::unique_ptr<source::Source> of_a, of_b;
  for (auto [where, source] : {std::pair(&a, &of_a), std::pair(&b, &of_b)}) {
    const int failed = OpenSourceOfRanks(context, where->source, source);
    if (failed != kExitOk) return failed;
  }
  const Result<analysis::OpRunsDiff> runs =
      analysis::DiffOpRuns(*of_a, a.choice.graph, *of_b, b.choice.graph);
  if (!runs.ok()) return context.Fail(kExitNoMatch, runs.error().message);
  return PrintDiff(context, command, runs->verdict(), analysis::OpRunsJson(*runs),
                   analysis::OpRunsAnswer(*runs));
}

int RunOpsDiff(Context& context, const OpsCommand& command) {
  Result<LogPlace> where_a = ParseWhere(context, command.a, "");
  if (!where_a.ok()) return context.Fail(kExitTrouble, where_a.error().message);
  Result<LogPlace> where_b = ParseWhere(context, command.b, "");
  if (!where_b.ok()) return context.Fail(kExitTrouble, where_b.error().message);
  if (!where_a->names_replay && !where_b->names_replay) {
    return RunOpsDiffOfRuns(context, command, *where_a, *where_b);
  }
  OpLog a, b;
  std::vector<std::string> not_compared;
  // The side that names a replay comes first.
  auto first = std::pair(&*where_a, &a), second = std::pair(&*where_b, &b);
  if (!where_a->names_replay) std::swap(first, second);
  for (auto [where, log] : {first, second}) {
    std::vector<std::string> others;
    int failed = OpenOpLog(context, where->source, where->choice, log, &others);
    const OpLog& named = *first.second;
    if (failed == kExitOk && !where->names_replay && log->has_calls && named.has_calls) {
      where->choice.replay = static_cast<std::int64_t>(named.replay);  // the same call
      where->choice.is_call = true;
      failed = OpenOpLog(context, where->source, where->choice, log, &others);
    }
    if (failed != kExitOk) return failed;
    if (!log->other_ranks.empty() && context.options.ranks.empty()) {
      not_compared.push_back(fmt::format("{}: {}", where->source, OtherRanksText(*log)));
    }
    if (others.empty() || !where->choice.graph.empty()) continue;
    not_compared.push_back(
        fmt::format("{} has {} op logs, and only the one that was replayed last was compared. "
                    "Choose one with: cgdebug-cli ops "
                    "diff A@g:LOG@REPLAY B@g:LOG@REPLAY, for example {}",
                    where->source, others.size() + 1,
                    ShellWord(fmt::format("{}@g:{}@-1", where->source, others.back()))));
  }
  analysis::OpDiff diff = analysis::DiffOpLogs(a, b);
  diff.missing.insert(diff.missing.end(), not_compared.begin(), not_compared.end());
  return PrintDiff(context, command, diff.verdict(), analysis::OpDiffJson(a, b, diff),
                   analysis::OpDiffAnswer(a, b, diff));
}

}  // namespace

int CompareOpLogs(Context& context, const std::string& a, const std::string& b) {
  OpsCommand command;
  command.a = a;
  command.b = b;
  return RunOpsDiff(context, command);
}

RunFunction AddOps(CLI::App& app) {
  auto command = std::make_shared<OpsCommand>();
  static constexpr const char* kWhereHelp =
      "a source, or SOURCE@REPLAY, SOURCE@call:N, SOURCE@g:GRAPH, SOURCE@g:GRAPH@REPLAY";
  app.add_option("SOURCE", command->source, kWhereHelp);
  app.add_option(
      "--graph", command->graph,
      "the label of the graph, the number of its capture, or eager: the calls outside of graphs");
  app.add_option("--only", command->only,
                 "nan: rows with NaN or Inf; changed: rows that changed since the replay before")
      ->check(CLI::IsMember({"nan", "changed"}))
      ->type_name("{nan,changed}");
  app.add_flag("--all", command->all,
               "every row, also on a terminal, which has those around the first NaN or Inf");
  app.add_flag("--coverage", command->is_coverage,
               "which kernels of the graph no row explains, and where they run");
  app.add_flag(
      "--views", command->listing.views,
      "one row below the other, and between them the views that were made: t, view, slices");
  app.add_flag("--stack", command->listing.stack,
               "one row below the other, each with the lines that led to it and their code");
  app.add_flag("--tree", command->listing.tree, "one row below the other, indented by module");
  app.add_flag("--exit-zero", command->exit_zero, "exit 0, not 1, over a NaN or an Inf");
  CLI::App* diff = app.add_subcommand(
      "diff",
      "the first op whose result differs although its inputs agree, in the first replay "
      "that differs");
  diff->add_option("A", command->a, kWhereHelp)->required();
  diff->add_option("B", command->b, "what A is compared with, in the same form")->required();
  diff->add_flag("--exit-zero", command->exit_zero, "exit 0, not 1, if they differ");
  return [command, diff](Context& context) {
    return diff->parsed() ? RunOpsDiff(context, *command) : RunOps(context, *command);
  };
}

}  // namespace cgdebug::cli
