#include "client/analysis/ranks/ranks.h"

#include <fmt/format.h>
#include <poll.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>

#include "client/analysis/ranks/ranks_report.h"
#include "client/cli/command.h"
#include "client/cli/interrupt.h"
#include "client/cli/sources/sources.h"
#include "client/cli/views/answer_text.h"
#include "client/source/merged_source.h"
#include "client/source/recording_source.h"
#include "daemon/core/options/number.h"
#include "daemon/core/recording/recording_reader.h"

namespace cgdebug::cli {
namespace {

namespace fs = std::filesystem;

// A growing recording whose files did not change is looked at again after so many rounds: its
// writer may have been killed.
constexpr int kRoundsBetweenLooks = 5;
constexpr std::size_t kMostOpen = 64;  // recordings at once

struct RanksCommand {
  std::string source = "live";
  ScopeOptions scope;
  std::vector<std::string> replicated;
  analysis::RanksOptions options;
  std::size_t max_rows = 40;
  bool follow = false;
  double interval_s = 1;
};

bool IsBad(const analysis::RankRow& row) {
  using enum analysis::ReplicaVerdict;
  return row.verdict == kDifferent || row.verdict == kTie || row.verdict == kIncomplete ||
         row.process.first_nonfinite || row.lost > 0;
}

std::string VerdictText(const analysis::RankRow& row) {
  std::string text(NameOf(row.verdict));
  using enum analysis::ReplicaVerdict;
  const std::optional<analysis::RankPlace>* place = nullptr;
  if (row.verdict == kDifferent || row.verdict == kTie) place = &row.first_different;
  if (row.verdict == kClose || row.verdict == kUnknown) place = &row.first_unequal;
  if (row.verdict == kIncomplete) place = &row.first_missing;
  if (place != nullptr && *place) {
    text += fmt::format(" from {}: {}", PositionText((*place)->position), (*place)->probe);
  }
  return text;
}

// A line of the table: ranks whose lines would be the same share one.
struct RankLine {
  std::vector<std::string> cells;  // without those that come first: run and rank
  std::vector<std::size_t> rows;   // of the report
  bool is_bad = false;
};

std::vector<std::string> CellsOf(const analysis::RankRow& row, bool has_restarts,
                                 const Style& style) {
  const analysis::RankProcess& process = row.process;
  const auto& nan = process.first_nonfinite;
  std::string verdict = Printable(VerdictText(row));
  if (row.verdict == analysis::ReplicaVerdict::kDifferent ||
      row.verdict == analysis::ReplicaVerdict::kTie) {
    verdict = style.Red(verdict);
  }
  std::vector<std::string> cells;
  if (has_restarts) cells.push_back(std::to_string(process.restart));
  cells.push_back(std::to_string(process.replay));
  cells.push_back(process.step < 0 ? "-" : std::to_string(process.step));
  cells.push_back(std::to_string(row.lost));
  cells.push_back(nan ? style.Red(Printable(fmt::format("{} @{}{}", nan->probe,
                                                        nan->is_call ? "call:" : "", nan->replay)))
                      : "-");
  cells.push_back(std::move(verdict));
  cells.push_back(process.last ? Printable(process.last->probe) : "-");
  return cells;
}

std::vector<RankLine> RankLinesOf(const analysis::RanksReport& report, bool has_restarts,
                                  const Style& style) {
  std::vector<RankLine> lines;
  std::map<std::vector<std::string>, std::size_t> places;
  for (std::size_t at = 0; at < report.rows.size(); ++at) {
    const analysis::RankRow& row = report.rows[at];
    std::vector<std::string> cells = CellsOf(row, has_restarts, style);
    std::vector<std::string> key = cells;
    key.push_back(row.process.run);
    const auto [place, is_new] = places.try_emplace(key, lines.size());
    if (is_new) lines.push_back({.cells = std::move(cells), .rows = {}, .is_bad = IsBad(row)});
    lines[place->second].rows.push_back(at);
  }
  return lines;
}

TextTable RanksTable(const analysis::RanksReport& report, const Style& style, std::size_t max_rows,
                     std::size_t* left_out) {
  using Align = TextTable::Align;
  bool has_restarts = false;
  std::set<std::string> runs;
  const bool counts_calls = std::ranges::any_of(report.rows, [](const analysis::RankRow& row) {
    return row.process.last && row.process.last->is_call;
  });
  for (const analysis::RankRow& row : report.rows) {
    has_restarts = has_restarts || row.process.restart > 0;
    runs.insert(row.process.run);
  }
  std::vector<TextTable::Column> columns;
  if (runs.size() > 1) columns.push_back({"RUN"});
  columns.push_back({"RANK"});
  if (has_restarts) columns.push_back({"RESTART", Align::kRight});
  columns.insert(columns.end(), {{counts_calls ? "CALL" : "REPLAY", Align::kCount},
                                 {"STEP", Align::kRight},
                                 {"MISSING", Align::kCount},
                                 {"FIRST NAN"},
                                 {"REPLICAS"},
                                 {"WHERE", Align::kLeft, true}});
  TextTable table(columns);
  std::vector<RankLine> lines = RankLinesOf(report, has_restarts, style);
  if (lines.size() > max_rows) {
    std::stable_partition(lines.begin(), lines.end(),
                          [](const RankLine& line) { return line.is_bad; });
    for (std::size_t i = max_rows; i < lines.size(); ++i) *left_out += lines[i].rows.size();
    lines.resize(max_rows);
  }
  for (RankLine& line : lines) {
    const analysis::RankProcess& first = report.rows[line.rows.front()].process;
    const std::string ranks =
        first.rank < 0 ? Printable(first.session) : RanksOfRows(report, line.rows);
    line.cells.insert(line.cells.begin(), ranks);
    if (runs.size() > 1) {
      line.cells.insert(line.cells.begin(), first.run.empty() ? "-" : Printable(first.run));
    }
    table.Add(std::move(line.cells));
  }
  return table;
}

// What is read, one recording after the other.
class Reading {
 public:
  Reading(Context& context, const RanksCommand& command)
      : context_(context), command_(command), options_(command.options), fold_(MakeOptions()) {}

