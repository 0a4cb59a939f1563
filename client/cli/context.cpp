#include "client/cli/context.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "client/cli/command.h"
#include "client/cli/interrupt.h"
#include "client/cli/pager.h"
#include "client/cli/progress.h"
#include "client/live/status.h"
#include "client/source/source.h"

namespace cgdebug::cli {
namespace {

bool has_printed = false;  // on stdout

}  // namespace

Result<void> Context::Resolve() {
  Result<RankSet> parsed = RankSet::Parse(options.ranks);
  if (!parsed.ok()) return parsed.error();
  ranks = *std::move(parsed);
  ColorChoice choice = ColorChoice::kAuto;
  if (options.color == "always") choice = ColorChoice::kAlways;
  if (options.color == "never") choice = ColorChoice::kNever;
  out = Style(!options.json && WantsColor(choice, STDOUT_FILENO));
  err = Style(WantsColor(choice, STDERR_FILENO));
  // JSON is the same everywhere: do not convert anything in it to ASCII.
  SetTextForm({.is_ascii = !options.json && LocaleIsAscii(), .wraps = !options.json});
  return {};
}

std::string Context::SameSession() const {
  return options.session.empty() ? "" : " -s " + ShellWord(options.session);
}

std::string Context::SameRanks() const {
  return options.ranks.empty() ? "" : " --ranks " + options.ranks;
}

std::string Context::Again(std::string_view more) const {
  std::string command = "cgdebug-cli";
  for (const std::string& word : words) command += " " + ShellWord(word);
  return more.empty() ? command : fmt::format("{} {}", command, more);
}

client::ConnectOptions Context::MakeConnectOptions() const {
  client::ConnectOptions connect;
  connect.socket = options.socket;
  connect.start_daemon = !options.no_spawn;
  connect.name = "cgdebug-cli";
  return connect;
}

int Context::Connect() {
  client::ConnectOptions connect = MakeConnectOptions();
  if (const std::string file = FileText(); !file.empty()) {
    connect.start_daemon = false;  // it would see nothing of a file
    const bool is_connected = client_.Connect(connect).ok();
    if (!is_connected && client_.last_failure() == client::Failure::kNoDaemon) {
      return Fail(kExitNoMatch, file);
    }
  }
  return ConnectWith(connect);
}

int Context::ConnectWith(const client::ConnectOptions& connect) {
  const Result<void> connected = client_.Connect(connect);
  if (!connected.ok()) return Fail(connected.error());
  if (client_.started_daemon()) {
    Note(fmt::format("cgdebug: daemon started (pid {})", client_.daemon_pid()));
  }
  return kExitOk;
}

void Context::Say(std::string_view message) const {
  Progress::End();
  const std::string line = fmt::format("{} {}\n", err.Bold("cgdebug:"), message);
  std::fflush(stdout);
  WriteText(stderr, line);
}

void Context::Hint(std::string_view command) const {
  if (!options.quiet) Say(fmt::format("next:  {}", command));
}

void Context::Note(std::string_view line) const {
  if (options.quiet) return;
  Progress::End();
  const std::string text = err.Dim(line) + "\n";
  std::fflush(stdout);
  WriteText(stderr, text);
}

void Context::Print(std::string_view text) {
  has_printed = true;
  Progress::End();
  Pager::BeforeText();
  WriteText(stdout, text);
}

void Context::PrintJson(Json json) {
  auto& fields = json.get_ref<Json::object_t&>();
  Json document = Json::object();
  auto& all = document.get_ref<Json::object_t&>();
  all.reserve(1 + fields.size());  // an object that grows copies what it has
  all.emplace_back("schema", kJsonSchema);
  for (auto& [name, value] : fields) all.emplace_back(name, std::move(value));
  Print(Dump(document, /*indented=*/true) + "\n");
}

void Context::PrintTable(const TextTable& table, std::size_t columns) const {
  Print(table.Render(out, columns));
}

void Context::PrintRaw(std::string_view bytes) {
  std::fwrite(bytes.data(), 1, bytes.size(), stdout);
}

int Context::Fail(ExitCode code, std::string_view message) const {
  Say(PrintableLines(message));
  if (options.json && !has_printed) PrintJson({{"error", message}, {"exit_code", code}});
  return code;
}

std::string Context::FileText() const {
  const auto is_command = [](const std::string& word) {
    return std::ranges::find(Commands(), word, &Command::name) != Commands().end();
  };
  const auto command = std::ranges::find_if(words, is_command);
  for (auto word = command; word != words.end(); ++word) {
    const bool is_value = word == command || (word - 1)->starts_with("-");  // such as that of -o
    if (is_value || word->starts_with("-") || !source::LooksLikeSource(*word)) continue;
    std::error_code ignored;
    if (!std::filesystem::exists(*word, ignored)) continue;
    return fmt::format("'{}' is a file, and {} asks live jobs. Type: cgdebug-cli info {}",
                       Printable(*word), *command, ShellWord(*word));
  }
  return {};
}

int Context::FailNoJob(std::string_view message) {
  const int code = Fail(kExitNoMatch, message);
  NoteSkipped();
  return code;
}

void Context::NoteSkipped() {
  const Result<live::Status> status = live::GetStatus(client_);
  if (!status.ok()) return;
  if (status->skipped.size() > 1) {
    Note(
        fmt::format("{} jobs belong to other daemons, or cannot be read by the one on {}: "
                    "cgdebug-cli status -a",
                    status->skipped.size(), Printable(status->socket)));
    return;
  }
  for (const live::Skipped& file : status->skipped) {
    Note(fmt::format("skipped by the daemon on {}: {}: {}", Printable(status->socket),
                     Printable(file.path), Printable(file.reason)));
  }
}

int Context::Fail(const Error& error) {
  const bool is_none = client_.last_failure() == client::Failure::kNothingMatched;
  const std::string file = is_none ? FileText() : "";
  const std::string& message = file.empty() ? error.message : file;
  if (live::SaidNoSession(client_)) return FailNoJob(message);
  switch (client_.last_failure()) {
    case client::Failure::kNoDaemon:
    case client::Failure::kNothingMatched:
      return Fail(kExitNoMatch, message);
    case client::Failure::kTimeout:
      return Fail(kExitTimeout, message);
    case client::Failure::kStopped:
      return InterruptExitCode();
    default:
      return Fail(kExitTrouble, message);
  }
}

}  // namespace cgdebug::cli
