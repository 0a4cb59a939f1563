// ask: what any op of a captured graph made, in a replay that is over or in the next one. The job
// answers by itself (python/cgdebug/_rewind), on a socket beside the daemon's.
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "client/cli/command.h"
#include "client/cli/context.h"
#include "client/live/sessions.h"
#include "daemon/core/base/unique_fd.h"
#include "daemon/core/endpoint/runtime_dir.h"
#include "daemon/core/options/number.h"

namespace cgdebug::cli {
namespace {

constexpr std::size_t kMostAnswerBytes = std::size_t{256} << 20;

struct AskCommand {
  std::string place;
  std::vector<std::string> rows;
  std::string values;
  std::string repro;
  bool is_list = false;
  unsigned timeout_s = 30;
};

// JOB[@g:GRAPH][@REPLAY]
struct Place {
  std::string job;
  std::string graph;
  std::optional<std::int64_t> replay;
};

Result<Place> ParsePlace(std::string text) {
  Place place;
  const std::string typed = text;
  const std::size_t mark = text.rfind('@');
  if (mark != std::string::npos && !text.substr(mark).starts_with("@g:")) {
    const std::string number = text.substr(mark + 1);
    std::int64_t replay = 0;
    const auto parsed = std::from_chars(number.data(), number.data() + number.size(), replay);
    if (parsed.ec != std::errc() || parsed.ptr != number.data() + number.size() || replay == 0) {
      return Error{fmt::format(
          "'{}' names no replay in {}: replays count from 1, -1 is the newest. Type for "
          "example: cgdebug-cli ask {}",
          number, typed, ShellWord(text.substr(0, mark) + "@12"))};
    }
    place.replay = replay;
    text.resize(mark);
  }
  if (const std::size_t label = text.rfind("@g:"); label != std::string::npos) {
    place.graph = text.substr(label + 3);
    text.resize(label);
  }
  place.job = text == "live" ? "" : text;
  return place;
}

Error SystemError(const std::string& what) {
  return Error{what + ": " + std::generic_category().message(errno)};
}

Result<UniqueFd> ConnectTo(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return Error{path + " is too long for a socket"};
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return SystemError("socket");
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return SystemError(path);
  }
  return socket;
}

bool IsSocketOf(const std::string& path) { return ConnectTo(path).ok(); }

// The processes that take questions: their numbers, by the sockets beside the daemon's.
std::set<std::int64_t> Listening(const std::filesystem::path& directory) {
  std::set<std::int64_t> found;
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(directory, failed)) {
    const std::string name = entry.path().filename();
    long long pid = 0;
    if (std::sscanf(name.c_str(), "ask-%lld.sock", &pid) == 1 && IsSocketOf(entry.path())) {
      found.insert(pid);
    }
  }
  return found;
}

// The one process that is meant, which the daemon need not know: it may have no probe.
// Returns 0, or what to exit with after the reason has been printed.
int FindJob(Context& context, const std::string& selector, const std::filesystem::path& directory,
            std::int64_t* pid) {
  const std::set<std::int64_t> listening = Listening(directory);
  const Result<std::vector<live::Session>> sessions = live::ListSessions(context.client());
  if (!sessions.ok()) return context.Fail(sessions.error());
  std::map<std::int64_t, std::string> meant;
  std::string silent;
  for (const live::Session& one : *sessions) {
    if (one.state != live::SessionState::kAlive || !live::MatchesSession(one, selector) ||
        !context.ranks.Contains(one.rank)) {
      continue;
    }
    const std::int64_t process = one.pid;
    if (listening.contains(process)) {
      meant[process] = one.key;
    } else {
      silent = one.key;
    }
  }
  if (meant.empty()) {
    for (const std::int64_t one : listening) {
      if (selector.empty() || selector == std::to_string(one)) meant[one] = std::to_string(one);
    }
  }
  if (meant.empty() && !silent.empty()) {
    return context.Fail(
        kExitNoMatch,
        fmt::format("job {} takes no questions: it was not started to, or has captured no graph. "
                    "Type: cgdebug-cli run --rewind 64 -- COMMAND",
                    silent));
  }
  if (meant.empty()) {
    return context.FailNoJob(
        "no job takes questions. Type: cgdebug-cli run --rewind 64 -- COMMAND");
  }
  if (meant.size() > 1) {
    std::string keys;
    for (const auto& [process, key] : meant) keys += " " + key;
    return context.Fail(kExitNoMatch,
                        fmt::format("{} processes are meant, and one answers:{}. Type: cgdebug-cli "
                                    "ask {}",
                                    meant.size(), keys, meant.begin()->second));
  }
  *pid = meant.begin()->first;
  return kExitOk;
}

Result<void> Send(int socket, const std::string& text) {
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t part = ::send(socket, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (part < 0 && errno == EINTR) continue;
    if (part < 0) return SystemError("the question did not reach the job");
    sent += static_cast<std::size_t>(part);
  }
  return {};
}