  // Takes in what is there now. 0, or what to exit with.
  int Round() {
    std::error_code ignored;
    if (source::LooksLikePath(command_.source) && fs::is_directory(command_.source, ignored) &&
        !recording::RecordingReader::IsRecording(command_.source)) {
      const std::vector<std::string> recordings = source::RecordingsIn(command_.source);
      if (!recordings.empty() || command_.follow) return AddRecordings(recordings);
    }
    std::unique_ptr<source::Source> source;
    if (const int failed = OpenSource(context_, command_.source, &source)) return failed;
    fold_ = analysis::RankFold(options_);
    whole_ = std::move(source);
    return Take(*whole_, command_.source);
  }

  analysis::RanksReport Finish() {
    analysis::RanksReport report = fold_.Finish();
    if (report.goes_on || report.rows.empty() || unreadable_.empty()) return report;
    // Nothing is written any more, so none of them has just been begun.
    for (const auto& [path, why] : unreadable_) fold_.AddUnreadable(why);
    return fold_.Finish();
  }

 private:
  // Values are read when all is taken in: a few recordings stay open for that.
  analysis::RanksOptions& MakeOptions() {
    options_.open = [this](const std::string& path) -> source::Source* {
      if (whole_ != nullptr) return whole_.get();
      const auto known = opened_.find(path);
      if (known != opened_.end()) return known->second.get();
      Result<std::unique_ptr<source::Source>> source = source::OpenRecording(path);
      if (!source.ok()) return nullptr;
      if (opened_.size() >= kMostOpen) opened_.clear();
      return (opened_[path] = WantedOf(*std::move(source))).get();
    };
    return options_;
  }

  // The recording, or its session that was asked for; nullptr without one.
  std::unique_ptr<source::Source> WantedOf(std::unique_ptr<source::Source> recording) const {
    const std::string& session = context_.options.session;
    if (session.empty()) return recording;
    std::set<std::string> wanted = UuidsOf(*recording, session);
    return wanted.empty() ? nullptr : source::OnlyOf(std::move(recording), std::move(wanted));
  }

  struct Seen {
    std::uint64_t bytes = 0;
    bool is_growing = true;
    int rounds = 0;
  };

  int AddRecordings(const std::vector<std::string>& recordings) {
    const std::string& session = context_.options.session;
    bool is_any = session.empty();
    for (const std::string& path : recordings) {
      if (command_.follow && !HasChanged(path)) {
        is_any = true;
        continue;
      }
      Result<std::unique_ptr<source::Source>> opened = source::OpenRecording(path);
      if (!opened.ok()) {
        // One that has just been begun has nothing to read yet.
        if (command_.follow) {
          seen_.erase(path);
          unreadable_[path] = opened.error().message;
        } else {
          fold_.AddUnreadable(opened.error().message);
        }
        continue;
      }
      unreadable_.erase(path);
      std::unique_ptr<source::Source> source = *std::move(opened);
      seen_[path].is_growing = source->Describe().is_growing;
      source = WantedOf(std::move(source));
      if (source == nullptr) continue;
      is_any = true;
      if (const int failed = Take(*source, path)) return failed;
    }
    if (is_any || command_.follow) return kExitOk;
    return context_.Fail(kExitNoMatch, fmt::format("no recording in {} has a session '{}'",
                                                   command_.source, session));
  }

  int Take(source::Source& source, const std::string& path) {
    const Result<void> added = fold_.Add(source, path);
    return added.ok() ? static_cast<int>(kExitOk)
                      : context_.Fail(kExitTrouble, added.error().message);
  }

  bool HasChanged(const std::string& path) {
    std::uint64_t bytes = 0;
    std::error_code ignored;
    for (const fs::directory_entry& entry : fs::directory_iterator(path, ignored)) {
      const std::uint64_t size = entry.file_size(ignored);
      if (!ignored) bytes += size;
    }
    Seen& seen = seen_[path];
    const bool is_due = seen.is_growing && ++seen.rounds % kRoundsBetweenLooks == 0;
    return std::exchange(seen.bytes, bytes) != bytes || is_due;
  }

