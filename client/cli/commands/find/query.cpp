#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <vector>

#include "client/analysis/gaps.h"
#include "client/analysis/json_number.h"
#include "client/cli/command.h"
#include "client/cli/sources/sources.h"
#include "client/source/database.h"
#include "daemon/core/recording/catalogue/catalogue_schema.h"
#include "daemon/core/recording/recording_reader.h"

namespace cgdebug::cli {
namespace {

using source::QueryResult;

struct QueryOptions {
  std::vector<std::string> words;  // SOURCE SQL, or SQL for the newest live job
  std::string format = "table";
  bool schema = false;
  bool examples = false;
};

// A test runs each of them as it is.
constexpr const char* kExamples[] = {
    "SELECT * FROM v_first_nonfinite",
    "SELECT probe, replay, abs_max FROM v_snapshots ORDER BY abs_max DESC LIMIT 10",
    "SELECT probe, count(*) AS snapshots, max(abs_max) AS abs_max FROM v_snapshots GROUP BY probe",
    "SELECT p.name, a.replay FROM snapshot a JOIN snapshot b ON a.probe = b.probe AND b.replay = "
    "a.replay - 1 JOIN probe p ON p.id = a.probe WHERE a.hash = b.hash",
    "SELECT step, min, max, mean FROM v_snapshots WHERE probe = 'loss' ORDER BY replay",
    "SELECT probe, min(replay) AS replay, mismatched, max_abs FROM v_comparisons WHERE mismatched "
    "> 0 "
    "GROUP BY session, probe ORDER BY replay",
    "SELECT number, module, op, args, code FROM v_ops WHERE phase = 'fwd' ORDER BY graph, number",
    "SELECT * FROM v_gaps",
};

// Line feeds stay, in quotes; other control characters could act on a terminal.
std::string CsvCell(std::string text) {
  text = PrintableLines(text);
  if (text.find_first_of("\",\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string Csv(const QueryResult& result) {
  std::string text;
  const auto add = [&](std::size_t place, const std::string& cell) {
    if (place > 0) text += ",";
    text += CsvCell(cell);
  };
  for (std::size_t i = 0; i < result.columns.size(); ++i) add(i, result.columns[i]);
  text += "\n";
  for (const auto& row : result.rows) {
    for (std::size_t i = 0; i < row.size(); ++i) add(i, row[i].text());
    text += "\n";
  }
  return text;
}

// As keys of an object: the second "replay" is "replay:1", as SQLite names it in a subquery.
std::vector<std::string> DistinctColumns(const QueryResult& result) {
  std::vector<std::string> names;
  for (const std::string& column : result.columns) {
    std::string name = column;
    for (int again = 1; std::find(names.begin(), names.end(), name) != names.end(); ++again) {
      name = fmt::format("{}:{}", column, again);
    }
    names.push_back(std::move(name));
  }
  return names;
}

std::string RowsJson(const QueryResult& result) {
  const std::vector<std::string> columns = DistinctColumns(result);
  Json rows = Json::array();
  for (const auto& row : result.rows) {
    Json object = Json::object();
    for (std::size_t i = 0; i < row.size(); ++i) {
      const QueryResult::Cell& cell = row[i];
      Json number = cell.is_number() ? Json::parse(cell.text(), nullptr, false) : Json();
      // JSON has no infinities; SQLite has no NaN.
      if (cell.is_number() && !number.is_number()) number = JsonNumber(std::stod(cell.text()));
      object[columns[i]] = cell.is_null()     ? Json(nullptr)
                           : cell.is_number() ? number
                                              : Json(cell.text());
    }
    rows.push_back(std::move(object));
  }
  return Dump(rows, /*indented=*/true) + "\n";
}

std::string Table(const Context& context, const QueryResult& result) {
  std::vector<TextTable::Column> columns;
  for (std::size_t i = 0; i < result.columns.size(); ++i) {
    const bool is_number = !result.rows.empty() && result.rows.front()[i].is_number();
    columns.push_back({Printable(result.columns[i]),
                       is_number ? TextTable::Align::kRight : TextTable::Align::kLeft});
  }
  TextTable table(columns);
  for (const auto& row : result.rows) {
    std::vector<std::string> cells;
    for (const QueryResult::Cell& cell : row) {
      cells.push_back(cell.is_null() ? "-" : Printable(cell.text()));
    }
    table.Add(std::move(cells));
  }
  return table.Render(context.out, TerminalColumns(STDOUT_FILENO));
}

// A damaged record has no row in the tables.
void SayDamaged(const Context& context, const source::Source& source, sqlite3* database) {
  const auto recordings = source.Recordings();
  const Result<QueryResult> rows = source::Query(database, "SELECT count(*) FROM snapshot");
  if (recordings.size() != 1 || !rows.ok() || source.Describe().is_growing) return;
  const std::uint64_t known = recordings.front()->snapshot_count();
  const std::uint64_t count = std::stoull(rows->rows.at(0).at(0).text());
  if (count >= known) return;
  context.Say(fmt::format("{} damaged snapshot{} not in the tables. Type: cgdebug-cli verify {}",
                          known - count, known - count == 1 ? " is" : "s are",
                          ShellWord(recordings.front()->directory())));
}

int RunQuery(Context& context, const QueryOptions& options) {
  if (options.schema) {
    Context::Print(recording::CatalogueSchema());
    return kExitOk;
  }
  if (options.examples) {
    for (const char* example : kExamples) {
      Context::Print(fmt::format("cgdebug-cli query SOURCE {}\n", ShellWord(example)));
    }
    return kExitOk;
  }
  if (options.words.empty()) {
    return context.Fail(kExitTrouble,
                        "query needs an SQL statement. Type: cgdebug-cli query --examples");
  }
  const bool is_sql = options.words.front().find(' ') != std::string::npos;
  if (options.words.size() == 1 && !is_sql && source::LooksLikePath(options.words.front())) {
    return context.Fail(kExitTrouble,
                        fmt::format("query needs an SQL statement for {}. Type: cgdebug-cli query "
                                    "--examples",
                                    options.words.front()));
  }
  if (options.words.size() == 2 && is_sql && options.words.back().find(' ') == std::string::npos) {
    return context.Fail(kExitTrouble, fmt::format("the source comes first. Type: cgdebug-cli query "
                                                  "{} {}",
                                                  ShellWord(options.words.back()),
                                                  ShellWord(options.words.front())));
  }
  std::unique_ptr<source::Source> source;
  const std::string name = options.words.size() > 1 ? options.words.front() : "live";
  if (!context.ranks.selects_all() || (name != "live" && !context.options.session.empty())) {
    return context.Fail(kExitTrouble,
                        "query asks every rank and session: select them in SQL. Type for example: "
                        "cgdebug-cli query SOURCE 'SELECT * FROM v_snapshots WHERE rank = 0'");
  }
  if (const int failed = OpenSource(context, name, &source)) return failed;
  SayUnread(context, *source);
  const Result<source::Database> database = source::MakeDatabase(*source);
  if (!database.ok()) return context.Fail(kExitTrouble, database.error().message);
  SayDamaged(context, *source, database->get());
  const analysis::GapSummary gaps = analysis::SummarizeGaps(*source, analysis::Scope());
  if (!gaps.sentences.empty()) SayNotAll(context, gaps);
  if (!gaps.goes_on.empty()) context.Note(PrintableLines(gaps.goes_on));
  const Result<QueryResult> result = source::Query(database->get(), options.words.back());
  if (!result.ok()) {
    return context.Fail(
        kExitTrouble, fmt::format("{}. Type: cgdebug-cli query --schema", result.error().message));
  }
  if (options.format == "json" || context.options.json) {
    Context::Print(RowsJson(*result));
  } else if (options.format == "csv") {
    Context::Print(Csv(*result));
  } else {
    Context::Print(Table(context, *result));
  }
  return kExitOk;
}

}  // namespace

RunFunction AddQuery(CLI::App& app) {
  auto options = std::make_shared<QueryOptions>();
  app.add_option("SOURCE", options->words, "[SOURCE] SQL; without SOURCE, the newest live job")
      ->expected(0, 2);
  app.add_option("--format", options->format, "how the rows are printed")
      ->check(CLI::IsMember({"table", "csv", "json"}))
      ->type_name("{table,csv,json}");
  app.add_flag("--schema", options->schema, "print the tables and views");
  app.add_flag("--examples", options->examples, "print queries to begin with");
  return [options](Context& context) { return RunQuery(context, *options); };
}

}  // namespace cgdebug::cli