// All that comes until the job closes.
Result<std::string> Receive(int socket) {
  std::string all;
  std::array<char, 1 << 16> part = {};
  while (all.size() < kMostAnswerBytes) {
    const ssize_t got = ::recv(socket, part.data(), part.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError("the answer of the job");
    if (got == 0) return all;
    all.append(part.data(), static_cast<std::size_t>(got));
  }
  return Error{"the answer of the job is too long"};
}

struct Answer {
  int code = kExitTrouble;
  std::string text;
  Json json;
};

// "EXIT TEXT JSON\n", and the two parts.
Result<Answer> ParseAnswer(const std::string& all) {
  const std::size_t line = all.find('\n');
  unsigned code = 0;
  std::size_t text = 0, json = 0;
  if (line == std::string::npos ||
      std::sscanf(all.c_str(), "%u %zu %zu", &code, &text, &json) != 3 ||
      all.size() != line + 1 + text + json || code > kExitTimeout) {
    return Error{"the job ended, or closed the connection, before it had answered"};
  }
  Answer answer{.code = static_cast<int>(code), .text = all.substr(line + 1, text)};
  answer.json = Json::parse(all.substr(line + 1 + text), nullptr, /*allow_exceptions=*/false);
  if (answer.json.is_discarded()) return Error{"this version cannot read what the job answers"};
  return answer;
}

int RunAsk(Context& context, const AskCommand& command) {
  const Result<Place> place = ParsePlace(command.place);
  if (!place.ok()) return context.Fail(kExitTrouble, place.error().message);
  if (const int failed = context.Connect(); failed != kExitOk) return failed;
  const Result<std::string> daemon =
      SocketPath(RuntimeEnvironment::OfThisProcess(), context.options.socket);
  if (!daemon.ok()) return context.Fail(kExitTrouble, daemon.error().message);
  const std::filesystem::path directory = std::filesystem::path(*daemon).parent_path();
  std::int64_t pid = 0;
  if (const int failed = FindJob(context, context.SessionOr(place->job), directory, &pid);
      failed != kExitOk) {
    return failed;
  }
  const Result<UniqueFd> socket = ConnectTo(directory / fmt::format("ask-{}.sock", pid));
  if (!socket.ok()) return context.Fail(kExitNoMatch, socket.error().message);
  Json question = {{"graph", place->graph}, {"rows", command.rows}};
  question["timeout_s"] = command.timeout_s;
  if (place->replay) question["replay"] = *place->replay;
  if (!command.values.empty()) {
    question["values"] = std::filesystem::absolute(command.values).string();
  }
  if (!command.repro.empty()) {
    question["repro"] = std::filesystem::absolute(command.repro).string();
  }
  if (command.is_list) question["list"] = true;
  if (const Result<void> sent = Send(socket->get(), question.dump() + "\n"); !sent.ok()) {
    return context.Fail(kExitTrouble, sent.error().message);
  }
  const Result<std::string> all = Receive(socket->get());
  if (!all.ok()) return context.Fail(kExitTrouble, all.error().message);
  const Result<Answer> answer = ParseAnswer(*all);
  if (!answer.ok()) return context.Fail(kExitTrouble, answer.error().message);
  if (context.options.json) {
    Context::PrintJson(answer->json);
  } else if (answer->code == kExitOk || answer->code == kExitFound) {
    Context::Print(answer->text + "\n");
  } else {
    return context.Fail(static_cast<ExitCode>(answer->code), answer->text);
  }
  return answer->code;
}

void AddPlace(CLI::App& app, AskCommand* command) {
  app.add_option("JOB", command->place,
                 "JOB, JOB@g:GRAPH, JOB@REPLAY or JOB@g:GRAPH@REPLAY; -1 is the newest replay. "
                 "Without a replay: the next one");
  app.add_option("--timeout", command->timeout_s,
                 "how many seconds to wait for the graph's next replay (30)")
      ->check(WholeNumber(1, 86'400))
      ->type_name("S");
}

}  // namespace

RunFunction AddAsk(CLI::App& app) {
  auto command = std::make_shared<AskCommand>();
  AddPlace(app, command.get());
  app.add_option("ROW", command->rows, "globs of rows, as 'fwd/layers.3.*'; default: all")
      ->type_name("GLOB");
  app.add_option("--values", command->values, "also write what is in these rows to this file")
      ->type_name("FILE.safetensors");
  app.add_flag("--list", command->is_list, "which replays of each graph are kept, and in how much");
  return [command](Context& context) { return RunAsk(context, *command); };
}

RunFunction AddRepro(CLI::App& app) {
  auto command = std::make_shared<AskCommand>();
  AddPlace(app, command.get());
  app.add_option("ROW", command->rows, "the row of one op, as 'ask' names it")
      ->required()
      ->expected(1);
  app.add_option("-o,--output", command->repro, "the folder for the script and its tensors")
      ->required()
      ->type_name("DIR");
  return [command](Context& context) { return RunAsk(context, *command); };
}

}  // namespace cgdebug::cli