  Context& context_;
  const RanksCommand& command_;
  analysis::RanksOptions options_;
  analysis::RankFold fold_;
  std::unique_ptr<source::Source> whole_;                          // if it is one source
  std::map<std::string, std::unique_ptr<source::Source>> opened_;  // by path, to read values
  std::map<std::string, Seen> seen_;                               // by path
  std::map<std::string, std::string> unreadable_;                  // why, by path; when following
};

void Show(Context& context, const RanksCommand& command, const analysis::RanksReport& report) {
  if (context.options.json) {
    Json json = analysis::RanksJson(report, command.options);
    // One line a round for a program that follows.
    if (command.follow) {
      Context::Print(Dump(json, /*indented=*/false) + "\n");
      std::fflush(stdout);
    } else {
      Context::PrintJson(json);
    }
    return;
  }
  std::size_t left_out = 0;
  context.PrintTable(RanksTable(report, context.out, command.max_rows, &left_out));
  if (left_out > 0) {
    Context::Print(fmt::format("and {} more ranks: --max-rows\n", left_out));
  }
  Context::Print(AnswerText(context.out, analysis::RanksAnswer(report, command.options)));
  std::fflush(stdout);
}

int Follow(Context& context, const RanksCommand& command) {
  const InterruptScope interrupt(&context.client());
  Reading reading(context, command);
  std::string shown;
  int code = kExitInconclusive;
  bool is_waiting = false;
  while (!interrupt.interrupted()) {
    if (const int failed = reading.Round()) return failed;
    const analysis::RanksReport report = reading.Finish();
    if (report.rows.empty()) {
      if (!std::exchange(is_waiting, true)) {
        context.Note(Printable(fmt::format("waiting for recordings in {}", command.source)));
      }
    } else {
      code = ExitCodeOf(report.outcome());
      const std::string state = Dump(analysis::RanksJson(report, command.options), false);
      if (std::exchange(shown, state) != state) Show(context, command, report);
      if (!report.goes_on) return code;
    }
    ::poll(nullptr, 0, static_cast<int>(command.interval_s * 1000));
  }
  return code;
}

int RunRanks(Context& context, RanksCommand& command) {
  Result<analysis::Scope> scope = MakeScope(context, command.scope);
  if (!scope.ok()) return context.Fail(kExitTrouble, scope.error().message);
  command.options.scope = *std::move(scope);
  command.options.typed = ShellWord(command.source) + context.SameJob();
  command.options.follows = command.follow;
  command.options.has_replicated = !command.replicated.empty();
  Result<Selector> replicated = Selector::Parse(command.replicated);
  if (!replicated.ok()) return context.Fail(kExitTrouble, replicated.error().message);
  command.options.replicated = *std::move(replicated);
  if (command.follow) return Follow(context, command);
  Reading reading(context, command);
  if (const int failed = reading.Round()) return failed;
  const analysis::RanksReport report = reading.Finish();
  if (report.rows.empty()) {
    return context.Fail(
        kExitNoMatch,
        fmt::format("{} has no such probe on these ranks. Type: cgdebug-cli info {}{}",
                    command.source, ShellWord(command.source), context.SameSession()));
  }
  Show(context, command, report);
  return ExitCodeOf(report.outcome());
}

}  // namespace

RunFunction AddRanks(CLI::App& app) {
  auto command = std::make_shared<RanksCommand>();
  app.add_option("SOURCE", command->source, kSourceHelp);
  app.add_option("PROBE", command->scope.probes, "globs; 're:...', '!...' excludes");
  app.add_option("--replicated", command->replicated,
                 "globs of probes whose tensors must be the same on all ranks, besides those that "
                 "say so")
      ->type_name("GLOB")
      ->expected(1)
      ->allow_extra_args(false)  // else it takes the source behind it
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--replays", command->scope.replays, "only these replays")->type_name("100..200");
  AddWhichOptions(app, &command->scope.which);
  app.add_option(
         "--tolerance", command->options.tolerance,
         "how far an element of replicas may differ that were never bitwise equal, relative to "
         "the largest magnitude (1e-6)")
      ->check(CLI::NonNegativeNumber)
      ->type_name("R");
  app.add_flag("--bitwise", command->options.bitwise, "every difference is a finding");
  app.add_flag("-f,--follow", command->follow,
               "look again and again, for instance at a folder into which every node records");
  app.add_option("--interval", command->interval_s, "seconds between two looks (1)")
      ->check(Number(0.05, 3600))
      ->type_name("S");
  app.add_option("--max-rows", command->max_rows, "how many lines to show (40)")
      ->check(WholeNumber(1))
      ->type_name("N");
  return [command](Context& context) { return RunRanks(context, *command); };
}

}  // namespace cgdebug::cli
